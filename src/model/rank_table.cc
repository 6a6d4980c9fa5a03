#include "model/rank_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "model/limits.h"

namespace yoke::model {
namespace {

constexpr std::array<int, 256> MakeBase64Digits() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int, 256> digits = {};
  digits.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int>(i);
  }
  return digits;
}
constexpr std::array<int, 256> kBase64Digits = MakeBase64Digits();

// Appends the decoded bytes; false if the text is not base64 with its padding.
bool DecodeBase64(std::string_view text, std::vector<char>& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int digit = kBase64Digits[static_cast<uint8_t>(c)];
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out.push_back(static_cast<char>(bits >> num_bits & 0xFF));
  }
  return (bits & ((1u << num_bits) - 1)) == 0;  // what the padding cuts off must be zero
}

Error BadLine(size_t line_number, const std::string& what) {
  return {ErrorCode::kCorrupt, "line " + std::to_string(line_number) + ": " + what};
}

// A token's place in the byte pool while that still grows.
struct Span {
  size_t begin = 0;
  size_t num_bytes = 0;  // 0: not seen yet
};

// Reads "BASE64 RANK": the bytes go to the end of `bytes`; returns the rank.
Result<size_t> ParseLine(std::string_view line, size_t line_number, std::vector<char>& bytes) {
  const size_t space = line.find(' ');
  const std::string_view number =
      space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  size_t rank = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (number.empty() || error != std::errc() || end != number.data() + number.size()) {
    return BadLine(line_number, "expected a token in base64, a space and its rank");
  }
  if (rank >= kVocabMax) {
    return BadLine(line_number, "expected a rank below " + std::to_string(kVocabMax) + ", got " +
                                    std::string(number));
  }
  if (!DecodeBase64(line.substr(0, space), bytes)) {
    return BadLine(line_number, "the token is not base64");
  }
  return rank;
}

Result<std::vector<Span>> ParseLines(std::string_view text, std::vector<char>& bytes) {
  std::vector<Span> spans;
  size_t num_tokens = 0;
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty()) continue;
    const size_t begin = bytes.size();
    YOKE_TRY(const size_t rank, ParseLine(line, line_number, bytes));
    if (rank >= spans.size()) spans.resize(rank + 1);
    if (spans[rank].num_bytes != 0) {
      return BadLine(line_number, "rank " + std::to_string(rank) + " occurs twice");
    }
    spans[rank] = {begin, bytes.size() - begin};
    ++num_tokens;
  }
  for (size_t rank = 0; rank < spans.size(); ++rank) {
    if (spans[rank].num_bytes == 0) {
      return Error(ErrorCode::kCorrupt, "rank " + std::to_string(rank) + " is missing: expected " +
                                            "ranks 0 to " + std::to_string(spans.size() - 1) +
                                            ", got " + std::to_string(num_tokens) + " of them");
    }
  }
  return spans;
}

}  // namespace

Result<RankTable> RankTable::Parse(std::string_view text) {
  RankTable table;
  YOKE_TRY(const std::vector<Span> spans, ParseLines(text, table.bytes_));
  table.tokens_.reserve(spans.size());
  table.ranks_.reserve(spans.size());
  for (const Span& span : spans) {
    const std::string_view token(table.bytes_.data() + span.begin, span.num_bytes);
    const int rank = static_cast<int>(table.tokens_.size());
    const auto [other, is_new] = table.ranks_.emplace(token, rank);
    if (!is_new) {
      return Error(ErrorCode::kCorrupt, "ranks " + std::to_string(other->second) + " and " +
                                            std::to_string(rank) + " are the same token");
    }
    table.tokens_.push_back(token);
    table.token_bytes_max_ = std::max(table.token_bytes_max_, token.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (table.Find({&c, 1}) < 0) {
      return Error(ErrorCode::kCorrupt,
                   "no token for the single byte " + std::to_string(byte) + ": expected all 256");
    }
  }
  return table;
}

}  // namespace yoke::model
