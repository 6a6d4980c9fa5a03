#include "model/kimi_k3_shard.h"

#include <string>

#include "tensor/dtype.h"

namespace yoke::model {
namespace {

using shard::Range;

// A line that is cut, and where each rank's range goes.
struct Line {
  const char* what;
  size_t total;
  size_t block;
  Range KimiK3Shard::*range;
};

}  // namespace

Result<std::vector<KimiK3Shard>> ShardKimiK3(const KimiK3Config& config,
                                             std::span<const size_t> shares) {
  const size_t num_ranks = shares.size();
  const Line lines[] = {
      {"KDA heads", config.kda_num_heads, 1, &KimiK3Shard::kda_heads},
      {"MLA heads", config.mla_num_heads, 1, &KimiK3Shard::mla_heads},
      {"dense FFN rows", config.dense_ffn_dim, kBlockCols, &KimiK3Shard::dense_ffn},
      {"shared expert rows", config.SharedFfnDim(), kBlockCols, &KimiK3Shard::shared_ffn},
      {"expert rows", config.expert_ffn_dim, kBlockCols, &KimiK3Shard::expert_ffn},
      {"latent rows", config.latent_dim, 1, &KimiK3Shard::latent_rows},
      {"latent columns", config.latent_dim, kBlockCols, &KimiK3Shard::latent_cols},
      {"experts", config.num_experts, 1, &KimiK3Shard::router_rows},
      {"vocabulary rows", config.vocab_size, 1, &KimiK3Shard::vocab},
  };
  std::vector<KimiK3Shard> shards(num_ranks);
  for (const Line& line : lines) {
    if (line.total < num_ranks) {
      return Error(ErrorCode::kInvalidArgument,
                   "cannot split " + std::to_string(line.total) + " " + line.what + " over " +
                       std::to_string(num_ranks) + " ranks; use at most " +
                       std::to_string(line.total) + " ranks");
    }
    const size_t unit = shard::UnitFor(line.total, line.block, num_ranks);
    const std::vector<Range> ranges = shard::Partition(line.total, unit, shares);
    for (size_t r = 0; r < num_ranks; ++r) {
      if (ranges[r].size() == 0) {
        return Error(ErrorCode::kInvalidArgument,
                     "rank " + std::to_string(r) + " of " + std::to_string(num_ranks) +
                         " would get none of the " + std::to_string(line.total) + " " + line.what +
                         ": its share is too small");
      }
      shards[r].*line.range = ranges[r];
    }
  }
  return shards;
}

}  // namespace yoke::model
