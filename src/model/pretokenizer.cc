#include "model/pretokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "model/utf8.h"

namespace yoke::model {
namespace {

constexpr size_t kChunkCharsMax = 400'000;
constexpr size_t kRunCharsMax = 25'000;

// Backtracking steps of one match. The expression takes a few for each character of its piece, and
// a piece has little more than two runs of 25,000.
constexpr uint32_t kMatchStepsMax = 1'000'000;
constexpr uint32_t kMatchHeapKibMax = 64 << 10;

// Kimi K3's expression, in PCRE2's words. It is written for engines where classes can be
// intersected, \s is White_Space and \p{Han} is the script. PCRE2 has no intersection, counts
// U+180E as \s, and takes \p{Han} for the script extensions, which hold ideographic punctuation
// too. So
// - \s is spelled out;
// - [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] becomes "neither Han nor any other category".
std::string MakePattern() {
  const std::string space = R"(\t-\r\x{85}\p{Z})";
  const std::string upper = R"([^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])";
  const std::string lower = R"([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])";
  const std::string suffix = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  const std::string before_word = R"([^\r\n\p{L}\p{N}]?)";
  return R"(\p{sc:Han}+)"
         "|" +
         before_word + upper + "*" + lower + "+" + suffix + "|" + before_word + upper + "+" +
         lower + "*" + suffix +
         R"(|\p{N}{1,3})"
         "| ?[^" +
         space +
         R"(\p{L}\p{N}]+[\r\n]*)"
         "|[" +
         space +
         R"(]*[\r\n]+)"
         "|[" +
         space + "]+(?![^" + space +
         "])"
         "|[" +
         space + "]+";
}

std::string Pcre2Message(int error) {
  std::array<PCRE2_UCHAR, 160> text = {};
  pcre2_get_error_message(error, text.data(), text.size());
  return {text.begin(), std::find(text.begin(), text.end(), 0)};
}

}  // namespace

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::vector<std::string_view> CutLongText(std::string_view text) {
  if (text.size() <= kRunCharsMax) return {text};
  std::vector<std::string_view> parts;
  size_t part_begin = 0;
  size_t chunk_chars = 0;
  size_t run_chars = 0;
  bool run_is_space = false;
  const auto cut_at = [&](size_t offset) {
    parts.push_back(text.substr(part_begin, offset - part_begin));
    part_begin = offset;
    run_chars = 0;
  };
  for (size_t offset = 0; offset < text.size();) {
    const Utf8Char c = ReadUtf8(text.substr(offset));
    const bool is_space = IsSpace(c.code_point);
    if (chunk_chars == kChunkCharsMax) {
      cut_at(offset);
      chunk_chars = 0;
    }
    if (is_space != run_is_space) run_chars = 0;
    if (run_chars == kRunCharsMax) cut_at(offset);
    run_is_space = is_space;
    ++run_chars;
    ++chunk_chars;
    offset += c.num_bytes;
  }
  cut_at(text.size());
  return parts;
}

Result<Pretokenizer> Pretokenizer::Create(Jit jit) {
  Pretokenizer pretokenizer;
  const std::string pattern = MakePattern();
  int error = 0;
  size_t offset = 0;
  // Anchored: each match has to begin where the last one ended, so nothing is ever skipped.
  pretokenizer.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                         pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED,
                                         &error, &offset, nullptr));
  if (pretokenizer.code_ == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 "PCRE2 cannot compile the tokenizer's expression (expected version 10.40 or "
                 "later with Unicode): at " +
                     std::to_string(offset) + ": " + Pcre2Message(error));
  }
  // Where PCRE2 has no just-in-time compiler, or the system forbids it, its interpreter serves.
  pretokenizer.has_jit_ = jit == Jit::kIfAvailable &&
                          pcre2_jit_compile(pretokenizer.code_.get(), PCRE2_JIT_COMPLETE) == 0;
  pretokenizer.limits_.reset(pcre2_match_context_create(nullptr));
  YOKE_CHECK(pretokenizer.limits_ != nullptr);
  pcre2_set_match_limit(pretokenizer.limits_.get(), kMatchStepsMax);
  pcre2_set_heap_limit(pretokenizer.limits_.get(), kMatchHeapKibMax);
  return pretokenizer;
}

Status Pretokenizer::Split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<pcre2_match_data, Deleter> match(pcre2_match_data_create(1, nullptr));
  YOKE_CHECK(match != nullptr);
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(match.get());
  for (const std::string_view part : CutLongText(text)) {
    for (size_t offset = 0; offset < part.size();) {
      const int result =
          pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(part.data()), part.size(), offset,
                      PCRE2_NO_UTF_CHECK, match.get(), limits_.get());
      // The alternatives cover every character, so a match that fails met one of the limits.
      if (result < 0 || bounds[1] <= offset) {
        return Error(ErrorCode::kUnsupported,
                     "cannot split the text at byte " +
                         std::to_string(static_cast<size_t>(part.data() - text.data()) + offset) +
                         ": " + Pcre2Message(result));
      }
      pieces.push_back(part.substr(offset, bounds[1] - offset));
      offset = bounds[1];
    }
  }
  return Ok{};
}

}  // namespace yoke::model
