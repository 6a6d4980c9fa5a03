#include "model/kimi_k3_weights.h"

#include <string>

namespace yoke::model {
namespace {

using shard::Range;

const std::string kPrefix = "language_model.";

// The rows or columns of a range of heads, each `width` wide.
Range HeadRows(const Range& heads, size_t width) { return {heads.begin * width, heads.end * width}; }

Result<AttnResWeights> LoadAttnRes(WeightLoader& loader, const std::string& base) {
  AttnResWeights w;
  YOKE_TRY(w.norm, loader.WholeVector(base + "_norm.weight"));
  YOKE_TRY(w.proj, loader.WholeVector(base + "_proj.weight"));
  return w;
}

Result<KdaWeights> LoadKda(const KimiK3Config& config, const KimiK3Shard& shard,
                           WeightLoader& loader, const std::string& attn) {
  const Range& heads = shard.kda_heads;
  const Range channels = HeadRows(heads, config.kda_head_dim);
  KdaWeights w;
  YOKE_TRY(w.q_proj, loader.Rows(attn + "q_proj.weight", channels));
  YOKE_TRY(w.k_proj, loader.Rows(attn + "k_proj.weight", channels));
  YOKE_TRY(w.v_proj, loader.Rows(attn + "v_proj.weight", channels));
  YOKE_TRY(w.g_proj, loader.Rows(attn + "g_proj.weight", channels));
  YOKE_TRY(w.q_conv, loader.ConvRows(attn + "q_conv1d.weight", channels));
  YOKE_TRY(w.k_conv, loader.ConvRows(attn + "k_conv1d.weight", channels));
  YOKE_TRY(w.v_conv, loader.ConvRows(attn + "v_conv1d.weight", channels));
  YOKE_TRY(w.f_a_proj, loader.Whole(attn + "f_a_proj.weight"));
  YOKE_TRY(w.f_b_proj, loader.Rows(attn + "f_b_proj.weight", channels));
  YOKE_TRY(w.b_proj, loader.RowsAsStored(attn + "b_proj.weight", heads));
  YOKE_TRY(w.a_log, loader.HeadVector(attn + "A_log", heads, config.kda_num_heads));
  YOKE_TRY(w.dt_bias, loader.Vector(attn + "dt_bias", channels));
  YOKE_TRY(w.o_norm, loader.WholeVector(attn + "o_norm.weight"));
  YOKE_TRY(w.o_proj, loader.Cols(attn + "o_proj.weight", channels));
  return w;
}

Result<MlaWeights> LoadMla(const KimiK3Config& config, const KimiK3Shard& shard,
                           WeightLoader& loader, const std::string& attn) {
  const Range& heads = shard.mla_heads;
  MlaWeights w;
  YOKE_TRY(w.q_a_proj, loader.Whole(attn + "q_a_proj.weight"));
  YOKE_TRY(w.q_a_norm, loader.WholeVector(attn + "q_a_layernorm.weight"));
  YOKE_TRY(w.q_b_proj, loader.Rows(attn + "q_b_proj.weight",
                                   HeadRows(heads, config.qk_nope_dim + config.qk_rope_dim)));
  YOKE_TRY(w.kv_a_proj, loader.Whole(attn + "kv_a_proj_with_mqa.weight"));
  YOKE_TRY(w.kv_a_norm, loader.WholeVector(attn + "kv_a_layernorm.weight"));
  YOKE_TRY(w.kv_b_proj, loader.Rows(attn + "kv_b_proj.weight",
                                    HeadRows(heads, config.qk_nope_dim + config.v_dim)));
  YOKE_TRY(w.g_proj, loader.Rows(attn + "g_proj.weight", HeadRows(heads, config.v_dim)));
  YOKE_TRY(w.o_proj, loader.Cols(attn + "o_proj.weight", HeadRows(heads, config.v_dim)));
  return w;
}

Result<FfnWeights> LoadFfn(WeightLoader& loader, const std::string& ffn, const Range& rows) {
  FfnWeights w;
  YOKE_TRY(w.gate_proj, loader.Rows(ffn + "gate_proj.weight", rows));
  YOKE_TRY(w.up_proj, loader.Rows(ffn + "up_proj.weight", rows));
  YOKE_TRY(w.down_proj, loader.Cols(ffn + "down_proj.weight", rows));
  return w;
}

Result<MoeWeights> LoadMoe(const KimiK3Config& config, const KimiK3Shard& shard,
                           WeightLoader& loader, const std::string& moe) {
  MoeWeights w;
  YOKE_TRY(w.router, loader.RowsAsStored(moe + "gate.weight", shard.router_rows));
  YOKE_TRY(w.correction_bias, loader.WholeVector(moe + "gate.e_score_correction_bias"));
  YOKE_TRY(w.latent_down_proj,
           loader.Rows(moe + "routed_expert_down_proj.weight", shard.latent_rows));
  const std::string expert = moe + "experts.{}.";
  YOKE_TRY(w.w1, loader.ExpertRows(expert + "w1", config.num_experts, shard.expert_ffn));
  YOKE_TRY(w.w3, loader.ExpertRows(expert + "w3", config.num_experts, shard.expert_ffn));
  YOKE_TRY(w.w2, loader.ExpertCols(expert + "w2", config.num_experts, shard.expert_ffn));
  YOKE_TRY(w.latent_norm, loader.WholeVector(moe + "routed_expert_norm.weight"));
  YOKE_TRY(w.latent_up_proj, loader.Cols(moe + "routed_expert_up_proj.weight", shard.latent_cols));
  YOKE_TRY(w.shared, LoadFfn(loader, moe + "shared_experts.", shard.shared_ffn));
  return w;
}

Result<LayerWeights> LoadLayer(const KimiK3Config& config, const KimiK3Shard& shard,
                               WeightLoader& loader, size_t layer_idx) {
  const std::string layer = kPrefix + "model.layers." + std::to_string(layer_idx) + ".";
  LayerWeights w;
  YOKE_TRY(w.attn_res, LoadAttnRes(loader, layer + "self_attention_res"));
  YOKE_TRY(w.ffn_res, LoadAttnRes(loader, layer + "mlp_res"));
  YOKE_TRY(w.attn_norm, loader.WholeVector(layer + "input_layernorm.weight"));
  YOKE_TRY(w.ffn_norm, loader.WholeVector(layer + "post_attention_layernorm.weight"));
  if (config.layer_kinds[layer_idx] == LayerKind::kKda) {
    YOKE_TRY(w.kda, LoadKda(config, shard, loader, layer + "self_attn."));
  } else {
    YOKE_TRY(w.mla, LoadMla(config, shard, loader, layer + "self_attn."));
  }
  if (config.IsDense(layer_idx)) {
    YOKE_TRY(w.dense, LoadFfn(loader, layer + "mlp.", shard.dense_ffn));
  } else {
    YOKE_TRY(w.moe, LoadMoe(config, shard, loader, layer + "block_sparse_moe."));
  }
  return w;
}

}  // namespace

Result<KimiK3Weights> LoadKimiK3Weights(const KimiK3Config& config, const KimiK3Shard& shard,
                                        WeightLoader& loader) {
  KimiK3Weights w;
  YOKE_TRY(w.embedding, loader.RowsAsStored(kPrefix + "model.embed_tokens.weight", shard.vocab));
  for (size_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    YOKE_TRY(LayerWeights layer, LoadLayer(config, shard, loader, layer_idx));
    w.layers.push_back(std::move(layer));
  }
  YOKE_TRY(w.output_res, LoadAttnRes(loader, kPrefix + "model.output_attn_res"));
  YOKE_TRY(w.output_norm, loader.WholeVector(kPrefix + "model.norm.weight"));
  YOKE_TRY(w.lm_head, loader.Rows(kPrefix + "lm_head.weight", shard.vocab));
  return w;
}

}  // namespace yoke::model
