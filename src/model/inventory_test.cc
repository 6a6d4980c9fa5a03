#include "model/inventory.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_fixture.h"

namespace yoke::model {
namespace {

KimiK3Config Parse(const Json& json) {
  return ParseKimiK3Config(DumpJson(json)).value();
}

uint64_t ParamsBelow(const std::vector<TensorSpec>& specs, const std::string& prefix) {
  uint64_t sum = 0;
  for (const TensorSpec& spec : specs) {
    if (spec.name.starts_with(prefix)) sum += spec.num_params;
  }
  return sum;
}

TEST(InventoryTest, CountsTheReleasedModel) {
  const ModelCounts counts = CountModel(Parse(ReleasedConfig()));
  EXPECT_EQ(counts.num_tensors, 497'220U);  // as many as the released index has
  EXPECT_EQ(counts.num_vision_tensors, 168U);
  EXPECT_NEAR(static_cast<double>(counts.params_total), 2779.5e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(counts.params_active), 104.19e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(counts.bytes_per_token), 137e9, 0.5e9);
  EXPECT_EQ(counts.expert_bytes_per_token, uint64_t{16} * 92 * 17'547'264);
}

TEST(InventoryTest, CountsThePartsOfTheReleasedModel) {
  const std::vector<TensorSpec> specs = ListTensors(Parse(ReleasedConfig()), true);
  const std::string layer = "language_model.model.layers.";
  EXPECT_EQ(specs.size(), 497'220U);
  EXPECT_EQ(ParamsBelow(specs, layer + "0.self_attn."), 443'740'416U);  // KDA
  EXPECT_EQ(ParamsBelow(specs, layer + "3.self_attn."), 232'196'096U);  // MLA
  EXPECT_EQ(ParamsBelow(specs, layer + "92.self_attn."), 232'196'096U);
  EXPECT_EQ(ParamsBelow(specs, layer + "0.mlp."), 726'663'168U);
  const std::string moe = layer + "1.block_sparse_moe.";
  EXPECT_EQ(ParamsBelow(specs, moe) - ParamsBelow(specs, moe + "experts."), 189'927'808U);
  EXPECT_EQ(ParamsBelow(specs, moe + "experts.895."), 33'030'144U);
  EXPECT_EQ(ParamsBelow(specs, "language_model.lm_head."), uint64_t{163'840} * 7168);
  EXPECT_NEAR(static_cast<double>(ParamsBelow(specs, "vision_tower.")), 401.2e6, 0.1e6);
}

TEST(InventoryTest, ListsNamesTypesAndShapes) {
  const std::string model = "language_model.model.";
  const std::string kda = model + "layers.90.self_attn.";
  const std::string mla = model + "layers.91.self_attn.";
  const std::string moe = model + "layers.92.block_sparse_moe.";
  const std::map<std::string, std::string> expected = {
      {model + "embed_tokens.weight", "BF16 [163840, 7168]"},
      {"language_model.lm_head.weight", "BF16 [163840, 7168]"},
      {model + "norm.weight", "BF16 [7168]"},
      {model + "output_attn_res_norm.weight", "BF16 [7168]"},
      {model + "output_attn_res_proj.weight", "BF16 [1, 7168]"},
      {model + "layers.0.input_layernorm.weight", "BF16 [7168]"},
      {model + "layers.0.post_attention_layernorm.weight", "BF16 [7168]"},
      {model + "layers.0.self_attention_res_norm.weight", "BF16 [7168]"},
      {model + "layers.0.self_attention_res_proj.weight", "BF16 [1, 7168]"},
      {model + "layers.0.mlp_res_norm.weight", "BF16 [7168]"},
      {model + "layers.0.mlp_res_proj.weight", "BF16 [1, 7168]"},
      {model + "layers.0.mlp.gate_proj.weight", "BF16 [33792, 7168]"},
      {model + "layers.0.mlp.up_proj.weight", "BF16 [33792, 7168]"},
      {model + "layers.0.mlp.down_proj.weight", "BF16 [7168, 33792]"},
      {kda + "q_proj.weight", "BF16 [12288, 7168]"},
      {kda + "k_proj.weight", "BF16 [12288, 7168]"},
      {kda + "v_proj.weight", "BF16 [12288, 7168]"},
      {kda + "g_proj.weight", "BF16 [12288, 7168]"},
      {kda + "q_conv1d.weight", "F32 [12288, 1, 4]"},
      {kda + "k_conv1d.weight", "F32 [12288, 1, 4]"},
      {kda + "v_conv1d.weight", "F32 [12288, 1, 4]"},
      {kda + "f_a_proj.weight", "BF16 [128, 7168]"},
      {kda + "f_b_proj.weight", "BF16 [12288, 128]"},
      {kda + "b_proj.weight", "BF16 [96, 7168]"},
      {kda + "A_log", "F32 [128]"},
      {kda + "dt_bias", "F32 [12288]"},
      {kda + "o_norm.weight", "F32 [128]"},
      {kda + "o_proj.weight", "BF16 [7168, 12288]"},
      {mla + "q_a_proj.weight", "BF16 [1536, 7168]"},
      {mla + "q_a_layernorm.weight", "BF16 [1536]"},
      {mla + "q_b_proj.weight", "BF16 [18432, 1536]"},
      {mla + "kv_a_proj_with_mqa.weight", "BF16 [576, 7168]"},
      {mla + "kv_a_layernorm.weight", "BF16 [512]"},
      {mla + "kv_b_proj.weight", "BF16 [24576, 512]"},
      {mla + "g_proj.weight", "BF16 [12288, 7168]"},
      {mla + "o_proj.weight", "BF16 [7168, 12288]"},
      {moe + "gate.weight", "BF16 [896, 7168]"},
      {moe + "gate.e_score_correction_bias", "F32 [896]"},
      {moe + "routed_expert_down_proj.weight", "BF16 [3584, 7168]"},
      {moe + "routed_expert_norm.weight", "BF16 [3584]"},
      {moe + "routed_expert_up_proj.weight", "BF16 [7168, 3584]"},
      {moe + "shared_experts.gate_proj.weight", "BF16 [6144, 7168]"},
      {moe + "shared_experts.up_proj.weight", "BF16 [6144, 7168]"},
      {moe + "shared_experts.down_proj.weight", "BF16 [7168, 6144]"},
      {moe + "experts.895.w1.weight_packed", "U8 [3072, 1792]"},
      {moe + "experts.895.w1.weight_scale", "U8 [3072, 112]"},
      {moe + "experts.895.w3.weight_packed", "U8 [3072, 1792]"},
      {moe + "experts.895.w3.weight_scale", "U8 [3072, 112]"},
      {moe + "experts.895.w2.weight_packed", "U8 [3584, 1536]"},
      {moe + "experts.895.w2.weight_scale", "U8 [3584, 96]"},
      {"vision_tower.patch_embed.proj.weight", "BF16 [1024, 3, 14, 14]"},
      {"vision_tower.patch_embed.pos_emb.weight", "BF16 [64, 64, 1024]"},
      {"vision_tower.encoder.blocks.26.norm0.weight", "BF16 [1024]"},
      {"vision_tower.encoder.blocks.26.norm1.weight", "BF16 [1024]"},
      {"vision_tower.encoder.blocks.26.wqkv.weight", "BF16 [4608, 1024]"},
      {"vision_tower.encoder.blocks.26.wo.weight", "BF16 [1024, 1536]"},
      {"vision_tower.encoder.blocks.26.mlp.fc0.weight", "BF16 [4096, 1024]"},
      {"vision_tower.encoder.blocks.26.mlp.fc1.weight", "BF16 [1024, 4096]"},
      {"vision_tower.encoder.final_layernorm.weight", "BF16 [1024]"},
      {"mm_projector.proj.0.weight", "BF16 [4096, 4096]"},
      {"mm_projector.proj.2.weight", "BF16 [7168, 4096]"},
      {"mm_projector.post_norm.weight", "BF16 [7168]"},
  };
  size_t num_found = 0;
  for (const TensorSpec& spec : ListTensors(Parse(ReleasedConfig()), true)) {
    const auto it = expected.find(spec.name);
    if (it == expected.end()) continue;
    ++num_found;
    EXPECT_EQ(Describe(ToString(spec.dtype), spec.shape), it->second) << spec.name;
  }
  EXPECT_EQ(num_found, expected.size());
}

// A checkpoint of the small configuration whose tensors `change` may alter before they are written.
class CheckInventoryTest : public testing::Test {
 protected:
  CheckInventoryTest() {
    for (const TensorSpec& spec : ListTensors(config_, false)) {
      EXPECT_FALSE(tensors_.contains(spec.name)) << spec.name << " is listed twice";
      Set(spec.name, std::string(ToString(spec.dtype)), spec.shape);
    }
  }

  // Sets type and shape; adds the tensor if there is none of that name.
  void Set(const std::string& name, const std::string& dtype, const std::vector<size_t>& shape) {
    tensors_[name] = {name, dtype, shape, ""};
  }

  std::string Check() {
    std::vector<TensorToWrite> written;
    for (auto& [name, tensor] : tensors_) {
      size_t num_bytes = tensor.dtype == "F32" ? 4 : tensor.dtype == "U8" ? 1 : 2;
      for (const size_t dim : tensor.shape) num_bytes *= dim;
      tensor.bytes.assign(num_bytes, 0);
      written.push_back(tensor);
    }
    folder_.Write("model.safetensors", MakeSafetensors(written));
    const Checkpoint checkpoint = Checkpoint::Open(folder_.path()).value();
    const Status status = CheckInventory(checkpoint, config_);
    if (status) return "no error";
    EXPECT_EQ(status.error().message().find(folder_.path() + ": "), 0U);
    return status.error().message().substr(folder_.path().size() + 2);
  }

  const KimiK3Config config_ = Parse(SmallConfig());
  const std::string layer_ = "language_model.model.layers.";
  std::map<std::string, TensorToWrite> tensors_;
  TempFolder folder_;
};

TEST_F(CheckInventoryTest, AcceptsACompleteCheckpoint) {
  EXPECT_EQ(Check(), "no error");
}

TEST_F(CheckInventoryTest, NamesEveryMissingTensor) {
  // Of the experts one is enough.
  for (const TensorSpec& spec : ListTensors(config_, false)) {
    if (spec.name.find(".experts.") != std::string::npos &&
        spec.name.find(".experts.2.w") == std::string::npos) {
      continue;
    }
    const TensorToWrite taken = tensors_.at(spec.name);
    tensors_.erase(spec.name);
    EXPECT_EQ(Check(), "tensor " + spec.name + " is missing: expected " +
                           Describe(ToString(spec.dtype), spec.shape));
    tensors_[spec.name] = taken;
  }
}

TEST_F(CheckInventoryTest, NamesAnExtraTensor) {
  for (const std::string& name :
       {layer_ + "0.self_attn.q_proj.bias", layer_ + "4.input_layernorm.weight",
        layer_ + "1.block_sparse_moe.experts.4.w1.weight_packed", std::string("lm_head.weight"),
        std::string("vision_tower.encoder.blocks.27.norm0.weight")}) {
    Set(name, "BF16", {3});
    EXPECT_EQ(Check(),
              "tensor " + name +
                  " (BF16 [3]) is extra: a Kimi K3 model of this configuration has none of "
                  "that name");
    tensors_.erase(name);
  }
}

TEST_F(CheckInventoryTest, NamesAMisshapenOrWrongTypedTensor) {
  Set(layer_ + "2.self_attn.q_b_proj.weight", "BF16", {30, 21});
  EXPECT_EQ(Check(), "tensor " + layer_ +
                         "2.self_attn.q_b_proj.weight: expected BF16 [30, 20], got BF16 [30, 21]");
  Set(layer_ + "2.self_attn.q_b_proj.weight", "F16", {30, 20});
  EXPECT_EQ(Check(), "tensor " + layer_ +
                         "2.self_attn.q_b_proj.weight: expected BF16 [30, 20], got F16 [30, 20]");
  Set(layer_ + "2.self_attn.q_b_proj.weight", "BF16", {30, 20});
  Set(layer_ + "0.self_attn.q_conv1d.weight", "F32", {40, 4});
  EXPECT_EQ(Check(), "tensor " + layer_ +
                         "0.self_attn.q_conv1d.weight: expected F32 [40, 1, 4], got F32 [40, 4]");
}

TEST_F(CheckInventoryTest, TakesALogOfAnyLengthFromTheHeadsOn) {
  const std::string name = layer_ + "0.self_attn.A_log";
  for (const size_t length : {5U, 8U, 16U}) {
    Set(name, "F32", {length});
    EXPECT_EQ(Check(), "no error") << length;
  }
  Set(name, "F32", {4});
  EXPECT_EQ(Check(), "tensor " + name + ": expected F32 [8], got F32 [4]");
  Set(name, "F32", {1, 5});
  EXPECT_EQ(Check(), "tensor " + name + ": expected F32 [8], got F32 [1, 5]");
}

TEST_F(CheckInventoryTest, ToleratesTheVisionTower) {
  Set("vision_tower.patch_embed.proj.weight", "BF16", {1, 2});
  Set("mm_projector.post_norm.weight", "F32", {3});
  EXPECT_EQ(Check(), "no error");
}

}  // namespace
}  // namespace yoke::model
