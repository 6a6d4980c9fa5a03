#include "model/inventory.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "kernels/backend.h"
#include "tensor/dtype.h"

namespace yoke::model {
namespace {

// Told of one tensor after the other: a full list of Kimi K3's half million is seldom needed.
using Visitor = std::function<void(const TensorSpec&)>;

// Names tensors below a common prefix.
class Lister {
 public:
  Lister(const Visitor& visit, std::string prefix) : visit_(visit), prefix_(std::move(prefix)) {}

  Lister Below(const std::string& part) const { return {visit_, prefix_ + part + "."}; }

  void Add(const std::string& name, std::vector<size_t> shape, TensorRole role,
           FileDType dtype = FileDType::kBf16) const {
    uint64_t num_params = 1;
    for (const size_t dim : shape) num_params *= dim;
    visit_({prefix_ + name, dtype, std::move(shape), role, num_params});
  }
  void Bf16(const std::string& name, std::vector<size_t> shape) const {
    Add(name, std::move(shape), TensorRole::kTrunk);
  }
  void F32(const std::string& name, std::vector<size_t> shape) const {
    Add(name, std::move(shape), TensorRole::kTrunk, FileDType::kF32);
  }
  void Vision(const std::string& name, std::vector<size_t> shape) const {
    Add(name, std::move(shape), TensorRole::kVision);
  }
  // An expert's matrix [rows, cols]: two codes a byte, and a scale for every 32 columns.
  void Mxfp4(const std::string& name, size_t rows, size_t cols) const {
    visit_({prefix_ + name + ".weight_packed",
            FileDType::kU8,
            {rows, cols / 2},
            TensorRole::kExpert,
            uint64_t{rows} * cols});
    visit_({prefix_ + name + ".weight_scale",
            FileDType::kU8,
            {rows, cols / kBlockCols},
            TensorRole::kExpert,
            0});
  }

 private:
  const Visitor& visit_;
  std::string prefix_;
};

void VisitKda(const KimiK3Config& config, const Lister& attn) {
  const size_t dim = config.model_dim;
  const size_t head_dim = config.kda_head_dim;
  const size_t inner = config.kda_num_heads * head_dim;
  for (const char* name : {"q_proj", "k_proj", "v_proj", "g_proj"}) {
    attn.Bf16(std::string(name) + ".weight", {inner, dim});
  }
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    attn.F32(std::string(name) + ".weight", {inner, 1, kernels::kKdaConvTaps});
  }
  attn.Bf16("f_a_proj.weight", {head_dim, dim});
  attn.Bf16("f_b_proj.weight", {inner, head_dim});
  attn.Bf16("b_proj.weight", {config.kda_num_heads, dim});
  // The release pads it with zeros to the head dimension.
  attn.F32("A_log", {std::max(config.kda_num_heads, head_dim)});
  attn.F32("dt_bias", {inner});
  attn.F32("o_norm.weight", {head_dim});
  attn.Bf16("o_proj.weight", {dim, inner});
}

void VisitMla(const KimiK3Config& config, const Lister& attn) {
  const size_t dim = config.model_dim;
  const size_t heads = config.mla_num_heads;
  attn.Bf16("q_a_proj.weight", {config.q_lora_rank, dim});
  attn.Bf16("q_a_layernorm.weight", {config.q_lora_rank});
  attn.Bf16("q_b_proj.weight",
            {heads * (config.qk_nope_dim + config.qk_rope_dim), config.q_lora_rank});
  attn.Bf16("kv_a_proj_with_mqa.weight", {config.kv_lora_rank + config.qk_rope_dim, dim});
  attn.Bf16("kv_a_layernorm.weight", {config.kv_lora_rank});
  attn.Bf16("kv_b_proj.weight", {heads * (config.qk_nope_dim + config.v_dim), config.kv_lora_rank});
  attn.Bf16("g_proj.weight", {heads * config.v_dim, dim});
  attn.Bf16("o_proj.weight", {dim, heads * config.v_dim});
}

void VisitFfn(const Lister& ffn, size_t model_dim, size_t ffn_dim) {
  ffn.Bf16("gate_proj.weight", {ffn_dim, model_dim});
  ffn.Bf16("up_proj.weight", {ffn_dim, model_dim});
  ffn.Bf16("down_proj.weight", {model_dim, ffn_dim});
}

void VisitMoe(const KimiK3Config& config, const Lister& moe) {
  const size_t dim = config.model_dim;
  const size_t latent = config.latent_dim;
  moe.Bf16("gate.weight", {config.num_experts, dim});
  moe.F32("gate.e_score_correction_bias", {config.num_experts});
  moe.Bf16("routed_expert_down_proj.weight", {latent, dim});
  moe.Bf16("routed_expert_norm.weight", {latent});
  moe.Bf16("routed_expert_up_proj.weight", {dim, latent});
  VisitFfn(moe.Below("shared_experts"), dim, config.SharedFfnDim());
  for (size_t e = 0; e < config.num_experts; ++e) {
    const Lister expert = moe.Below("experts." + std::to_string(e));
    expert.Mxfp4("w1", config.expert_ffn_dim, latent);
    expert.Mxfp4("w3", config.expert_ffn_dim, latent);
    expert.Mxfp4("w2", latent, config.expert_ffn_dim);
  }
}

void VisitLayer(const KimiK3Config& config, size_t layer_idx, const Lister& layer) {
  const size_t dim = config.model_dim;
  for (const char* name :
       {"input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"}) {
    layer.Bf16(std::string(name) + ".weight", {dim});
  }
  layer.Bf16("self_attention_res_proj.weight", {1, dim});
  layer.Bf16("mlp_res_proj.weight", {1, dim});
  const Lister attn = layer.Below("self_attn");
  if (config.layer_kinds[layer_idx] == LayerKind::kKda) {
    VisitKda(config, attn);
  } else {
    VisitMla(config, attn);
  }
  if (config.IsDense(layer_idx)) {
    VisitFfn(layer.Below("mlp"), dim, config.dense_ffn_dim);
  } else {
    VisitMoe(config, layer.Below("block_sparse_moe"));
  }
}

void VisitText(const KimiK3Config& config, const Visitor& visit) {
  const size_t dim = config.model_dim;
  const Lister language_model(visit, "language_model.");
  const Lister model = language_model.Below("model");
  model.Add("embed_tokens.weight", {config.vocab_size, dim}, TensorRole::kEmbedding);
  for (size_t i = 0; i < config.num_layers; ++i) {
    VisitLayer(config, i, model.Below("layers." + std::to_string(i)));
  }
  model.Bf16("output_attn_res_norm.weight", {dim});
  model.Bf16("output_attn_res_proj.weight", {1, dim});
  model.Bf16("norm.weight", {dim});
  language_model.Bf16("lm_head.weight", {config.vocab_size, dim});
}

void VisitVision(const KimiK3Config& config, const Visitor& visit) {
  if (!config.has_vision) return;
  const size_t dim = config.vision_dim;
  const size_t merged = dim * config.vision_merge * config.vision_merge;
  const Lister tower(visit, "vision_tower.");
  tower.Vision("patch_embed.proj.weight", {dim, 3, config.vision_patch, config.vision_patch});
  tower.Vision("patch_embed.pos_emb.weight", {config.vision_pos_grid, config.vision_pos_grid, dim});
  for (size_t i = 0; i < config.vision_layers; ++i) {
    const Lister block = tower.Below("encoder.blocks." + std::to_string(i));
    block.Vision("norm0.weight", {dim});
    block.Vision("norm1.weight", {dim});
    block.Vision("wqkv.weight", {3 * config.vision_qkv_dim, dim});
    block.Vision("wo.weight", {dim, config.vision_qkv_dim});
    block.Vision("mlp.fc0.weight", {config.vision_ffn_dim, dim});
    block.Vision("mlp.fc1.weight", {dim, config.vision_ffn_dim});
  }
  tower.Vision("encoder.final_layernorm.weight", {dim});
  const Lister projector(visit, "mm_projector.");
  projector.Vision("proj.0.weight", {merged, merged});
  projector.Vision("proj.2.weight", {config.model_dim, merged});
  projector.Vision("post_norm.weight", {config.model_dim});
}

uint64_t SpecBytes(const TensorSpec& spec) {
  uint64_t num_bytes = BytesPerElement(spec.dtype);
  for (const size_t dim : spec.shape) num_bytes *= dim;
  return num_bytes;
}

bool ShapeFits(const TensorSpec& spec, const FileTensor& tensor, const KimiK3Config& config) {
  if (spec.name.ends_with(".A_log")) {
    return tensor.shape.size() == 1 && tensor.shape[0] >= config.kda_num_heads;
  }
  return tensor.shape == spec.shape;
}

}  // namespace

std::vector<TensorSpec> ListTensors(const KimiK3Config& config, bool with_vision) {
  std::vector<TensorSpec> specs;
  const Visitor append = [&specs](const TensorSpec& spec) { specs.push_back(spec); };
  VisitText(config, append);
  if (with_vision) VisitVision(config, append);
  return specs;
}

ModelCounts CountModel(const KimiK3Config& config) {
  ModelCounts counts;
  uint64_t trunk_params = 0;
  uint64_t trunk_bytes = 0;
  uint64_t expert_params = 0;
  uint64_t expert_bytes = 0;
  VisitText(config, [&](const TensorSpec& spec) {
    ++counts.num_tensors;
    counts.params_total += spec.num_params;
    if (spec.role == TensorRole::kTrunk) {
      trunk_params += spec.num_params;
      trunk_bytes += SpecBytes(spec);
    } else if (spec.role == TensorRole::kExpert) {
      expert_params += spec.num_params;
      expert_bytes += SpecBytes(spec);
    }
  });
  VisitVision(config, [&counts](const TensorSpec&) { ++counts.num_vision_tensors; });
  counts.num_tensors += counts.num_vision_tensors;
  // All experts are of one size, so the divisions are exact.
  const auto active = [&config](uint64_t of_all_experts) {
    return of_all_experts / config.num_experts * config.experts_per_token;
  };
  counts.params_active = trunk_params + active(expert_params);
  counts.expert_bytes_per_token = active(expert_bytes);
  counts.bytes_per_token = trunk_bytes + counts.expert_bytes_per_token;
  return counts;
}

Status CheckInventory(const Checkpoint& checkpoint, const KimiK3Config& config) {
  const auto error = [&checkpoint](const std::string& what) {
    return Error(ErrorCode::kCorrupt, checkpoint.folder() + ": " + what);
  };
  std::optional<Error> first;
  std::unordered_set<const FileTensor*> known;
  VisitText(config, [&](const TensorSpec& spec) {
    if (first) return;
    const std::string expected = "expected " + Describe(ToString(spec.dtype), spec.shape);
    const FileTensor* const tensor = checkpoint.Find(spec.name);
    if (tensor == nullptr) {
      first = error("tensor " + spec.name + " is missing: " + expected);
    } else if (tensor->dtype != spec.dtype || !ShapeFits(spec, *tensor, config)) {
      first = error("tensor " + spec.name + ": " + expected + ", got " +
                    Describe(tensor->dtype_name, tensor->shape));
    }
    known.insert(tensor);
  });
  if (first) return *std::move(first);
  // The vision tower is not loaded, so only its names matter.
  VisitVision(config, [&](const TensorSpec& spec) { known.insert(checkpoint.Find(spec.name)); });
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!known.contains(&tensor)) {
      return error("tensor " + name + " (" + Describe(tensor.dtype_name, tensor.shape) +
                   ") is extra: a Kimi K3 model of this configuration has none of that name");
    }
  }
  return Ok{};
}

}  // namespace yoke::model
