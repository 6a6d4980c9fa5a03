// The two levels of equality on the demo model, through the real processes: bitwise at a fixed
// number of ranks, agreement between 1, 2, 3 and 4 ranks, for both trunk formats.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "engine/rank_group.h"
#include "engine/teacher_force.h"
#include "model/config.h"
#include "model/model_info.h"

namespace yoke::engine {
namespace {

const std::string kModel = std::string(YOKE_SOURCE_DIR) + "/models/demo-k3";
using Logits = std::vector<std::vector<float>>;

class VerifyTest : public testing::TestWithParam<model::TrunkFormat> {
 protected:
  void SetUp() override {
    const auto config = model::ReadConfig(kModel);
    ASSERT_TRUE(config) << config.error().message();
    vocab_size_ = config.value().vocab_size;
    // Lengths around the cuts; any tokens will do for equality.
    Prng prng(7);
    for (const size_t prompt_len : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{90}}) {
      Script script;
      script.prompt_len = prompt_len;
      for (size_t i = 0; i < prompt_len + 6; ++i) {
        script.tokens.push_back(static_cast<int32_t>(prng.Below(vocab_size_)));
      }
      scripts_.push_back(std::move(script));
    }
  }

  Logits Run(RankGroup& group, size_t chunk, bool together) {
    auto logits = TeacherForce(group, scripts_, {.chunk = chunk, .together = together});
    EXPECT_TRUE(logits) << logits.error().message();
    return logits ? std::move(logits).value() : Logits(scripts_.size());
  }

  Comparison CompareAll(const Logits& a, const Logits& b) const {
    Comparison comparison;
    for (size_t i = 0; i < a.size(); ++i) {
      Compare(a[i], b[i], vocab_size_, kLogitBound, comparison);
    }
    return comparison;
  }

  size_t vocab_size_ = 0;
  std::vector<Script> scripts_;
};

TEST_P(VerifyTest, RanksAgreeAndOneNumberOfRanksIsBitwiseEqual) {
  Logits one_rank;
  for (const size_t num_ranks : {size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
    SCOPED_TRACE(testing::Message() << num_ranks << " ranks");
    auto group = RankGroup::Start(YOKE_BINARY,
                                  {.model_folder = kModel,
                                   .shares = std::vector<size_t>(num_ranks, 1),
                                   .threads_per_rank = num_ranks == 1 ? size_t{2} : size_t{1},
                                   .tokens_max = 256,
                                   .trunk = GetParam()},
                                  {});
    ASSERT_TRUE(group) << group.error().message();
    const Logits whole = Run(*group.value(), 256, false);
    EXPECT_TRUE(CompareAll(whole, Run(*group.value(), 16, false)).bitwise) << "cut at 16";
    EXPECT_TRUE(CompareAll(whole, Run(*group.value(), 64, false)).bitwise) << "cut at 64";
    EXPECT_TRUE(CompareAll(whole, Run(*group.value(), 16, true)).bitwise) << "in one step";
    if (num_ranks == 1) {
      one_rank = whole;
      continue;
    }
    const Comparison comparison = CompareAll(one_rank, whole);
    EXPECT_GT(comparison.num_positions, 100u);
    EXPECT_TRUE(comparison.Agree());
    EXPECT_LT(comparison.diff_max, kLogitBound);
    EXPECT_FALSE(comparison.bitwise) << "were the ranks really split?";
    EXPECT_TRUE(group.value()->Stop());
  }
}

INSTANTIATE_TEST_SUITE_P(Trunks, VerifyTest,
                         testing::Values(model::TrunkFormat::kAsStored, model::TrunkFormat::kQ8_0),
                         [](const auto& param_info) {
                           return param_info.param == model::TrunkFormat::kQ8_0 ? "Q8" : "Native";
                         });

}  // namespace
}  // namespace yoke::engine
