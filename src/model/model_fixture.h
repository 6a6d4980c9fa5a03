// What the tests of this module share: folders with model files, small configurations, random text.
#pragma once

#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/prng.h"
#include "model/safetensors.h"

namespace yoke::model {

// YOKE_TEST_SEED, or 1.
inline uint64_t TestSeed() {
  const char* const text = std::getenv("YOKE_TEST_SEED");
  uint64_t seed = 1;
  if (text != nullptr) {
    const std::string_view view(text);
    std::from_chars(view.data(), view.data() + view.size(), seed);
  }
  return seed;
}

// A fresh folder for temporary files; removed with all that is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "yoke_model_XXXXXX").string();
    YOKE_CHECK(::mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream(PathOf(name), std::ios::binary) << text;
  }

 private:
  std::string path_;
};

// A file of the source tree. REQUIRES: it exists.
inline std::string ReadSourceFile(const std::string& name) {
  std::ifstream in(std::string(YOKE_SOURCE_DIR) + "/" + name, std::ios::binary);
  YOKE_CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Kimi K3's released configuration.
inline Json ReleasedConfig() {
  return ParseJson(ReadSourceFile("tests/data/kimi-k3-config.json"), 1 << 20).value();
}

// A configuration of four layers (KDA with a dense FFN, then KDA, MLA and MLA with four experts
// each), in which no two sizes are the same that could be mixed up.
inline Json SmallConfig() {
  Json json = ReleasedConfig();
  json["eos_token_id"] = 300;
  Json& text = json["text_config"];
  const std::pair<const char*, int> sizes[] = {{"vocab_size", 310},
                                               {"hidden_size", 48},
                                               {"num_hidden_layers", 4},
                                               {"num_attention_heads", 3},
                                               {"num_key_value_heads", 3},
                                               {"intermediate_size", 80},
                                               {"attn_res_block_size", 2},
                                               {"q_lora_rank", 20},
                                               {"kv_lora_rank", 12},
                                               {"qk_nope_head_dim", 6},
                                               {"qk_rope_head_dim", 4},
                                               {"v_head_dim", 10},
                                               {"num_experts", 4},
                                               {"num_experts_per_token", 2},
                                               {"num_shared_experts", 2},
                                               {"moe_intermediate_size", 64},
                                               {"max_position_embeddings", 128},
                                               {"routed_expert_hidden_size", 32}};
  for (const auto& [key, value] : sizes) text[key] = value;
  Json& linear = text["linear_attn_config"];
  linear["num_heads"] = 5;
  linear["head_dim"] = 8;
  linear["full_attn_layers"] = {3, 4};
  linear["kda_layers"] = {1, 2};
  return json;
}

// One tensor of a file to be written.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<size_t> shape;
  std::string bytes;
};

// A safetensors file around any header text.
inline std::string WithHeader(const std::string& header, std::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return file + header + std::string(data);
}

// A correct safetensors file.
inline std::string MakeSafetensors(const std::vector<TensorToWrite>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const TensorToWrite& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return WithHeader(DumpJson(header), data);
}

// The UTF-8 form of a code point.
inline std::string EncodeUtf8(char32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  std::string tail;
  do {
    tail.insert(tail.begin(), static_cast<char>(0x80 | (c & 0x3F)));
    c >>= 6;
  } while (c > 0x3Fu >> tail.size());  // the first byte has room for 5, 4 or 3 bits
  const char32_t marks[] = {0, 0xC0, 0xE0, 0xF0};
  return static_cast<char>(marks[tail.size()] | c) + tail;
}

// UTF-8 of every kind that the tokenizer tells apart.
inline std::string RandomText(Prng& prng, size_t num_chars) {
  const std::pair<char32_t, char32_t> ranges[] = {
      {'a', 'z'},         {'a', 'z'},         {'A', 'Z'},         {'0', '9'},
      {' ', ' '},         {' ', '/'},         {'\t', '\r'},       {0, 0xFF},
      {0x300, 0x310},     {0x2B0, 0x2B8},     {0x1C4, 0x1CC},     {0x400, 0x44F},
      {0x660, 0x669},     {0xE00, 0xE3A},     {0x2000, 0x206F},   {0x3000, 0x30FF},
      {0x4E00, 0x4E80},   {0x16FF0, 0x16FF1}, {0x1F440, 0x1F4FF}, {0x20000, 0x20010},
      {0xE000, 0x10FFFF}, {0, 0xD7FF}};
  std::string text;
  for (size_t i = 0; i < num_chars; ++i) {
    const auto& [first, last] = ranges[prng.Below(std::size(ranges))];
    const auto length = static_cast<size_t>(prng.Below(4) == 0 ? prng.Below(6) : 1);
    const auto c = static_cast<char32_t>(first + prng.Below(last - first + 1));
    for (size_t k = 0; k < length; ++k) text += EncodeUtf8(c);
  }
  return text;
}

}  // namespace yoke::model
