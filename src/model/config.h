// Kimi K3's config.json as typed fields. Every field that changes the arithmetic is required.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace yoke::model {

enum class LayerKind { kKda, kMla };

struct KimiK3Config {
  size_t model_dim = 0;  // hidden_size
  size_t num_layers = 0;
  size_t vocab_size = 0;
  size_t context_max = 0;  // max_position_embeddings
  float norm_eps = 0;      // rms_norm_eps
  // Of MLA's q_a and kv_a norms. The released code builds these two without an epsilon, so they
  // have its default of 1e-6 whatever rms_norm_eps says; converters to other formats (GGUF) fold
  // them into rms_norm_eps. "latent_norm_eps" in text_config, which the release does not have,
  // overrides it.
  float latent_norm_eps = 1e-6f;
  float l2_eps = 1e-6f;  // of q and k in KDA; a constant of the released code

  std::vector<LayerKind> layer_kinds;  // [num_layers]
  size_t attn_res_block = 0;           // a bank row is pushed at layers 0, block, 2 block, ...

  size_t kda_num_heads = 0;
  size_t kda_head_dim = 0;
  float kda_gate_lower_bound = 0;

  size_t mla_num_heads = 0;
  size_t q_lora_rank = 0;
  size_t kv_lora_rank = 0;
  size_t qk_nope_dim = 0;
  size_t qk_rope_dim = 0;
  size_t v_dim = 0;

  size_t dense_ffn_dim = 0;     // intermediate_size, of the first num_dense_layers layers
  size_t num_dense_layers = 0;  // first_k_dense_replace
  size_t num_experts = 0;
  size_t experts_per_token = 0;
  size_t num_shared_experts = 0;
  size_t expert_ffn_dim = 0;  // moe_intermediate_size
  size_t latent_dim = 0;      // routed_expert_hidden_size
  bool renormalize = true;    // moe_renormalize
  float routed_scale = 1;     // routed_scaling_factor
  float situ_beta = 0;
  float situ_linear_beta = 0;

  std::vector<int> eos_tokens;  // any of them ends a text
  bool has_vision = false;      // a vision_config is there
  // Of the vision tower, for counting tensors only.
  size_t vision_dim = 0, vision_layers = 0, vision_ffn_dim = 0, vision_patch = 0, vision_merge = 0;
  size_t vision_num_heads = 0;
  size_t vision_qkv_dim = 0;    // of each of q, k and v: 12 heads of 128, not vision_dim
  size_t vision_pos_grid = 64;  // rows and columns of the learned position grid

  bool IsDense(size_t layer_idx) const { return layer_idx < num_dense_layers; }
  size_t NumBankRows() const { return (num_layers + attn_res_block - 1) / attn_res_block; }
  size_t SharedFfnDim() const { return num_shared_experts * expert_ffn_dim; }
  size_t NumLayers(LayerKind kind) const;
};

// Parses the text of a config.json. An architecture other than Kimi K3, a missing key, a key whose
// value we do not implement (another activation, RoPE in MLA, expert groups, ...) and sizes that
// contradict each other are errors that name the key.
Result<KimiK3Config> ParseKimiK3Config(std::string_view text);

}  // namespace yoke::model
