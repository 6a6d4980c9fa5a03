#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "model/limits.h"
#include "tensor/dtype.h"

namespace yoke::model {
namespace {

constexpr const char* kArchitecture = "KimiK3ForConditionalGeneration";

// The forget gate's bound: a chunk of 16 steps spans at most 16 times this many nats, and half of
// that must stay within the exponents of f32.
constexpr double kGateLowerBoundMin = -10;

std::string Shown(const Json* value) {
  if (value == nullptr) return "no such key";
  std::string text = DumpJson(*value);
  if (text.size() > 60) text.replace(57, std::string::npos, "...");
  return text;
}

// Reads the members of one object of config.json. It keeps the first error and answers with zeros
// from then on, so that the reading code is a list of fields.
class Section {
 public:
  // path: where the object stands, as it is put in front of errors.
  Section(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  size_t Size(std::string_view key, size_t max) { return SizeFrom(key, 1, max); }
  size_t SizeFrom(std::string_view key, size_t min, size_t max) {
    return static_cast<size_t>(Take(
        JsonInt(object_, key, static_cast<int64_t>(min), static_cast<int64_t>(max)), int64_t{0}));
  }
  // A number in (0, max].
  float Positive(std::string_view key, double max) {
    const double value = Take(JsonNumber(object_, key), 1.0);
    // The comparison as float also refuses what would round to zero.
    if (!(static_cast<float>(value) > 0) || value > max) {
      Fail(ErrorCode::kInvalidArgument, key, "a number above 0 and at most " + DumpJson(max));
    }
    return static_cast<float>(value);
  }
  float Number(std::string_view key) {
    return static_cast<float>(Take(JsonNumber(object_, key), 0.0));
  }
  bool Bool(std::string_view key) { return Take(JsonBool(object_, key), false); }
  std::vector<int64_t> Ints(std::string_view key) { return Take(JsonInts(object_, key), {}); }

  // The one value that this engine implements.
  void MustBe(std::string_view key, const Json& value) {
    const Json* const member = JsonFind(object_, key);
    if (member == nullptr || *member != value) {
      const bool absent = member == nullptr;
      Fail(absent ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported, key, DumpJson(value));
    }
  }
  void MustBeIfThere(std::string_view key, const Json& value) {
    if (JsonFind(object_, key) != nullptr) MustBe(key, value);
  }

  bool Has(std::string_view key) const { return JsonFind(object_, key) != nullptr; }
  // The member `key`, which must be an object.
  Result<Section> Sub(std::string_view key) const {
    auto member = JsonObject(object_, key);
    if (!member) return InPath(std::move(member).error());
    return Section(*member.value(),
                   path_.empty() ? std::string(key) : path_ + "." + std::string(key));
  }
  // Sets the error of a member that has the right type but a wrong value.
  void Fail(ErrorCode code, std::string_view key, const std::string& expected) {
    SetError(Error(code, "key \"" + std::string(key) + "\": expected " + expected + ", got " +
                             Shown(JsonFind(object_, key))));
  }
  // The first error, or Ok.
  Status Finish() const {
    if (error_) return *error_;
    return Ok{};
  }
  const Json& object() const { return object_; }

 private:
  Error InPath(Error error) const {
    return path_.empty() ? std::move(error) : std::move(error).Wrap(path_);
  }
  void SetError(Error error) {
    if (!error_) error_ = InPath(std::move(error));
  }
  template <typename T>
  T Take(Result<T> result, T otherwise) {
    if (result) return std::move(result).value();
    SetError(std::move(result).error());
    return otherwise;
  }

  const Json& object_;
  std::string path_;
  std::optional<Error> error_;
};

Status CheckArchitecture(const Json& root) {
  const Json* const names = JsonFind(root, "architectures");
  const Json* const type = JsonFind(root, "model_type");
  const bool is_k3 = names != nullptr && names->is_array() &&
                     std::find(names->begin(), names->end(), Json(kArchitecture)) != names->end();
  if (is_k3 && type != nullptr && *type == "kimi_k3") return Ok{};
  return Error(ErrorCode::kUnsupported, "unknown architecture: expected \"architectures\": [\"" +
                                            std::string(kArchitecture) +
                                            "\"] and \"model_type\": \"kimi_k3\" (supported: "
                                            "Kimi K3), got " +
                                            Shown(names) + " and " + Shown(type));
}

// Every group of weights must be in the layout that the experts are read in.
Status CheckQuantization(const Section& root, const Section& text) {
  // The release has it in text_config; other exports have it at the top.
  constexpr std::string_view kKey = "quantization_config";
  YOKE_TRY(Section section, root.Has(kKey) ? root.Sub(kKey) : text.Sub(kKey));
  section.MustBe("quant_method", "compressed-tensors");
  section.MustBe("format", "mxfp4-pack-quantized");
  YOKE_RETURN_IF_ERROR(section.Finish());
  YOKE_TRY(const Section groups, section.Sub("config_groups"));
  for (const auto& [name, unused] : groups.object().items()) {
    YOKE_TRY(const Section group, groups.Sub(name));
    YOKE_TRY(Section weights, group.Sub("weights"));
    weights.MustBe("num_bits", 4);
    weights.MustBe("type", "float");
    weights.MustBe("symmetric", true);
    weights.MustBe("strategy", "group");
    weights.MustBe("group_size", kBlockCols);
    YOKE_RETURN_IF_ERROR(weights.Finish());
  }
  return Ok{};
}

// Values that stand for code paths that we do not have.
void CheckVariant(Section& text) {
  text.MustBe("model_type", "kimi_linear");
  text.MustBe("hidden_act", "situ");
  text.MustBe("mla_use_nope", true);
  text.MustBe("mla_use_output_gate", true);
  text.MustBe("latent_moe_use_norm", true);
  text.MustBe("moe_layer_freq", 1);
  text.MustBe("moe_router_activation_func", "sigmoid");
  text.MustBeIfThere("topk_method", "noaux_tc");
  text.MustBe("num_expert_group", 1);
  text.MustBeIfThere("topk_group", 1);
  text.MustBeIfThere("num_nextn_predict_layers", 0);
  text.MustBeIfThere("tie_word_embeddings", false);
}

void ReadModel(Section& text, KimiK3Config& config) {
  config.model_dim = text.Size("hidden_size", kModelDimMax);
  config.num_layers = text.Size("num_hidden_layers", kLayersMax);
  config.vocab_size = text.Size("vocab_size", kVocabMax);
  config.context_max = text.Size("max_position_embeddings", kContextMax);
  config.norm_eps = text.Positive("rms_norm_eps", 1);
  if (text.Has("latent_norm_eps")) config.latent_norm_eps = text.Positive("latent_norm_eps", 1);
  config.attn_res_block = text.Size("attn_res_block_size", kLayersMax);
}

void ReadMla(Section& text, KimiK3Config& config) {
  config.mla_num_heads = text.Size("num_attention_heads", kHeadsMax);
  // Keys and values come from one latent for all heads, so there is nothing to share between them.
  text.MustBe("num_key_value_heads", config.mla_num_heads);
  config.q_lora_rank = text.Size("q_lora_rank", kLoraRankMax);
  config.kv_lora_rank = text.Size("kv_lora_rank", kLoraRankMax);
  config.qk_nope_dim = text.Size("qk_nope_head_dim", kHeadDimMax);
  config.qk_rope_dim = text.Size("qk_rope_head_dim", kHeadDimMax);
  config.v_dim = text.Size("v_head_dim", kHeadDimMax);
}

void ReadFfn(Section& text, KimiK3Config& config) {
  config.dense_ffn_dim = text.Size("intermediate_size", kFfnDimMax);
  config.num_dense_layers = text.SizeFrom("first_k_dense_replace", 0, kLayersMax);
  config.num_experts = text.Size("num_experts", kExpertsMax);
  config.experts_per_token = text.Size("num_experts_per_token", kExpertsMax);
  config.num_shared_experts = text.Size("num_shared_experts", kSharedExpertsMax);
  config.expert_ffn_dim = text.Size("moe_intermediate_size", kExpertFfnDimMax);
  config.latent_dim = text.Size("routed_expert_hidden_size", kModelDimMax);
  config.renormalize = text.Bool("moe_renormalize");
  config.routed_scale = text.Positive("routed_scaling_factor", 1e6);
  config.situ_beta = text.Positive("activation_situ_beta", 1e6);
  config.situ_linear_beta = text.Positive("activation_situ_linear_beta", 1e6);
}

// Sizes that contradict each other.
void CheckSizes(Section& text, const KimiK3Config& config) {
  if (config.num_dense_layers > config.num_layers) {
    text.Fail(ErrorCode::kInvalidArgument, "first_k_dense_replace",
              "at most num_hidden_layers = " + std::to_string(config.num_layers));
  }
  if (config.experts_per_token > config.num_experts) {
    text.Fail(ErrorCode::kInvalidArgument, "num_experts_per_token",
              "at most num_experts = " + std::to_string(config.num_experts));
  }
  if (config.num_layers * config.num_experts > kLayersTimesExpertsMax) {
    text.Fail(ErrorCode::kInvalidArgument, "num_experts",
              "at most " + std::to_string(kLayersTimesExpertsMax) + " experts in all " +
                  std::to_string(config.num_layers) + " layers");
  }
  const std::string multiple = "a multiple of " + std::to_string(kBlockCols) + " (MXFP4 groups)";
  if (config.expert_ffn_dim % kBlockCols != 0) {
    text.Fail(ErrorCode::kInvalidArgument, "moe_intermediate_size", multiple);
  }
  if (config.latent_dim % kBlockCols != 0) {
    text.Fail(ErrorCode::kInvalidArgument, "routed_expert_hidden_size", multiple);
  }
}

Status ReadKda(Section& linear, KimiK3Config& config) {
  config.kda_num_heads = linear.Size("num_heads", kHeadsMax);
  config.kda_head_dim = linear.Size("head_dim", kHeadDimMax);
  linear.MustBe("short_conv_kernel_size", 4);
  linear.MustBe("use_full_rank_gate", true);
  // Without it other engines silently choose the gate of Kimi Linear, another function.
  config.kda_gate_lower_bound = linear.Number("gate_lower_bound");
  if (!(config.kda_gate_lower_bound >= kGateLowerBoundMin && config.kda_gate_lower_bound < 0)) {
    linear.Fail(ErrorCode::kInvalidArgument, "gate_lower_bound",
                "a number from " + DumpJson(kGateLowerBoundMin) + " to below 0");
  }
  return linear.Finish();
}

// The lists count layers from 1; together they must name each layer once.
Status ReadLayerKinds(Section& linear, KimiK3Config& config) {
  std::vector<std::optional<LayerKind>> kinds(config.num_layers);
  const auto error = [](int64_t layer, const std::string& what) {
    return Error(ErrorCode::kInvalidArgument,
                 "text_config.linear_attn_config: layer " + std::to_string(layer) + what);
  };
  const std::pair<const char*, LayerKind> lists[] = {{"full_attn_layers", LayerKind::kMla},
                                                     {"kda_layers", LayerKind::kKda}};
  for (const auto& [key, kind] : lists) {
    const std::vector<int64_t> layers = linear.Ints(key);
    YOKE_RETURN_IF_ERROR(linear.Finish());
    for (const int64_t layer : layers) {
      if (layer < 1 || layer > static_cast<int64_t>(config.num_layers)) {
        return error(layer, " in " + std::string(key) + ": expected layers 1 to " +
                                std::to_string(config.num_layers));
      }
      std::optional<LayerKind>& slot = kinds[static_cast<size_t>(layer - 1)];
      if (slot) return error(layer, " occurs twice in full_attn_layers and kda_layers together");
      slot = kind;
    }
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (!kinds[i]) {
      return error(static_cast<int64_t>(i + 1), " is in neither full_attn_layers nor kda_layers");
    }
    config.layer_kinds.push_back(*kinds[i]);
  }
  return Ok{};
}

Status ReadEosTokens(const Json& root, KimiK3Config& config) {
  constexpr std::string_view kKey = "eos_token_id";
  const Json* const member = JsonFind(root, kKey);
  if (member != nullptr && member->is_array()) {
    YOKE_TRY(const std::vector<int64_t> ids, JsonInts(root, kKey));
    for (const int64_t id : ids) {
      if (id < 0 || id >= static_cast<int64_t>(config.vocab_size)) {
        return Error(ErrorCode::kInvalidArgument,
                     "key \"eos_token_id\": expected ids below vocab_size = " +
                         std::to_string(config.vocab_size) + ", got " + std::to_string(id));
      }
      config.eos_tokens.push_back(static_cast<int>(id));
    }
    if (!ids.empty()) return Ok{};
    return Error(ErrorCode::kInvalidArgument,
                 "key \"eos_token_id\": expected at least one id, got an empty list");
  }
  YOKE_TRY(const int64_t id, JsonInt(root, kKey, 0, static_cast<int64_t>(config.vocab_size) - 1));
  config.eos_tokens.push_back(static_cast<int>(id));
  return Ok{};
}

// The release names these sizes vt_hidden_size, ...; other exports drop the prefix.
Status ReadVision(const Section& root, KimiK3Config& config) {
  if (!root.Has("vision_config")) return Ok{};
  YOKE_TRY(Section vision, root.Sub("vision_config"));
  const auto size = [&vision](const std::string& key, size_t max) {
    return vision.Size(vision.Has("vt_" + key) ? "vt_" + key : key, max);
  };
  config.has_vision = true;
  config.vision_dim = size("hidden_size", kModelDimMax);
  config.vision_layers = size("num_hidden_layers", kLayersMax);
  config.vision_num_heads = size("num_attention_heads", kHeadsMax);
  config.vision_ffn_dim = size("intermediate_size", kFfnDimMax);
  config.vision_patch = vision.Size("patch_size", 1024);
  config.vision_qkv_dim = vision.Has("qkv_hidden_size")
                              ? vision.Size("qkv_hidden_size", kModelDimMax)
                              : config.vision_num_heads * 128;
  if (vision.Has("init_pos_emb_height")) {
    config.vision_pos_grid = vision.Size("init_pos_emb_height", 4096);
    vision.MustBe("init_pos_emb_width", config.vision_pos_grid);
  }
  const std::vector<int64_t> merge = vision.Ints("merge_kernel_size");
  if (merge.size() != 2 || merge[0] != merge[1] || merge[0] < 1 || merge[0] > 16) {
    vision.Fail(ErrorCode::kInvalidArgument, "merge_kernel_size", "two equal sizes from 1 to 16");
    return vision.Finish();
  }
  config.vision_merge = static_cast<size_t>(merge[0]);
  return vision.Finish();
}

}  // namespace

size_t KimiK3Config::NumLayers(LayerKind kind) const {
  return static_cast<size_t>(std::count(layer_kinds.begin(), layer_kinds.end(), kind));
}

Result<KimiK3Config> ParseKimiK3Config(std::string_view text) {
  YOKE_TRY(const Json json, ParseJson(text, kConfigBytesMax));
  YOKE_RETURN_IF_ERROR(CheckArchitecture(json));
  Section root(json, "");
  root.MustBeIfThere("tie_word_embeddings", false);
  YOKE_RETURN_IF_ERROR(root.Finish());

  KimiK3Config config;
  YOKE_TRY(Section text_config, root.Sub("text_config"));
  CheckVariant(text_config);
  ReadModel(text_config, config);
  ReadMla(text_config, config);
  ReadFfn(text_config, config);
  CheckSizes(text_config, config);
  YOKE_RETURN_IF_ERROR(text_config.Finish());

  YOKE_TRY(Section linear, text_config.Sub("linear_attn_config"));
  YOKE_RETURN_IF_ERROR(ReadKda(linear, config));
  YOKE_RETURN_IF_ERROR(ReadLayerKinds(linear, config));
  YOKE_RETURN_IF_ERROR(CheckQuantization(root, text_config));
  YOKE_RETURN_IF_ERROR(ReadEosTokens(json, config));
  YOKE_RETURN_IF_ERROR(ReadVision(root, config));
  return config;
}

}  // namespace yoke::model
