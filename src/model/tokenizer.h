// Byte-level BPE from tiktoken.model and tokenizer_config.json, with Kimi K3's pre-tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/utf8.h"

namespace yoke::model {

// Immutable after Load; threads may share it.
class Tokenizer {
 public:
  // Reads tiktoken.model and tokenizer_config.json in `folder`.
  static Result<Tokenizer> Load(const std::string& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  size_t vocab_size() const;  // ranks and special tokens: largest id + 1

  // Text, never special tokens: what looks like one is encoded as plain text. Text must be UTF-8
  // (the error names the byte offset).
  Result<std::vector<int>> Encode(std::string_view text) const;
  // Like Encode, but the names of special tokens become their ids.
  Result<std::vector<int>> EncodeWithSpecials(std::string_view text) const;

  // Bytes of a token; a special token's name; "" for an unused id.
  std::string_view TokenBytes(int token) const;
  bool IsSpecial(int token) const;
  // -1 when there is none of that name.
  int SpecialId(std::string_view name) const;
  std::string Decode(const std::vector<int>& tokens) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::model
