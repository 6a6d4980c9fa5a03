#include "model/special_tokens.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/json.h"
#include "model/limits.h"

namespace yoke::model {
namespace {

Result<int> ParseId(const std::string& text, size_t num_ranks) {
  const char* const end = text.data() + text.size();
  size_t id = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, id);
  // Without leading zeros, so that two keys never mean one id.
  const bool canonical = stop == end && (text.size() == 1 || text.front() != '0');
  if (text.empty() || error != std::errc() || !canonical || id < num_ranks || id >= kVocabMax) {
    return Error(ErrorCode::kCorrupt,
                 "added_tokens_decoder: expected ids from " + std::to_string(num_ranks) +
                     " (what follows the BPE ranks) to " + std::to_string(kVocabMax - 1) +
                     ", got \"" + text.substr(0, 40) + "\"");
  }
  return static_cast<int>(id);
}

}  // namespace

Result<SpecialTokens> SpecialTokens::Parse(std::string_view tokenizer_config, size_t num_ranks) {
  YOKE_TRY(const Json json, ParseJson(tokenizer_config, kTokenizerConfigBytesMax));
  YOKE_TRY(const Json* const added, JsonObject(json, "added_tokens_decoder"));
  SpecialTokens specials;
  for (const auto& [key, value] : added->items()) {
    YOKE_TRY(const int id, ParseId(key, num_ranks));
    auto content = JsonString(value, "content");
    if (!content) return std::move(content).error().Wrap("added_tokens_decoder[" + key + "]");
    if (content.value().empty()) {
      return Error(ErrorCode::kCorrupt, "added_tokens_decoder[" + key + "]: the name is empty");
    }
    specials.by_id_.emplace(id, content.value());
    specials.by_name_.emplace_back(std::move(content).value(), id);
  }
  std::sort(specials.by_name_.begin(), specials.by_name_.end());
  for (size_t i = 1; i < specials.by_name_.size(); ++i) {
    const auto& [name, id] = specials.by_name_[i];
    const auto& [other_name, other_id] = specials.by_name_[i - 1];
    if (name == other_name) {
      return Error(ErrorCode::kCorrupt, "added_tokens_decoder: ids " + std::to_string(other_id) +
                                            " and " + std::to_string(id) + " are both \"" + name +
                                            "\"");
    }
  }
  return specials;
}

SpecialTokens::Match SpecialTokens::LongestPrefix(std::string_view text) const {
  Match match;
  auto first = by_name_.begin();
  auto last = by_name_.end();
  // [first, last): the names that agree with the first `depth` bytes of the text. They are sorted,
  // so the one that ends here, if any, comes first.
  for (size_t depth = 0; first != last; ++depth) {
    if (first->first.size() == depth) {
      match = {depth, first->second};
      ++first;
    }
    if (depth == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto byte_at = [depth](const auto& entry) {
      return static_cast<unsigned char>(entry.first[depth]);
    };
    first = std::partition_point(first, last, [&](const auto& e) { return byte_at(e) < byte; });
    last = std::partition_point(first, last, [&](const auto& e) { return byte_at(e) == byte; });
  }
  return match;
}

int SpecialTokens::FindId(std::string_view name) const {
  const Match match = LongestPrefix(name);
  return match.num_bytes == name.size() ? match.id : -1;
}

std::string_view SpecialTokens::FindName(int id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? std::string_view() : it->second;
}

}  // namespace yoke::model
