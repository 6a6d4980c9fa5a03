// This rank's weights of a Kimi K3 model, named as in the paper and the checkpoint.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "kernels/backend.h"
#include "model/config.h"
#include "model/kimi_k3_shard.h"
#include "model/weight_loader.h"

namespace yoke::model {

using kernels::WeightId;

// Kimi Delta Attention. Heads are this rank's.
struct KdaWeights {
  WeightId q_proj, k_proj, v_proj, g_proj;  // [num_heads * head_dim, model_dim]
  WeightId q_conv, k_conv, v_conv;          // f32 [num_heads * head_dim, 4]
  WeightId f_a_proj;                        // [head_dim, model_dim], whole
  WeightId f_b_proj;                        // [num_heads * head_dim, head_dim]
  WeightId b_proj;                          // [num_heads, model_dim]
  WeightId a_log;                           // f32 [1, num_heads]
  WeightId dt_bias;                         // f32 [1, num_heads * head_dim]
  WeightId o_norm;                          // f32 [1, head_dim]
  ColumnSlice o_proj;                       // [model_dim, num_heads * head_dim]
};

// Gated multi-head latent attention. Heads are this rank's.
struct MlaWeights {
  WeightId q_a_proj;   // [q_lora_rank, model_dim], whole
  WeightId q_a_norm;   // f32 [1, q_lora_rank]
  WeightId q_b_proj;   // [num_heads * (nope + rope), q_lora_rank]
  WeightId kv_a_proj;  // [kv_lora_rank + rope, model_dim], whole
  WeightId kv_a_norm;  // f32 [1, kv_lora_rank]
  WeightId kv_b_proj;  // [num_heads * (nope + v), kv_lora_rank]
  WeightId g_proj;     // [num_heads * v, model_dim]
  ColumnSlice o_proj;  // [model_dim, num_heads * v]
};

// SiTU feed-forward: the dense layers' and the shared experts'.
struct FfnWeights {
  WeightId gate_proj, up_proj;  // [ffn_dim, model_dim], this rank's rows
  ColumnSlice down_proj;        // [model_dim, ffn_dim]
};

struct MoeWeights {
  WeightId router;             // [num_experts, model_dim], this rank's rows
  WeightId correction_bias;    // f32 [1, num_experts], whole
  WeightId latent_down_proj;   // [latent_dim, model_dim], this rank's rows
  WeightId w1, w3;             // MXFP4 [num_experts * expert_ffn, latent_dim], this rank's rows
  ColumnSlice w2;              // MXFP4 [num_experts * latent_dim, expert_ffn], this rank's columns
  WeightId latent_norm;        // f32 [1, latent_dim], whole
  ColumnSlice latent_up_proj;  // [model_dim, latent_dim], this rank's columns
  FfnWeights shared;
};

// The learned query of one block attention residual: f32 [1, model_dim] each, whole.
struct AttnResWeights {
  WeightId norm, proj;
};

struct LayerWeights {
  AttnResWeights attn_res, ffn_res;
  WeightId attn_norm, ffn_norm;  // f32 [1, model_dim]
  // One of each pair is there.
  std::optional<KdaWeights> kda;
  std::optional<MlaWeights> mla;
  std::optional<FfnWeights> dense;
  std::optional<MoeWeights> moe;
};

struct KimiK3Weights {
  WeightId embedding;  // [vocab, model_dim], this rank's rows
  std::vector<LayerWeights> layers;
  AttnResWeights output_res;
  WeightId output_norm;  // f32 [1, model_dim]
  WeightId lm_head;      // [vocab, model_dim], this rank's rows
};

// REQUIRES: CheckInventory passed. Errors name the tensor.
Result<KimiK3Weights> LoadKimiK3Weights(const KimiK3Config& config, const KimiK3Shard& shard,
                                        WeightSource& source);

}  // namespace yoke::model
