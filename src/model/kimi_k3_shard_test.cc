#include "model/kimi_k3_shard.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_fixture.h"
#include "tensor/dtype.h"

namespace yoke::model {
namespace {

using shard::Range;

KimiK3Config Parse(const Json& json) {
  return ParseKimiK3Config(DumpJson(json)).value();
}

std::vector<size_t> Even(size_t num_ranks) {
  return std::vector<size_t>(num_ranks, 1);
}

struct Line {
  const char* name;
  Range KimiK3Shard::*range;
  size_t total;
};

std::vector<Line> LinesOf(const KimiK3Config& config) {
  return {{"kda_heads", &KimiK3Shard::kda_heads, config.kda_num_heads},
          {"mla_heads", &KimiK3Shard::mla_heads, config.mla_num_heads},
          {"dense_ffn", &KimiK3Shard::dense_ffn, config.dense_ffn_dim},
          {"shared_ffn", &KimiK3Shard::shared_ffn, config.SharedFfnDim()},
          {"expert_ffn", &KimiK3Shard::expert_ffn, config.expert_ffn_dim},
          {"latent_rows", &KimiK3Shard::latent_rows, config.latent_dim},
          {"latent_cols", &KimiK3Shard::latent_cols, config.latent_dim},
          {"router_rows", &KimiK3Shard::router_rows, config.num_experts},
          {"vocab", &KimiK3Shard::vocab, config.vocab_size}};
}

// Every element of every line is exactly one rank's, and no rank is idle anywhere.
void ExpectPartition(const KimiK3Config& config, const std::vector<size_t>& shares) {
  const auto shards = ShardKimiK3(config, shares);
  ASSERT_TRUE(shards) << shards.error().message();
  ASSERT_EQ(shards.value().size(), shares.size());
  for (const Line& line : LinesOf(config)) {
    size_t next = 0;
    for (const KimiK3Shard& shard : shards.value()) {
      const Range& range = shard.*line.range;
      EXPECT_EQ(range.begin, next) << line.name;
      EXPECT_LT(range.begin, range.end) << line.name;
      next = range.end;
    }
    EXPECT_EQ(next, line.total) << line.name;
  }
}

TEST(KimiK3ShardTest, EveryPartHasOneOwner) {
  const KimiK3Config released = Parse(ReleasedConfig());
  const KimiK3Config demo =
      Parse(ParseJson(ReadSourceFile("models/demo-k3/config.json"), 1 << 20).value());
  for (size_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
    SCOPED_TRACE(num_ranks);
    ExpectPartition(released, Even(num_ranks));
    ExpectPartition(demo, Even(num_ranks));
  }
  for (size_t num_ranks = 1; num_ranks <= 3; ++num_ranks) {
    SCOPED_TRACE(num_ranks);
    ExpectPartition(Parse(SmallConfig()), Even(num_ranks));
  }
  ExpectPartition(released, {3, 1});
  ExpectPartition(released, {5, 2, 1, 4});
}

TEST(KimiK3ShardTest, OneRankOwnsAll) {
  const KimiK3Config config = Parse(SmallConfig());
  const KimiK3Shard shard = ShardKimiK3(config, Even(1)).value()[0];
  for (const Line& line : LinesOf(config)) {
    EXPECT_EQ(shard.*line.range, (Range{0, line.total})) << line.name;
  }
}

TEST(KimiK3ShardTest, TheReleasedModelSplitsEvenlyInWholeBlocks) {
  const KimiK3Config config = Parse(ReleasedConfig());
  for (const size_t num_ranks : {size_t{2}, size_t{4}, size_t{8}}) {
    const auto shards = ShardKimiK3(config, Even(num_ranks)).value();
    for (const KimiK3Shard& shard : shards) {
      for (const Line& line : LinesOf(config)) {
        SCOPED_TRACE(testing::Message() << line.name << ", " << num_ranks << " ranks");
        EXPECT_EQ((shard.*line.range).size(), line.total / num_ranks);
      }
      EXPECT_EQ(shard.expert_ffn.begin % kBlockCols, 0u);
      EXPECT_EQ(shard.latent_cols.begin % kBlockCols, 0u);
      EXPECT_EQ(shard.dense_ffn.begin % kBlockCols, 0u);
    }
  }
}

TEST(KimiK3ShardTest, ColumnsAreCutInsideBlocksOnlyWhenRanksOutnumberBlocks) {
  const KimiK3Config demo =
      Parse(ParseJson(ReadSourceFile("models/demo-k3/config.json"), 1 << 20).value());
  ASSERT_EQ(demo.expert_ffn_dim, 3 * kBlockCols);
  const auto three = ShardKimiK3(demo, Even(3)).value();
  EXPECT_EQ(three[1].expert_ffn, (Range{32, 64}));
  const auto two = ShardKimiK3(demo, Even(2)).value();
  EXPECT_EQ(two[0].expert_ffn.end % kBlockCols, 0u);
  const auto four = ShardKimiK3(demo, Even(4)).value();
  EXPECT_EQ(four[1].expert_ffn, (Range{24, 48}));
}

TEST(KimiK3ShardTest, SharesSetTheSizes) {
  const KimiK3Config config = Parse(ReleasedConfig());
  const size_t shares[] = {3, 1};
  const auto shards = ShardKimiK3(config, shares).value();
  EXPECT_EQ(shards[0].kda_heads, (Range{0, 72}));
  EXPECT_EQ(shards[1].mla_heads, (Range{72, 96}));
  EXPECT_EQ(shards[0].expert_ffn, (Range{0, 2304}));
  EXPECT_EQ(shards[1].vocab.size(), 163840u / 4);
}

TEST(KimiK3ShardTest, MoreRanksThanPartsNameTheParts) {
  const struct {
    const char* section;
    const char* key;
    size_t size;
    size_t num_ranks;
    std::string message;
  } cases[] = {
      {"linear_attn_config", "num_heads", 3, 4,
       "cannot split 3 KDA heads over 4 ranks; use at most 3 ranks"},
      {"", "num_attention_heads", 6, 7,
       "cannot split 6 MLA heads over 7 ranks; use at most 6 ranks"},
      {"", "num_experts", 5, 8, "cannot split 5 experts over 8 ranks; use at most 5 ranks"},
      {"", "intermediate_size", 7, 8,
       "cannot split 7 dense FFN rows over 8 ranks; use at most 7 ranks"},
      {"", "vocab_size", 7, 8, "cannot split 7 vocabulary rows over 8 ranks; use at most 7 ranks"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    Json json = ReleasedConfig();
    json["eos_token_id"] = 1;
    Json& text = json["text_config"];
    text["num_experts_per_token"] = 2;
    (c.section[0] == '\0' ? text : text[c.section])[c.key] = c.size;
    text["num_key_value_heads"] = text["num_attention_heads"];
    const auto shards = ShardKimiK3(Parse(json), Even(c.num_ranks));
    ASSERT_FALSE(shards);
    EXPECT_EQ(shards.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(shards.error().message(), c.message);
    EXPECT_TRUE(ShardKimiK3(Parse(json), Even(c.size)));
  }
}

// Shares so uneven that a rank would get no head at all.
TEST(KimiK3ShardTest, SharesThatLeaveARankWithNothingAreRefused) {
  const KimiK3Config config = Parse(ReleasedConfig());
  const size_t shares[] = {1000, 1};
  const auto shards = ShardKimiK3(config, shares);
  ASSERT_FALSE(shards);
  EXPECT_EQ(shards.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(shards.error().message().find("rank 1"), std::string::npos) << shards.error().message();
  EXPECT_NE(shards.error().message().find("KDA heads"), std::string::npos);
}

}  // namespace
}  // namespace yoke::model
