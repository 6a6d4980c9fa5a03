#include "engine/rank_options.h"

#include <string>

#include <gtest/gtest.h>

#include "base/json.h"

namespace yoke::engine {
namespace {

RankOptions SomeOptions() {
  return {.group = {.model_folder = "a \"quoted\" folder/\xC3\xA9",
                    .shares = {3, 1, 2},
                    .threads_per_rank = 5,
                    .tokens_max = 512,
                    .trunk = model::TrunkFormat::kQ8_0,
                    .backend = BackendKind::kReference},
          .rank = 2,
          .segment_fd = 7,
          .control_fd = 9};
}

TEST(RankOptionsTest, ComeBackAsTheyWere) {
  const RankOptions options = SomeOptions();
  const Result<RankOptions> parsed = RankOptionsFromJson(RankOptionsToJson(options));
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed.value().group.model_folder, options.group.model_folder);
  EXPECT_EQ(parsed.value().group.shares, options.group.shares);
  EXPECT_EQ(parsed.value().group.num_ranks(), 3);
  EXPECT_EQ(parsed.value().group.threads_per_rank, 5u);
  EXPECT_EQ(parsed.value().group.tokens_max, 512u);
  EXPECT_EQ(parsed.value().group.trunk, model::TrunkFormat::kQ8_0);
  EXPECT_EQ(parsed.value().group.backend, BackendKind::kReference);
  EXPECT_EQ(parsed.value().rank, 2);
  EXPECT_EQ(parsed.value().segment_fd, 7);
  EXPECT_EQ(parsed.value().control_fd, 9);

  const Result<RankOptions> defaults = RankOptionsFromJson(RankOptionsToJson({}));
  ASSERT_TRUE(defaults) << defaults.error().message();
  EXPECT_EQ(defaults.value().group.trunk, model::TrunkFormat::kAsStored);
  EXPECT_EQ(defaults.value().group.backend, BackendKind::kCpu);
  EXPECT_EQ(defaults.value().group.num_ranks(), 1);
}

TEST(RankOptionsTest, EveryKeyIsRequired) {
  const Json good = ParseJson(RankOptionsToJson(SomeOptions()), 1 << 20).value();
  EXPECT_EQ(good.size(), 9u);
  for (const auto& [key, unused] : good.items()) {
    Json bad = good;
    bad.erase(key);
    const Result<RankOptions> parsed = RankOptionsFromJson(DumpJson(bad));
    ASSERT_FALSE(parsed) << key;
    EXPECT_NE(parsed.error().message().find(key), std::string::npos) << parsed.error().message();
  }
}

TEST(RankOptionsTest, WrongValuesAreRefusedByName) {
  const struct {
    const char* key;
    Json value;
  } cases[] = {
      {"model", 5},
      {"shares", Json::array()},
      {"shares", Json::array({1, 0})},
      {"shares", Json::array({1, -1})},
      {"shares", Json::array({1, 1, 1, 1, 1, 1, 1, 1, 1})},
      {"shares", "1"},
      {"threads", 0},
      {"threads", -1},
      {"threads", 1025},
      {"tokens_max", 0},
      {"tokens_max", (1 << 20) + 1},
      {"trunk_q8_0", 1},
      {"reference", "no"},
      {"rank", -1},
      {"rank", 3},
      {"rank", 0.5},
      {"segment_fd", -1},
      {"control_fd", -1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.key << " = " << DumpJson(c.value));
    Json bad = ParseJson(RankOptionsToJson(SomeOptions()), 1 << 20).value();
    bad[c.key] = c.value;
    const Result<RankOptions> parsed = RankOptionsFromJson(DumpJson(bad));
    ASSERT_FALSE(parsed);
    EXPECT_NE(parsed.error().message().find(c.key), std::string::npos) << parsed.error().message();
  }
}

TEST(RankOptionsTest, WhatIsNoJsonObjectIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "{\"model\": \"a\"} x"}) {
    EXPECT_FALSE(RankOptionsFromJson(text)) << text;
  }
}

}  // namespace
}  // namespace yoke::engine
