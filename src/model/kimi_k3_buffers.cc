#include "model/kimi_k3_buffers.h"

namespace yoke::model {

using kernels::View;

KimiK3Buffers::KimiK3Buffers(const KimiK3Config& config, const KimiK3Shard& shard,
                             const KimiK3Weights& weights, size_t tokens_max,
                             kernels::Backend& backend)
    : backend_(&backend), tokens_max_(tokens_max) {
  for (View* view : {&prefix, &h, &x, &y, &head_in}) *view = Make(config.model_dim);
  bank = {backend.Allocate(config.NumBankRows() * tokens_max * config.model_dim), 0, tokens_max,
          config.model_dim, config.model_dim};
  all_.push_back(bank.buffer);
  logits = Make(shard.vocab.size());

  const size_t kda_width = shard.kda_heads.size() * config.kda_head_dim;
  const size_t mla_width = shard.mla_heads.size() * config.v_dim;
  bool kda_done = false, mla_done = false, dense_done = false, moe_done = false;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.kda && !kda_done) {
      kda_done = true;
      for (View* view : {&kda.q, &kda.k, &kda.v, &kda.gate, &kda.forget}) *view = Make(kda_width);
      kda.f_a = Make(config.kda_head_dim);
      kda.beta = Make(shard.kda_heads.size());
      kda.out = Make(layer.kda->o_proj.cols);
      kda.out_own = kda.out.Cols(layer.kda->o_proj.offset, kda_width);
    }
    if (layer.mla && !mla_done) {
      mla_done = true;
      mla.q_a = Make(config.q_lora_rank);
      mla.q = Make(shard.mla_heads.size() * (config.qk_nope_dim + config.qk_rope_dim));
      mla.kv_a = Make(config.kv_lora_rank + config.qk_rope_dim);
      mla.gate = Make(mla_width);
      mla.out = Make(layer.mla->o_proj.cols);
      mla.out_own = mla.out.Cols(layer.mla->o_proj.offset, mla_width);
    }
    if (layer.dense && !dense_done) {
      dense_done = true;
      dense = MakeFfn(shard.dense_ffn.size(), layer.dense->down_proj);
    }
    if (layer.moe && !moe_done) {
      moe_done = true;
      shared = MakeFfn(shard.shared_ffn.size(), layer.moe->shared.down_proj);
      moe.latent_part = Make(shard.latent_rows.size());
      moe.router_part = Make(shard.router_rows.size());
      moe.latent = Make(config.latent_dim);
      moe.router = Make(config.num_experts);
      moe.expert_ids = Make(config.experts_per_token);
      moe.weights = Make(config.experts_per_token);
      moe.sum = Make(config.latent_dim);
      moe.up_in = Make(layer.moe->latent_up_proj.cols);
      moe.up_in_own = moe.up_in.Cols(layer.moe->latent_up_proj.offset, shard.latent_cols.size());
      moe.up_out = Make(config.model_dim);
    }
  }
}

void KimiK3Buffers::FreeAll() {
  for (const kernels::BufferId buffer : all_) backend_->Free(buffer);
  all_.clear();
}

View KimiK3Buffers::Make(size_t cols) {
  const kernels::BufferId buffer = backend_->Allocate(tokens_max_ * cols);
  all_.push_back(buffer);
  return {buffer, 0, tokens_max_, cols, cols};
}

FfnBuffers KimiK3Buffers::MakeFfn(size_t ffn_dim, const ColumnSlice& down_proj) {
  FfnBuffers ffn;
  ffn.gate = Make(ffn_dim);
  ffn.up = Make(ffn_dim);
  ffn.act = Make(down_proj.cols);
  ffn.act_own = ffn.act.Cols(down_proj.offset, ffn_dim);
  return ffn;
}

}  // namespace yoke::model
