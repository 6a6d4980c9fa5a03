// What one rank of a group holds and reads, from the configuration alone: the loading code itself,
// run on shapes instead of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/weight_loader.h"
#include "tensor/dtype.h"

namespace yoke::model {

struct RankFootprint {
  std::map<DType, uint64_t> bytes_by_dtype;
  uint64_t total_bytes = 0;
  uint64_t file_bytes = 0;  // copied from the checkpoint at load
  uint64_t expert_bytes = 0;
  uint64_t embedding_bytes = 0;
  // Weight bytes read for one decoded token: everything but the embedding (of which one row is
  // read, on one rank) and the experts that were not chosen.
  uint64_t bytes_per_token = 0;
  uint64_t state_bytes = 0;            // KDA state of one sequence
  uint64_t cache_bytes_per_token = 0;  // of one sequence, growing
};

// Element r: rank r of shares.size(). Fails where the split is not possible.
Result<std::vector<RankFootprint>> FootprintOf(const KimiK3Config& config,
                                               std::span<const size_t> shares, TrunkFormat trunk);

}  // namespace yoke::model
