// What each rank of a group owns of a Kimi K3 model.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "shard/partition.h"

namespace yoke::model {

// One rank's parts. Matrices that a range cuts along rows give this rank's outputs; those that it
// cuts along columns (o_proj, down_proj, w2, routed_expert_up_proj) give partial sums, which an
// all-reduce completes. Small matrices (q_a, kv_a, f_a, norms) are whole on every rank.
struct KimiK3Shard {
  shard::Range kda_heads;    // q, k, v, g, f_b, b rows; o columns; conv, A_log, dt_bias
  shard::Range mla_heads;    // q_b, kv_b, g rows; o columns
  shard::Range dense_ffn;    // gate, up rows; down columns
  shard::Range shared_ffn;   // likewise
  shard::Range expert_ffn;   // w1, w3 rows; w2 columns, of every expert
  shard::Range latent_rows;  // routed_expert_down_proj rows
  shard::Range latent_cols;  // routed_expert_up_proj columns
  shard::Range router_rows;  // gate rows: experts whose scores this rank computes
  shard::Range vocab;        // embedding and lm_head rows
};

// Element r is rank r's. More ranks than heads, latent rows, ... is an error with the reason, and
// so are shares that would leave a rank without any.
Result<std::vector<KimiK3Shard>> ShardKimiK3(const KimiK3Config& config,
                                             std::span<const size_t> shares);

}  // namespace yoke::model
