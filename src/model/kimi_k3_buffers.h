// Activations of one step, allocated once for the largest step. Private to kimi_k3.cc.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/backend.h"
#include "model/config.h"
#include "model/kimi_k3_shard.h"
#include "model/kimi_k3_weights.h"

namespace yoke::model {

// SiTU feed-forward scratch. `act` is as wide as down_proj's slice; the activations fill the
// columns [offset, offset + ffn_dim) of it, the others stay zero.
struct FfnBuffers {
  kernels::View gate, up, act;  // [tokens_max, ...]
  kernels::View act_own;        // the own columns of act
};

// Names and shapes as in kimi_k3_weights.h; num_heads etc. are this rank's. Rows: tokens_max.
struct KimiK3Buffers {
  KimiK3Buffers(const KimiK3Config& config, const KimiK3Shard& shard, const KimiK3Weights& weights,
                size_t tokens_max, kernels::Backend& backend);
  void FreeAll();

  // The residual stream p, its AttnRes bank [NumBankRows][tokens_max, model_dim], the mix h of
  // them, the normed input x of a block and the block's output y: [tokens_max, model_dim].
  kernels::View prefix, bank, h, x, y;

  struct {
    kernels::View q, k, v, gate, forget;  // [., num_heads * head_dim]
    kernels::View f_a;                    // [., head_dim]
    kernels::View beta;                   // [., num_heads]
    kernels::View out, out_own;           // o_proj's input and the own columns of it
  } kda;
  struct {
    kernels::View q_a;           // [., q_lora_rank]
    kernels::View q;             // [., num_heads * (nope + rope)]
    kernels::View kv_a;          // [., kv_lora_rank + rope]
    kernels::View gate;          // [., num_heads * v]
    kernels::View out, out_own;  // o_proj's input and the own columns of it
  } mla;
  FfnBuffers dense, shared;
  struct {
    kernels::View latent_part, router_part;  // this rank's rows' outputs
    kernels::View latent, router;            // whole: [., latent_dim], [., num_experts]
    kernels::View expert_ids, weights;       // [., experts_per_token]
    kernels::View sum;                       // experts' sum: [., latent_dim]
    kernels::View up_in, up_in_own;          // latent_up_proj's input and the own columns of it
    kernels::View up_out;                    // [., model_dim]
  } moe;
  kernels::View head_in;  // rows that need logits: [., model_dim]
  kernels::View logits;   // [., vocab range]

 private:
  kernels::View Make(size_t cols);
  FfnBuffers MakeFfn(size_t ffn_dim, const ColumnSlice& down_proj);

  kernels::Backend* backend_;
  size_t tokens_max_;
  std::vector<kernels::BufferId> all_;
};

}  // namespace yoke::model
