#include "kernels/topk.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace yoke::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using Pairs = std::vector<std::pair<uint32_t, float>>;

Pairs ToPairs(const std::vector<IndexedValue>& items) {
  Pairs pairs;
  for (const IndexedValue& item : items) pairs.emplace_back(item.index, item.value);
  return pairs;
}

TEST(TopKTest, DescendsAndPutsEqualValuesInIndexOrder) {
  const std::vector<float> logits = {1, 3, 2, 3, -1, 3, 2};
  EXPECT_EQ(ToPairs(TopK(logits, 5)), (Pairs{{1, 3}, {3, 3}, {5, 3}, {2, 2}, {6, 2}}));
}

TEST(TopKTest, KeepsTheLowerIndexWhereATieCrossesTheEnd) {
  EXPECT_EQ(ToPairs(TopK(std::vector<float>{0, 7, 7, 7}, 2)), (Pairs{{1, 7}, {2, 7}}));
}

TEST(TopKTest, ReturnsAllWhenThereAreFewerThanK) {
  EXPECT_EQ(ToPairs(TopK(std::vector<float>{-kInf, 2}, 9)), (Pairs{{1, 2}, {0, -kInf}}));
  EXPECT_TRUE(TopK({}, 3).empty());
  EXPECT_TRUE(TopK(std::vector<float>{1, 2}, 0).empty());
}

TEST(TopKTest, EqualsTheFrontOfAStableSort) {
  std::mt19937 random(7);
  std::vector<float> logits(501);
  for (float& logit : logits) logit = static_cast<float>(random() % 50);  // many ties
  Pairs sorted;
  for (uint32_t i = 0; i < logits.size(); ++i) sorted.emplace_back(i, logits[i]);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const size_t k : {1u, 2u, 17u, 500u, 501u}) {
    EXPECT_EQ(ToPairs(TopK(logits, k)),
              Pairs(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(k)))
        << k;
  }
}

TEST(TopKTest, PutsNumbersBeforeWhatIsNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {nan, 1, nan, -kInf, 3};
  EXPECT_EQ(ToPairs(TopK(logits, 3)), (Pairs{{4, 3}, {1, 1}, {3, -kInf}}));
  const std::vector<IndexedValue> all = TopK(logits, 5);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[3].index, 0u);
  EXPECT_EQ(all[4].index, 2u);
}

}  // namespace
}  // namespace yoke::kernels
