// Limits on what the files of a model may claim, each with the reason for its size. Kimi K3's own
// figures are in parentheses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace yoke::model {

// Files that are read as a whole.
constexpr uint64_t kConfigBytesMax = uint64_t{1} << 20;            // config.json (5 KB)
constexpr uint64_t kTokenizerConfigBytesMax = uint64_t{16} << 20;  // tokenizer_config.json
constexpr uint64_t kRankFileBytesMax = uint64_t{64} << 20;         // tiktoken.model (2.8 MB)
constexpr uint64_t kIndexBytesMax = uint64_t{256} << 20;           // shard index (about 60 MB)
constexpr uint64_t kHeaderBytesMax = 100'000'000;                  // the format's own limit

constexpr size_t kShardsMax = 4096;   // each is a mapping; the system allows 65,530 (96)
constexpr size_t kTensorDimsMax = 8;  // (4)

// Sizes in config.json. Together they keep every product of sizes, the count of all parameters
// included, below 2^63, and the list of tensors within memory.
constexpr size_t kLayersMax = 4096;                         // (93)
constexpr size_t kModelDimMax = size_t{1} << 17;            // (7168)
constexpr size_t kFfnDimMax = size_t{1} << 20;              // of dense layers (33792)
constexpr size_t kExpertFfnDimMax = size_t{1} << 17;        // (3072)
constexpr size_t kHeadsMax = 4096;                          // (96)
constexpr size_t kHeadDimMax = 4096;                        // (128)
constexpr size_t kLoraRankMax = size_t{1} << 16;            // (1536)
constexpr size_t kExpertsMax = size_t{1} << 14;             // (896)
constexpr size_t kSharedExpertsMax = 64;                    // (2)
constexpr size_t kLayersTimesExpertsMax = size_t{1} << 19;  // 6 tensors for each (83,328)
constexpr size_t kVocabMax = size_t{1} << 22;               // (163,840)
constexpr size_t kContextMax = size_t{1} << 28;             // tokens (1,048,576)

}  // namespace yoke::model
