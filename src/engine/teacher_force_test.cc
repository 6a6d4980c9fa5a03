#include "engine/teacher_force.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace yoke::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr size_t kVocabSize = 4;
constexpr double kBound = 0.01;  // so a near-tie has a gap below 0.04

using Logits = std::vector<float>;

// `count` positions that clearly choose token 2.
Logits Clear(size_t count) {
  Logits logits;
  for (size_t i = 0; i < count; ++i) {
    for (const float logit : {0.0F, 1.0F, 5.0F, 4.0F}) logits.push_back(logit);
  }
  return logits;
}

Comparison CompareAll(const Logits& reference, const Logits& other) {
  Comparison comparison;
  Compare(reference, other, kVocabSize, kBound, comparison);
  return comparison;
}

TEST(CompareTest, TheSameBitsAreBitwiseAndAgree) {
  const Comparison c = CompareAll(Clear(3), Clear(3));
  EXPECT_TRUE(c.bitwise);
  EXPECT_TRUE(c.Agree());
  EXPECT_EQ(c.diff_max, 0);
  EXPECT_EQ(c.num_positions, 3u);
  EXPECT_EQ(c.num_argmax_differ, 0u);
}

TEST(CompareTest, OneBitIsNotBitwiseButAgrees) {
  Logits other = Clear(3);
  other[7] = std::nextafter(other[7], 9.0F);
  const Comparison c = CompareAll(Clear(3), other);
  EXPECT_FALSE(c.bitwise);
  EXPECT_TRUE(c.Agree());
  EXPECT_GT(c.diff_max, 0);
  EXPECT_LT(c.diff_max, 1e-6);
}

TEST(CompareTest, ZerosOfBothSignsAreNotBitwise) {
  Logits other = Clear(1);
  other[0] = -0.0F;
  const Comparison c = CompareAll(Clear(1), other);
  EXPECT_FALSE(c.bitwise);
  EXPECT_EQ(c.diff_max, 0);
  EXPECT_TRUE(c.Agree());
}

TEST(CompareTest, FindsTheLargestDifferenceWherever) {
  for (size_t at = 0; at < 3 * kVocabSize; ++at) {
    for (const float step : {0.25F, -0.25F}) {
      Logits other = Clear(3);
      other[at] += step;
      EXPECT_EQ(CompareAll(Clear(3), other).diff_max, 0.25) << at;
    }
  }
}

TEST(CompareTest, AnotherChoiceAtAClearPositionDiffers) {
  Logits other = Clear(1000);
  other[4 * 500 + 3] = 6;
  const Comparison c = CompareAll(Clear(1000), other);
  EXPECT_EQ(c.num_argmax_differ, 1u);
  EXPECT_EQ(c.num_near_ties, 0u);
  EXPECT_FALSE(c.Agree());
}

// Positions of which `num_ties` are near-ties of gap `gap`, decided the other way in `other`.
Comparison WithTies(size_t num_positions, size_t num_ties, float gap) {
  Logits reference = Clear(num_positions);
  Logits other = Clear(num_positions);
  for (size_t i = 0; i < num_ties; ++i) {
    reference[4 * i + 3] = reference[4 * i + 2] - gap;
    other[4 * i + 3] = other[4 * i + 2] + gap;
  }
  return CompareAll(reference, other);
}

TEST(CompareTest, NearTiesMayFallTheOtherWayAtOnePercentOfThePositions) {
  const Comparison one = WithTies(100, 1, 0.03F);
  EXPECT_EQ(one.num_argmax_differ, 1u);
  EXPECT_EQ(one.num_near_ties, 1u);
  EXPECT_TRUE(one.Agree());
  EXPECT_FALSE(WithTies(99, 1, 0.03F).Agree());
  EXPECT_TRUE(WithTies(200, 2, 0.03F).Agree());
  EXPECT_FALSE(WithTies(200, 3, 0.03F).Agree());
  EXPECT_EQ(WithTies(200, 3, 0.03F).num_near_ties, 3u);
}

TEST(CompareTest, AGapOfFourBoundsIsNoNearTie) {
  const Comparison c = WithTies(1000, 1, 0.05F);
  EXPECT_EQ(c.num_argmax_differ, 1u);
  EXPECT_EQ(c.num_near_ties, 0u);
  EXPECT_FALSE(c.Agree());
}

TEST(CompareTest, NearTiesDoNotExcuseAClearDifference) {
  Logits reference = Clear(1000);
  Logits other = Clear(1000);
  reference[3] = 4.99F;
  other[3] = 5.01F;   // a near-tie
  other[4 + 1] = 50;  // and a wrong position
  const Comparison c = CompareAll(reference, other);
  EXPECT_EQ(c.num_argmax_differ, 2u);
  EXPECT_EQ(c.num_near_ties, 1u);
  EXPECT_FALSE(c.Agree());
}

TEST(CompareTest, TheGapIsTheReferences) {
  Logits reference = Clear(1000);  // clear: 5 over 4
  Logits other = Clear(1000);
  other[3] = 5.001F;  // looks like a near-tie from the other side
  EXPECT_FALSE(CompareAll(reference, other).Agree());
}

TEST(CompareTest, WhatIsNotAFiniteNumberDiffers) {
  for (const float bad : {kNan, kInf, -kInf}) {
    for (const bool in_reference : {true, false}) {
      for (const bool in_other : {true, false}) {
        for (size_t at = 0; at < kVocabSize; ++at) {
          if (!in_reference && !in_other) continue;
          SCOPED_TRACE(testing::Message() << bad << in_reference << in_other << at);
          Logits reference = Clear(1000);
          Logits other = Clear(1000);
          if (in_reference) reference[at] = bad;
          if (in_other) other[at] = bad;
          const Comparison c = CompareAll(reference, other);
          EXPECT_FALSE(c.bitwise);  // even when both hold the same NaN
          EXPECT_FALSE(c.Agree());
          EXPECT_EQ(c.num_near_ties, 0u);
          EXPECT_EQ(c.diff_max, HUGE_VAL);
        }
      }
    }
  }
}

TEST(CompareTest, AddsUpOverCalls) {
  Comparison comparison;
  Logits other = Clear(60);
  Compare(Clear(60), other, kVocabSize, kBound, comparison);
  other[3] = 7;
  Compare(Clear(60), other, kVocabSize, kBound, comparison);
  Compare(Clear(60), Clear(60), kVocabSize, kBound, comparison);
  EXPECT_EQ(comparison.num_positions, 180u);
  EXPECT_EQ(comparison.num_argmax_differ, 1u);
  EXPECT_EQ(comparison.diff_max, 3);
  EXPECT_FALSE(comparison.bitwise);
  EXPECT_FALSE(comparison.Agree());
}

TEST(CompareTest, NothingComparedIsNoAgreement) {
  EXPECT_FALSE(CompareAll({}, {}).Agree());
}

TEST(CompareDeathTest, SizesMustBeEqual) {
  Comparison comparison;
  EXPECT_DEATH(Compare(Clear(2), Clear(1), kVocabSize, kBound, comparison), "CHECK failed");
}

TEST(PerplexityTest, IsTheExponentOfTheMean) {
  const Perplexity fair_coin = {.num_tokens = 10, .nll_sum = 10 * std::log(2.0), .seconds = 1};
  EXPECT_NEAR(fair_coin.Value(), 2, 1e-12);
  EXPECT_NEAR(fair_coin.BitsPerToken(), 1, 1e-12);
}

}  // namespace
}  // namespace yoke::engine
