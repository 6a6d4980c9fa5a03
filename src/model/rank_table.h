// The vocabulary of a byte-level BPE: tiktoken.model.
#pragma once

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace yoke::model {

// Tokens by rank and ranks by token. Owns the bytes; move-only; immutable after Parse.
class RankTable {
 public:
  // One line a token: its bytes in base64, a space, its rank. The ranks must be 0, 1, ... n-1, each
  // once, in any order, and every single byte must be a token. Errors name the line.
  static Result<RankTable> Parse(std::string_view text);
  RankTable(RankTable&&) noexcept = default;
  RankTable& operator=(RankTable&&) noexcept = default;
  RankTable(const RankTable&) = delete;
  RankTable& operator=(const RankTable&) = delete;
  ~RankTable() = default;

  size_t size() const { return tokens_.size(); }
  // REQUIRES: 0 <= rank < size().
  std::string_view Bytes(int rank) const { return tokens_[static_cast<size_t>(rank)]; }
  // The rank of a token, or -1.
  int Find(std::string_view bytes) const {
    if (bytes.size() > token_bytes_max_) return -1;
    const auto it = ranks_.find(bytes);
    return it == ranks_.end() ? -1 : it->second;
  }

 private:
  RankTable() = default;

  std::vector<char> bytes_;               // all tokens; the views point into it
  std::vector<std::string_view> tokens_;  // by rank
  std::unordered_map<std::string_view, int> ranks_;
  size_t token_bytes_max_ = 0;
};

}  // namespace yoke::model
