// Cuts text into the pieces that byte-pair merging works on, with Kimi K3's expression.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace yoke::model {

// White space as Unicode's White_Space property and U+001C to U+001F have it.
bool IsSpace(char32_t code_point);

// What the released tokenizer does to long text before it applies the expression: parts of at most
// 400,000 characters, cut again where a run of (non-)space characters exceeds 25,000. The parts
// together are the text. REQUIRES: UTF-8.
std::vector<std::string_view> CutLongText(std::string_view text);

// Immutable; threads may share it.
class Pretokenizer {
 public:
  enum class Jit { kIfAvailable, kOff };
  static Result<Pretokenizer> Create(Jit jit);

  bool has_jit() const { return has_jit_; }
  // Appends the pieces, in order; together they are the text. REQUIRES: UTF-8.
  Status Split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Deleter {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  Pretokenizer() = default;

  std::unique_ptr<pcre2_code, Deleter> code_;
  std::unique_ptr<pcre2_match_context, Deleter> limits_;
  bool has_jit_ = false;
};

}  // namespace yoke::model
