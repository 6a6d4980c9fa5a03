#include "model/utf8.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace yoke::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the first byte of a character promises: its length, and which second bytes are legal. The
// narrowed second bytes keep out overlong forms, surrogates and what lies above U+10FFFF.
struct Lead {
  size_t num_bytes = 0;  // 0: no character begins with this byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  uint8_t payload_mask = 0;
};

Lead ReadLead(uint8_t byte) {
  if (byte < 0x80) return {.num_bytes = 1, .payload_mask = 0x7F};
  if (byte >= 0xC2 && byte <= 0xDF) return {.num_bytes = 2, .payload_mask = 0x1F};
  if (byte >= 0xE0 && byte <= 0xEF) {
    Lead lead{.num_bytes = 3, .payload_mask = 0x0F};
    if (byte == 0xE0) lead.second_min = 0xA0;
    if (byte == 0xED) lead.second_max = 0x9F;
    return lead;
  }
  if (byte >= 0xF0 && byte <= 0xF4) {
    Lead lead{.num_bytes = 4, .payload_mask = 0x07};
    if (byte == 0xF0) lead.second_min = 0x90;
    if (byte == 0xF4) lead.second_max = 0x8F;
    return lead;
  }
  return {};
}

bool AllAscii(const char* eight_bytes) {
  uint64_t word = 0;
  std::memcpy(&word, eight_bytes, sizeof(word));
  return (word & 0x8080808080808080) == 0;
}

}  // namespace

Utf8Char ReadUtf8(std::string_view text) {
  YOKE_DCHECK(!text.empty());
  const auto first = static_cast<uint8_t>(text[0]);
  const Lead lead = ReadLead(first);
  if (lead.num_bytes == 0) return {Utf8Kind::kInvalid, 1, 0};
  char32_t code_point = first & lead.payload_mask;
  for (size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {Utf8Kind::kValid, lead.num_bytes, code_point};
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    while (offset + 8 <= text.size() && AllAscii(text.data() + offset)) offset += 8;
    if (offset == text.size()) break;
    const Utf8Char c = ReadUtf8(text.substr(offset));
    if (c.kind != Utf8Kind::kValid) return offset;
    offset += c.num_bytes;
  }
  return std::string_view::npos;
}

std::string StreamDecoder::Push(std::string_view token_bytes) {
  pending_ += token_bytes;
  std::string complete;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char c = ReadUtf8(rest);
    if (c.kind == Utf8Kind::kIncomplete) break;
    complete += c.kind == Utf8Kind::kValid ? rest.substr(0, c.num_bytes) : kReplacement;
    rest.remove_prefix(c.num_bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return complete;
}

std::string StreamDecoder::Finish() {
  const bool unfinished = !std::exchange(pending_, {}).empty();
  return unfinished ? std::string(kReplacement) : std::string();
}

}  // namespace yoke::model
