#include "model/kimi_k3_weights.h"

#include <string>

namespace yoke::model {
namespace {

using shard::Range;

const std::string kPrefix = "language_model.";

// The rows or columns of a range of heads, each `width` wide.
Range HeadRows(const Range& heads, size_t width) {
  return {heads.begin * width, heads.end * width};
}

Result<AttnResWeights> LoadAttnRes(WeightSource& source, const std::string& base) {
  AttnResWeights w;
  YOKE_TRY(w.norm, source.WholeVector(base + "_norm.weight"));
  YOKE_TRY(w.proj, source.WholeVector(base + "_proj.weight"));
  return w;
}

Result<KdaWeights> LoadKda(const KimiK3Config& config, const KimiK3Shard& shard,
                           WeightSource& source, const std::string& attn) {
  const Range& heads = shard.kda_heads;
  const Range channels = HeadRows(heads, config.kda_head_dim);
  KdaWeights w;
  YOKE_TRY(w.q_proj, source.Rows(attn + "q_proj.weight", channels));
  YOKE_TRY(w.k_proj, source.Rows(attn + "k_proj.weight", channels));
  YOKE_TRY(w.v_proj, source.Rows(attn + "v_proj.weight", channels));
  YOKE_TRY(w.g_proj, source.Rows(attn + "g_proj.weight", channels));
  YOKE_TRY(w.q_conv, source.RowsAsStored(attn + "q_conv1d.weight", channels));
  YOKE_TRY(w.k_conv, source.RowsAsStored(attn + "k_conv1d.weight", channels));
  YOKE_TRY(w.v_conv, source.RowsAsStored(attn + "v_conv1d.weight", channels));
  YOKE_TRY(w.f_a_proj, source.Whole(attn + "f_a_proj.weight"));
  YOKE_TRY(w.f_b_proj, source.Rows(attn + "f_b_proj.weight", channels));
  YOKE_TRY(w.b_proj, source.RowsAsStored(attn + "b_proj.weight", heads));
  YOKE_TRY(w.a_log, source.HeadVector(attn + "A_log", heads, config.kda_num_heads));
  YOKE_TRY(w.dt_bias, source.Vector(attn + "dt_bias", channels));
  YOKE_TRY(w.o_norm, source.WholeVector(attn + "o_norm.weight"));
  YOKE_TRY(w.o_proj, source.Cols(attn + "o_proj.weight", channels));
  return w;
}

Result<MlaWeights> LoadMla(const KimiK3Config& config, const KimiK3Shard& shard,
                           WeightSource& source, const std::string& attn) {
  const Range& heads = shard.mla_heads;
  MlaWeights w;
  YOKE_TRY(w.q_a_proj, source.Whole(attn + "q_a_proj.weight"));
  YOKE_TRY(w.q_a_norm, source.WholeVector(attn + "q_a_layernorm.weight"));
  YOKE_TRY(w.q_b_proj, source.Rows(attn + "q_b_proj.weight",
                                   HeadRows(heads, config.qk_nope_dim + config.qk_rope_dim)));
  YOKE_TRY(w.kv_a_proj, source.Whole(attn + "kv_a_proj_with_mqa.weight"));
  YOKE_TRY(w.kv_a_norm, source.WholeVector(attn + "kv_a_layernorm.weight"));
  YOKE_TRY(w.kv_b_proj, source.Rows(attn + "kv_b_proj.weight",
                                    HeadRows(heads, config.qk_nope_dim + config.v_dim)));
  YOKE_TRY(w.g_proj, source.Rows(attn + "g_proj.weight", HeadRows(heads, config.v_dim)));
  YOKE_TRY(w.o_proj, source.Cols(attn + "o_proj.weight", HeadRows(heads, config.v_dim)));
  return w;
}

Result<FfnWeights> LoadFfn(WeightSource& source, const std::string& ffn, const Range& rows) {
  FfnWeights w;
  YOKE_TRY(w.gate_proj, source.Rows(ffn + "gate_proj.weight", rows));
  YOKE_TRY(w.up_proj, source.Rows(ffn + "up_proj.weight", rows));
  YOKE_TRY(w.down_proj, source.Cols(ffn + "down_proj.weight", rows));
  return w;
}

Result<MoeWeights> LoadMoe(const KimiK3Config& config, const KimiK3Shard& shard,
                           WeightSource& source, const std::string& moe) {
  MoeWeights w;
  YOKE_TRY(w.router, source.RowsAsStored(moe + "gate.weight", shard.router_rows));
  YOKE_TRY(w.correction_bias, source.WholeVector(moe + "gate.e_score_correction_bias"));
  YOKE_TRY(w.latent_down_proj,
           source.Rows(moe + "routed_expert_down_proj.weight", shard.latent_rows));
  const std::string expert = moe + "experts.{}.";
  YOKE_TRY(w.w1, source.ExpertRows(expert + "w1", config.num_experts, shard.expert_ffn));
  YOKE_TRY(w.w3, source.ExpertRows(expert + "w3", config.num_experts, shard.expert_ffn));
  YOKE_TRY(w.w2, source.ExpertCols(expert + "w2", config.num_experts, shard.expert_ffn));
  YOKE_TRY(w.latent_norm, source.WholeVector(moe + "routed_expert_norm.weight"));
  YOKE_TRY(w.latent_up_proj, source.Cols(moe + "routed_expert_up_proj.weight", shard.latent_cols));
  YOKE_TRY(w.shared, LoadFfn(source, moe + "shared_experts.", shard.shared_ffn));
  return w;
}

Result<LayerWeights> LoadLayer(const KimiK3Config& config, const KimiK3Shard& shard,
                               WeightSource& source, size_t layer_idx) {
  const std::string layer = kPrefix + "model.layers." + std::to_string(layer_idx) + ".";
  LayerWeights w;
  YOKE_TRY(w.attn_res, LoadAttnRes(source, layer + "self_attention_res"));
  YOKE_TRY(w.ffn_res, LoadAttnRes(source, layer + "mlp_res"));
  YOKE_TRY(w.attn_norm, source.WholeVector(layer + "input_layernorm.weight"));
  YOKE_TRY(w.ffn_norm, source.WholeVector(layer + "post_attention_layernorm.weight"));
  if (config.layer_kinds[layer_idx] == LayerKind::kKda) {
    YOKE_TRY(w.kda, LoadKda(config, shard, source, layer + "self_attn."));
  } else {
    YOKE_TRY(w.mla, LoadMla(config, shard, source, layer + "self_attn."));
  }
  if (config.IsDense(layer_idx)) {
    YOKE_TRY(w.dense, LoadFfn(source, layer + "mlp.", shard.dense_ffn));
  } else {
    YOKE_TRY(w.moe, LoadMoe(config, shard, source, layer + "block_sparse_moe."));
  }
  return w;
}

}  // namespace

Result<KimiK3Weights> LoadKimiK3Weights(const KimiK3Config& config, const KimiK3Shard& shard,
                                        WeightSource& source) {
  KimiK3Weights w;
  YOKE_TRY(w.embedding, source.RowsAsStored(kPrefix + "model.embed_tokens.weight", shard.vocab));
  for (size_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    YOKE_TRY(LayerWeights layer, LoadLayer(config, shard, source, layer_idx));
    w.layers.push_back(std::move(layer));
  }
  YOKE_TRY(w.output_res, LoadAttnRes(source, kPrefix + "model.output_attn_res"));
  YOKE_TRY(w.output_norm, source.WholeVector(kPrefix + "model.norm.weight"));
  YOKE_TRY(w.lm_head, source.Rows(kPrefix + "lm_head.weight", shard.vocab));
  return w;
}

}  // namespace yoke::model
