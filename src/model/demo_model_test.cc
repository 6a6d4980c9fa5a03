// The demo model's files are complete and agree with each other.
#include <string>

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/inventory.h"
#include "model/model_fixture.h"
#include "model/tokenizer.h"

namespace yoke::model {
namespace {

const std::string kDemoFolder = std::string(YOKE_SOURCE_DIR) + "/models/demo-k3";

KimiK3Config DemoConfig() {
  return ParseKimiK3Config(ReadSourceFile("models/demo-k3/config.json")).value();
}

TEST(DemoModelTest, HasEveryTensorOfItsConfiguration) {
  const Checkpoint checkpoint = Checkpoint::Open(kDemoFolder).value();
  const KimiK3Config config = DemoConfig();
  const Status status = CheckInventory(checkpoint, config);
  EXPECT_TRUE(status) << status.error().message();
  const ModelCounts counts = CountModel(config);
  EXPECT_EQ(checkpoint.tensors().size(), counts.num_tensors - counts.num_vision_tensors);
}

TEST(DemoModelTest, HasATokenizerOfItsVocabulary) {
  const KimiK3Config config = DemoConfig();
  const Tokenizer tokenizer = Tokenizer::Load(kDemoFolder).value();
  EXPECT_EQ(tokenizer.vocab_size(), config.vocab_size);
  for (const int token : config.eos_tokens) EXPECT_TRUE(tokenizer.IsSpecial(token)) << token;
}

// What the demo is there to show: every kind of block, in sizes that tell them apart.
TEST(DemoModelTest, HasEveryKindOfBlock) {
  const KimiK3Config config = DemoConfig();
  EXPECT_GE(config.NumLayers(LayerKind::kKda), 2U);
  ASSERT_GE(config.NumLayers(LayerKind::kMla), 2U);
  EXPECT_EQ(config.layer_kinds[config.num_layers - 1], LayerKind::kMla);
  EXPECT_EQ(config.layer_kinds[config.num_layers - 2], LayerKind::kMla);
  EXPECT_TRUE(config.IsDense(0));
  EXPECT_FALSE(config.IsDense(1));
  EXPECT_GE(config.NumBankRows(), 2U);
  EXPECT_GE(config.num_shared_experts, 1U);
  EXPECT_TRUE(config.kda_head_dim == 16 || config.kda_head_dim == 32);
}

}  // namespace
}  // namespace yoke::model
