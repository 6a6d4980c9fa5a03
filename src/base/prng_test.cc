#include "base/prng.h"

#include <array>
#include <cstddef>

#include <gtest/gtest.h>

namespace yoke {
namespace {

constexpr int kNumDraws = 100'000;

TEST(PrngTest, GivesTheNumbersOfSplitMix64) {
  Prng prng(1234567);
  for (const uint64_t expected : {6457827717110365317U, 3203168211198807973U, 9817491932198370423U,
                                  4593380528125082431U, 16408922859458223821U}) {
    EXPECT_EQ(prng.Next(), expected);
  }
}

TEST(PrngTest, UniformFillsItsRangeEvenlyAndStaysInside) {
  Prng prng(1);
  std::array<int, 10> in_tenth = {};
  for (int i = 0; i < kNumDraws; ++i) {
    const float x = prng.Uniform();
    ASSERT_GE(x, 0.0F);
    ASSERT_LT(x, 1.0F);
    ++in_tenth[static_cast<size_t>(x * 10)];
    const double y = prng.UniformDouble();
    ASSERT_GE(y, 0.0);
    ASSERT_LT(y, 1.0);
    const float z = prng.Uniform(-3, 5);
    ASSERT_GE(z, -3.0F);
    ASSERT_LE(z, 5.0F);
  }
  // Standard deviation of a count: 95.
  for (const int count : in_tenth) EXPECT_NEAR(count, kNumDraws / 10, 500);
}

TEST(PrngTest, BelowReachesEveryNumberEquallyOften) {
  Prng prng(2);
  std::array<int, 7> counts = {};
  for (int i = 0; i < kNumDraws; ++i) ++counts.at(prng.Below(counts.size()));
  for (const int count : counts) EXPECT_NEAR(count, kNumDraws / 7, 600);
  EXPECT_EQ(prng.Below(1), 0U);
  // Of 2^64 raw numbers, a plain remainder would send half into the first third of 3 * 2^62.
  constexpr uint64_t kThird = uint64_t{1} << 62;
  int in_first_third = 0;
  for (int i = 0; i < kNumDraws; ++i) in_first_third += prng.Below(3 * kThird) < kThird ? 1 : 0;
  EXPECT_NEAR(in_first_third, kNumDraws / 3, 750);
}

TEST(PrngTest, CopiesContinueIndependently) {
  Prng prng(3);
  Prng copy = prng;
  const uint64_t first = prng.Next();
  (void)prng.Next();
  EXPECT_EQ(copy.Next(), first);
}

}  // namespace
}  // namespace yoke
