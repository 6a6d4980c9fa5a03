#include "shard/partition.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace yoke::shard {
namespace {

TEST(PartitionTest, EveryElementIsInExactlyOneRange) {
  for (const size_t total : {size_t{0}, size_t{1}, size_t{12}, size_t{96}, size_t{2049}}) {
    for (const size_t unit : {size_t{1}, size_t{4}, size_t{32}}) {
      for (const std::vector<size_t>& shares :
           {std::vector<size_t>{1}, {1, 1}, {3, 1}, {5, 2, 1}, {1, 1, 1, 1, 1, 1, 1, 1}}) {
        SCOPED_TRACE(testing::Message() << total << " by " << unit << " in " << shares.size());
        size_t next = 0;
        for (const Range& range : Partition(total, unit, shares)) {
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.begin, range.end);
          EXPECT_TRUE(range.begin % unit == 0 || range.begin == total);
          next = range.end;
        }
        EXPECT_EQ(next, total);
      }
    }
  }
}

TEST(PartitionTest, SizesFollowTheShares) {
  const auto even = Partition(96, 1, std::vector<size_t>{1, 1, 1, 1});
  for (const Range& range : even) EXPECT_EQ(range.size(), 24u);
  const auto uneven = Partition(96, 1, std::vector<size_t>{3, 1});
  EXPECT_EQ(uneven[0], (Range{0, 72}));
  EXPECT_EQ(uneven[1], (Range{72, 96}));
  // 12 heads over 8 ranks: nobody gets none, nobody more than two.
  for (const Range& range : Partition(12, 1, std::vector<size_t>(8, 1))) {
    EXPECT_GE(range.size(), 1u);
    EXPECT_LE(range.size(), 2u);
  }
}

TEST(PartitionTest, UnitIsABlockWhileEveryRankGetsOne) {
  EXPECT_EQ(UnitFor(3072, 32, 8), 32u);
  EXPECT_EQ(UnitFor(96, 32, 3), 32u);
  EXPECT_EQ(UnitFor(96, 32, 4), 1u);
}

TEST(PartitionTest, CoverIsTheSmallestRangeOfWholeBlocks) {
  EXPECT_EQ(CoverBlocks({48, 96}, 32), (Range{32, 96}));
  EXPECT_EQ(CoverBlocks({32, 64}, 32), (Range{32, 64}));
  EXPECT_EQ(CoverBlocks({33, 34}, 32), (Range{32, 64}));
  EXPECT_EQ(CoverBlocks({40, 40}, 32).size(), 0u);
}

}  // namespace
}  // namespace yoke::shard
