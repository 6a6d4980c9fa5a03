// Tokenizer files for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace yoke::model {

inline std::string ToBase64(const std::string& bytes) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    }
    const size_t num_digits = bytes.size() - i + 1;  // of 4; the rest is padding
    for (size_t k = 0; k < 4; ++k) {
      text += k < num_digits ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

// A tiktoken.model: the 256 bytes as ranks 0 to 255, then `merged`.
inline std::string MakeRankFile(const std::vector<std::string>& merged) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text += ToBase64({static_cast<char>(byte)}) + " " + std::to_string(byte) + "\n";
  }
  for (size_t i = 0; i < merged.size(); ++i) {
    text += ToBase64(merged[i]) + " " + std::to_string(256 + i) + "\n";
  }
  return text;
}

// A tokenizer_config.json with these special tokens.
inline std::string MakeTokenizerConfig(const std::vector<std::pair<int, std::string>>& specials) {
  Json added = Json::object();
  for (const auto& [id, name] : specials) {
    added[std::to_string(id)] = {{"content", name}, {"special", true}};
  }
  return DumpJson({{"added_tokens_decoder", added}});
}

}  // namespace yoke::model
