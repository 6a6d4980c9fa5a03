#include "model/config.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_fixture.h"

namespace yoke::model {
namespace {

Result<KimiK3Config> Parse(const Json& json) {
  return ParseKimiK3Config(DumpJson(json));
}

TEST(ConfigTest, ReadsTheReleasedConfiguration) {
  const KimiK3Config config = Parse(ReleasedConfig()).value();
  EXPECT_EQ(config.model_dim, 7168U);
  EXPECT_EQ(config.num_layers, 93U);
  EXPECT_EQ(config.vocab_size, 163840U);
  EXPECT_EQ(config.context_max, 1048576U);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.latent_norm_eps, 1e-6f);
  EXPECT_EQ(config.l2_eps, 1e-6f);
  EXPECT_EQ(config.attn_res_block, 12U);
  EXPECT_EQ(config.kda_num_heads, 96U);
  EXPECT_EQ(config.kda_head_dim, 128U);
  EXPECT_EQ(config.kda_gate_lower_bound, -5.0f);
  EXPECT_EQ(config.mla_num_heads, 96U);
  EXPECT_EQ(config.q_lora_rank, 1536U);
  EXPECT_EQ(config.kv_lora_rank, 512U);
  EXPECT_EQ(config.qk_nope_dim, 128U);
  EXPECT_EQ(config.qk_rope_dim, 64U);
  EXPECT_EQ(config.v_dim, 128U);
  EXPECT_EQ(config.dense_ffn_dim, 33792U);
  EXPECT_EQ(config.num_dense_layers, 1U);
  EXPECT_EQ(config.num_experts, 896U);
  EXPECT_EQ(config.experts_per_token, 16U);
  EXPECT_EQ(config.num_shared_experts, 2U);
  EXPECT_EQ(config.expert_ffn_dim, 3072U);
  EXPECT_EQ(config.latent_dim, 3584U);
  EXPECT_TRUE(config.renormalize);
  EXPECT_EQ(config.routed_scale, 1.0f);
  EXPECT_EQ(config.situ_beta, 4.0f);
  EXPECT_EQ(config.situ_linear_beta, 25.0f);
  EXPECT_EQ(config.eos_tokens, std::vector<int>{163586});
  EXPECT_TRUE(config.has_vision);
}

TEST(ConfigTest, DerivesTheLayerPlan) {
  const KimiK3Config config = Parse(ReleasedConfig()).value();
  ASSERT_EQ(config.layer_kinds.size(), 93U);
  for (size_t i = 0; i < 93; ++i) {
    const bool mla = i % 4 == 3 || i == 92;
    EXPECT_EQ(config.layer_kinds[i], mla ? LayerKind::kMla : LayerKind::kKda) << i;
  }
  EXPECT_EQ(config.NumLayers(LayerKind::kKda), 69U);
  EXPECT_EQ(config.NumLayers(LayerKind::kMla), 24U);
  EXPECT_TRUE(config.IsDense(0));
  EXPECT_FALSE(config.IsDense(1));
  EXPECT_EQ(config.NumBankRows(), 8U);
  EXPECT_EQ(config.SharedFfnDim(), 6144U);
}

TEST(ConfigTest, TakesOtherSpellingsOfOptionalParts) {
  Json json = ReleasedConfig();
  // Where and how the release has these, as against the copy in tests/data.
  json["text_config"]["quantization_config"] = json["quantization_config"];
  json.erase("quantization_config");
  json["vision_config"] = {
      {"vt_hidden_size", 1024},       {"vt_num_hidden_layers", 27}, {"vt_num_attention_heads", 12},
      {"vt_intermediate_size", 4096}, {"qkv_hidden_size", 1536},    {"patch_size", 14},
      {"init_pos_emb_height", 64},    {"init_pos_emb_width", 64},   {"merge_kernel_size", {2, 2}}};
  json["eos_token_id"] = {163586, 163585};
  json["text_config"]["latent_norm_eps"] = 1e-5;
  json["text_config"].erase("topk_method");
  const KimiK3Config config = Parse(json).value();
  EXPECT_EQ(config.eos_tokens, (std::vector<int>{163586, 163585}));
  EXPECT_EQ(config.latent_norm_eps, 1e-5f);
  EXPECT_EQ(config.vision_dim, 1024U);
  EXPECT_EQ(config.vision_qkv_dim, 1536U);

  json.erase("vision_config");
  EXPECT_FALSE(Parse(json).value().has_vision);
}

struct Change {
  const char* path;     // JSON pointer
  const char* value;    // JSON, or nullptr to remove the member
  const char* message;  // the whole message, without what stands in front of the key's name
};

std::string ErrorAfter(const Change& change) {
  Json json = ReleasedConfig();
  const Json::json_pointer pointer(change.path);
  if (change.value == nullptr) {
    json.at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    json[pointer] = ParseJson(change.value, 1000).value();
  }
  const auto config = Parse(json);
  return config ? "no error" : config.error().message();
}

TEST(ConfigTest, RefusesWhatItDoesNotImplement) {
  const Change changes[] = {
      {"/text_config/model_type", "\"kimi_k2\"", "expected \"kimi_linear\", got \"kimi_k2\""},
      {"/text_config/hidden_act", "\"silu\"", "expected \"situ\", got \"silu\""},
      {"/text_config/mla_use_nope", "false", "expected true, got false"},
      {"/text_config/mla_use_output_gate", "false", "expected true, got false"},
      {"/text_config/num_expert_group", "8", "expected 1, got 8"},
      {"/text_config/topk_group", "4", "expected 1, got 4"},
      {"/text_config/topk_method", "\"greedy\"", "expected \"noaux_tc\", got \"greedy\""},
      {"/text_config/moe_router_activation_func", "\"softmax\"",
       "expected \"sigmoid\", got \"softmax\""},
      {"/text_config/moe_layer_freq", "2", "expected 1, got 2"},
      {"/text_config/latent_moe_use_norm", "false", "expected true, got false"},
      {"/text_config/tie_word_embeddings", "true", "expected false, got true"},
      {"/text_config/num_nextn_predict_layers", "1", "expected 0, got 1"},
      {"/text_config/num_key_value_heads", "8", "expected 96, got 8"},
      {"/tie_word_embeddings", "true", "expected false, got true"},
      {"/text_config/linear_attn_config/use_full_rank_gate", "false", "expected true, got false"},
      {"/text_config/linear_attn_config/short_conv_kernel_size", "3", "expected 4, got 3"},
      {"/quantization_config/quant_method", "\"fp8\"",
       "expected \"compressed-tensors\", got \"fp8\""},
      {"/quantization_config/format", "\"pack-quantized\"",
       "expected \"mxfp4-pack-quantized\", got \"pack-quantized\""},
      {"/quantization_config/config_groups/group_0/weights/group_size", "16",
       "expected 32, got 16"},
      {"/quantization_config/config_groups/group_0/weights/num_bits", "8", "expected 4, got 8"},
      {"/quantization_config/config_groups/group_0/weights/type", "\"int\"",
       "expected \"float\", got \"int\""},
  };
  for (const Change& change : changes) {
    const std::string error = ErrorAfter(change);
    const std::string key(Json::json_pointer(change.path).back());
    const std::string message = "key \"" + key + "\": " + change.message;
    EXPECT_TRUE(error.ends_with(message)) << error << "\nexpected: " << message;
  }
}

TEST(ConfigTest, NamesTheSectionOfAKey) {
  EXPECT_EQ(ErrorAfter({"/text_config/hidden_act", "\"silu\"", ""}),
            "text_config: key \"hidden_act\": expected \"situ\", got \"silu\"");
  EXPECT_EQ(ErrorAfter({"/text_config/linear_attn_config/short_conv_kernel_size", "[3]", ""}),
            "text_config.linear_attn_config: key \"short_conv_kernel_size\": expected 4, got [3]");
  EXPECT_EQ(ErrorAfter({"/quantization_config/config_groups/group_0/weights/strategy", "1", ""}),
            "quantization_config.config_groups.group_0.weights: key \"strategy\": expected "
            "\"group\", got 1");
}

TEST(ConfigTest, RequiresEveryKeyThatChangesTheArithmetic) {
  const char* const text_keys[] = {"model_type",
                                   "vocab_size",
                                   "hidden_size",
                                   "num_hidden_layers",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   "intermediate_size",
                                   "hidden_act",
                                   "activation_situ_beta",
                                   "activation_situ_linear_beta",
                                   "rms_norm_eps",
                                   "attn_res_block_size",
                                   "q_lora_rank",
                                   "kv_lora_rank",
                                   "qk_nope_head_dim",
                                   "qk_rope_head_dim",
                                   "v_head_dim",
                                   "mla_use_nope",
                                   "mla_use_output_gate",
                                   "num_experts",
                                   "num_experts_per_token",
                                   "num_shared_experts",
                                   "moe_intermediate_size",
                                   "routed_expert_hidden_size",
                                   "latent_moe_use_norm",
                                   "first_k_dense_replace",
                                   "moe_layer_freq",
                                   "moe_renormalize",
                                   "moe_router_activation_func",
                                   "num_expert_group",
                                   "routed_scaling_factor",
                                   "max_position_embeddings",
                                   "linear_attn_config"};
  const char* const linear_keys[] = {
      "num_heads",          "head_dim",         "short_conv_kernel_size",
      "use_full_rank_gate", "gate_lower_bound", "full_attn_layers",
      "kda_layers"};
  std::vector<std::string> paths = {"/architectures",
                                    "/model_type",
                                    "/text_config",
                                    "/eos_token_id",
                                    "/quantization_config",
                                    "/quantization_config/config_groups",
                                    "/vision_config/patch_size",
                                    "/vision_config/merge_kernel_size"};
  for (const char* key : text_keys) paths.push_back(std::string("/text_config/") + key);
  for (const char* key : linear_keys) {
    paths.push_back(std::string("/text_config/linear_attn_config/") + key);
  }
  for (const std::string& path : paths) {
    const std::string error = ErrorAfter({path.c_str(), nullptr, ""});
    const std::string key(Json::json_pointer(path).back());
    EXPECT_NE(error.find("\"" + key + "\""), std::string::npos) << path << ": " << error;
    EXPECT_NE(error.find("no such key"), std::string::npos) << path << ": " << error;
  }
}

TEST(ConfigTest, NamesWhatIsSupportedForOtherModels) {
  for (const Change& change :
       {Change{"/architectures", "[\"LlamaForCausalLM\"]", "Llama"},
        Change{"/model_type", "\"kimi_k2\"", "kimi_k2"},
        Change{"/architectures", "\"KimiK3ForConditionalGeneration\"", "got"}}) {
    Json json = ReleasedConfig();
    json[Json::json_pointer(change.path)] = ParseJson(change.value, 100).value();
    const auto config = Parse(json);
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code(), ErrorCode::kUnsupported);
    const std::string& error = config.error().message();
    EXPECT_NE(error.find("supported: Kimi K3"), std::string::npos) << error;
    EXPECT_NE(error.find(change.message), std::string::npos) << error;
  }
}

TEST(ConfigTest, RefusesSizesThatAreAbsurdOrContradictory) {
  const Change changes[] = {
      {"/text_config/hidden_size", "0", "from 1 to 131072, got 0"},
      {"/text_config/hidden_size", "7168.5", "got 7168.5"},
      {"/text_config/hidden_size", "\"7168\"", "got the string \"7168\""},
      {"/text_config/num_hidden_layers", "4097", "from 1 to 4096, got 4097"},
      {"/text_config/vocab_size", "99999999999999999999", "from 1 to 4194304"},
      {"/text_config/first_k_dense_replace", "94", "at most num_hidden_layers = 93, got 94"},
      {"/text_config/num_experts_per_token", "897", "at most num_experts = 896, got 897"},
      {"/text_config/num_experts", "16384", "at most 524288 experts in all 93 layers, got 16384"},
      {"/text_config/moe_intermediate_size", "3080", "a multiple of 32 (MXFP4 groups), got 3080"},
      {"/text_config/routed_expert_hidden_size", "3592",
       "a multiple of 32 (MXFP4 groups), got 3592"},
      {"/text_config/rms_norm_eps", "0", "a number above 0 and at most 1.0, got 0"},
      {"/text_config/rms_norm_eps", "1e-60", "a number above 0 and at most 1.0, got 1e-60"},
      {"/text_config/latent_norm_eps", "-1e-6", "a number above 0 and at most 1.0, got -1e-06"},
      {"/text_config/activation_situ_beta", "null", "got null"},
      {"/text_config/activation_situ_linear_beta", "-25", "got -25"},
      {"/text_config/moe_renormalize", "1", "expected true or false, got 1"},
      {"/text_config/linear_attn_config/gate_lower_bound", "0", "got 0"},
      {"/text_config/linear_attn_config/gate_lower_bound", "-11",
       "a number from -10.0 to below 0, got -11"},
      {"/eos_token_id", "163840", "from 0 to 163839, got 163840"},
      {"/eos_token_id", "[2, 163840]", "ids below vocab_size = 163840, got 163840"},
      {"/eos_token_id", "[-1]", "got -1"},
      {"/eos_token_id", "[]", "got an empty list"},
      {"/vision_config/merge_kernel_size", "[2, 3]", "two equal sizes from 1 to 16, got [2,3]"},
  };
  for (const Change& change : changes) {
    const std::string error = ErrorAfter(change);
    const std::string key(Json::json_pointer(change.path).back());
    EXPECT_NE(error.find("key \"" + key + "\": expected"), std::string::npos) << error;
    EXPECT_NE(error.find(change.message), std::string::npos) << error;
  }
}

TEST(ConfigTest, RequiresEachLayerInOneListOnce) {
  const std::string section = "text_config.linear_attn_config: layer ";
  const auto error_with = [](const std::vector<int>& full, const std::vector<int>& kda) {
    Json json = SmallConfig();
    json["text_config"]["linear_attn_config"]["full_attn_layers"] = full;
    json["text_config"]["linear_attn_config"]["kda_layers"] = kda;
    const auto config = Parse(json);
    return config ? "no error" : config.error().message();
  };
  EXPECT_EQ(error_with({3, 4}, {1, 2}), "no error");
  EXPECT_EQ(error_with({4, 2}, {3, 1}), "no error");
  EXPECT_EQ(error_with({}, {1, 2, 3, 4}), "no error");
  EXPECT_EQ(error_with({3, 4}, {1}), section + "2 is in neither full_attn_layers nor kda_layers");
  EXPECT_EQ(error_with({3, 4}, {1, 2, 3}),
            section + "3 occurs twice in full_attn_layers and kda_layers together");
  EXPECT_EQ(error_with({3, 4, 4}, {1, 2}),
            section + "4 occurs twice in full_attn_layers and kda_layers together");
  EXPECT_EQ(error_with({3, 4}, {0, 1, 2}), section + "0 in kda_layers: expected layers 1 to 4");
  EXPECT_EQ(error_with({3, 4, 5}, {1, 2}),
            section + "5 in full_attn_layers: expected layers 1 to 4");
}

TEST(ConfigTest, RefusesTextThatIsNotJson) {
  for (const char* text : {"", "{", "[]", "{\"architectures\": }"}) {
    EXPECT_FALSE(ParseKimiK3Config(text)) << text;
  }
}

}  // namespace
}  // namespace yoke::model
