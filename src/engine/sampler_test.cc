#include "engine/sampler.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace yoke::engine {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A row of logits whose softmax at temperature 1 is `probabilities`.
ItemResult RowOf(const std::vector<double>& probabilities) {
  ItemResult result;
  for (const double p : probabilities) result.rows.push_back(static_cast<float>(std::log(p)));
  return result;
}

// What the ranks answer when asked for the `top` largest instead of the row.
ItemResult CandidatesOf(const ItemResult& row, size_t top) {
  ItemResult result;
  for (size_t i = 0; i < row.rows.size(); ++i) {
    result.top.push_back({static_cast<int32_t>(i), row.rows[i]});
  }
  std::sort(result.top.begin(), result.top.end(), Likelier);
  result.top.resize(std::min(top, result.top.size()));
  return result;
}

// Random logits of about the spread that models have.
ItemResult RandomRow(Prng& prng, size_t vocab_size) {
  ItemResult result;
  for (size_t i = 0; i < vocab_size; ++i) result.rows.push_back(prng.Uniform(-8, 8));
  return result;
}

SamplingOptions Plain(uint64_t seed) {
  return {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
}

int32_t ChooseOnce(Sampler& sampler, const ItemResult& result) {
  const Result<int32_t> token = sampler.Choose(result);
  EXPECT_TRUE(token) << token.error().message();
  return token ? token.value() : -1;
}

std::vector<int> Counts(const SamplingOptions& options, const ItemResult& result, int num_draws) {
  std::vector<int> counts(std::max(result.rows.size(), result.top.size()));
  Sampler sampler(options);
  for (int i = 0; i < num_draws; ++i) {
    ++counts.at(static_cast<size_t>(ChooseOnce(sampler, result)));
  }
  return counts;
}

TEST(LikelierTest, OrdersByLogitThenToken) {
  EXPECT_TRUE(Likelier({9, 2}, {1, 1}));
  EXPECT_FALSE(Likelier({1, 1}, {9, 2}));
  EXPECT_TRUE(Likelier({1, 2}, {9, 2}));
  EXPECT_FALSE(Likelier({9, 2}, {1, 2}));
  EXPECT_FALSE(Likelier({1, 2}, {1, 2}));
}

TEST(LikelierTest, IsAnOrderWithNotANumberLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Likelier({5, -kInf}, {1, nan}));
  EXPECT_FALSE(Likelier({1, nan}, {5, -kInf}));
  EXPECT_TRUE(Likelier({1, nan}, {2, nan}));
  EXPECT_FALSE(Likelier({2, nan}, {1, nan}));
}

TEST(SamplerTest, AsksForWhatItNeeds) {
  const Sampler greedy({.temperature = 0, .top_k = 0});
  EXPECT_EQ(greedy.want(), Want::kTop);
  EXPECT_EQ(greedy.top(), 1u);
  const Sampler few({.top_k = kTopMax});
  EXPECT_EQ(few.want(), Want::kTop);
  EXPECT_EQ(few.top(), kTopMax);
  for (const uint32_t top_k : {0U, kTopMax + 1}) {
    const Sampler row({.top_k = top_k});
    EXPECT_EQ(row.want(), Want::kLastRow);
    EXPECT_EQ(row.top(), 0u);
  }
}

TEST(SamplerTest, GreedyTakesTheLikeliestAndTheFirstOfEquals) {
  Sampler greedy({.temperature = 0});
  ItemResult row;
  row.rows = {-3, 2, 7, 7, 1};
  EXPECT_EQ(ChooseOnce(greedy, row), 2);
  ItemResult top;
  top.top = {{1234, -5}};
  EXPECT_EQ(ChooseOnce(greedy, top), 1234);
}

TEST(SamplerTest, TheSameSeedMakesTheSameChoices) {
  Prng prng(5);
  Sampler a(Plain(11)), b(Plain(11)), other(Plain(12));
  int num_different = 0;
  for (int i = 0; i < 200; ++i) {
    const ItemResult row = RandomRow(prng, 500);
    const int32_t token = ChooseOnce(a, row);
    EXPECT_EQ(token, ChooseOnce(b, row));
    num_different += token != ChooseOnce(other, row) ? 1 : 0;
  }
  EXPECT_GT(num_different, 50);
}

TEST(SamplerTest, RowAndCandidatesGiveTheSameChoices) {
  Prng prng(6);
  const SamplingOptions cases[] = {
      {.temperature = 0, .top_k = 40},
      {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0, .seed = 1},
      {.temperature = 1.5, .top_k = 7, .top_p = 1, .min_p = 0.02, .seed = 2},
      {.temperature = 1, .top_k = 1, .top_p = 1, .min_p = 0, .seed = 3},
      {.temperature = 3, .top_k = kTopMax, .top_p = 0.5, .min_p = 0, .seed = 4},
  };
  for (const SamplingOptions& options : cases) {
    Sampler from_row(options), from_candidates(options);
    for (int i = 0; i < 50; ++i) {
      ItemResult row = RandomRow(prng, 1500);
      for (size_t k = 0; k < 300; ++k) row.rows[k + 300] = row.rows[k];  // ties
      const ItemResult candidates = CandidatesOf(row, from_candidates.top());
      ASSERT_EQ(ChooseOnce(from_row, row), ChooseOnce(from_candidates, candidates))
          << "top_k " << options.top_k << ", choice " << i;
    }
  }
}

// Pearson's statistic stays below the value that fair draws exceed once in a thousand.
TEST(SamplerTest, FrequenciesFollowTheSoftmax) {
  const std::vector<double> probabilities = {0.3, 0.02, 0.2, 0.15, 0.13, 0.1, 0.07, 0.03};
  constexpr int kDraws = 40'000;
  constexpr double kChiSquaredMax = 24.32;  // 7 degrees of freedom
  const auto chi_squared = [](const std::vector<double>& expected, const std::vector<int>& counts) {
    double sum = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double mean = expected[i] * kDraws;
      sum += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
    return sum;
  };
  EXPECT_LT(chi_squared(probabilities, Counts(Plain(8), RowOf(probabilities), kDraws)),
            kChiSquaredMax);

  // At temperature 2 probabilities are as their square roots.
  std::vector<double> flatter;
  double total = 0;
  for (const double p : probabilities) total += std::sqrt(p);
  for (const double p : probabilities) flatter.push_back(std::sqrt(p) / total);
  SamplingOptions warm = Plain(9);
  warm.temperature = 2;
  const std::vector<int> counts = Counts(warm, RowOf(probabilities), kDraws);
  EXPECT_LT(chi_squared(flatter, counts), kChiSquaredMax);
  EXPECT_GT(chi_squared(probabilities, counts), 10 * kChiSquaredMax);  // the test can tell
}

// Which tokens of six can be drawn at all.
std::vector<bool> Drawn(const SamplingOptions& options) {
  std::vector<bool> drawn;
  for (const int count : Counts(options, RowOf({0.05, 0.4, 0.1, 0.25, 0.12, 0.08}), 3000)) {
    drawn.push_back(count > 0);
  }
  return drawn;
}

TEST(SamplerTest, TopKKeepsTheKLikeliest) {
  const bool n = false, y = true;
  SamplingOptions options = Plain(1);
  EXPECT_EQ(Drawn(options), (std::vector<bool>{y, y, y, y, y, y}));
  options.top_k = 1;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, n, n, n}));
  options.top_k = 3;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, y, y, n}));
  options.top_k = 100;  // more than there are
  EXPECT_EQ(Drawn(options), (std::vector<bool>{y, y, y, y, y, y}));
}

TEST(SamplerTest, TopPKeepsTheFewestThatReachP) {
  const bool n = false, y = true;
  SamplingOptions options = Plain(2);
  options.top_p = 1e-12;  // the likeliest is always kept
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, n, n, n}));
  options.top_p = 0.39;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, n, n, n}));
  options.top_p = 0.41;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, y, n, n}));
  options.top_p = 0.94;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, y, y, y, y}));
  // P of what top_k left: 0.4 and 0.25 of 0.77 are 0.84.
  options.top_k = 3;
  options.top_p = 0.84;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, y, n, n}));
}

TEST(SamplerTest, MinPDropsTheUnlikely) {
  const bool n = false, y = true;
  SamplingOptions options = Plain(3);
  options.min_p = 1;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, n, n, n}));
  options.min_p = 0.29;  // 0.12 of 0.4 is 0.3
  EXPECT_EQ(Drawn(options), (std::vector<bool>{n, y, n, y, y, n}));
  options.min_p = 0.01;
  EXPECT_EQ(Drawn(options), (std::vector<bool>{y, y, y, y, y, y}));
}

TEST(SamplerTest, ExtremeLogitsAndTemperaturesChooseTheLikeliest) {
  ItemResult row;
  row.rows = {-3e38F, 3e38F, 2e38F, -3e38F};
  for (const double temperature : {5e-324, 1e-9, 1.0, 100.0}) {
    SamplingOptions options = Plain(4);
    options.temperature = temperature;
    Sampler sampler(options);
    EXPECT_EQ(ChooseOnce(sampler, row), 1) << temperature;
  }
}

TEST(SamplerTest, LogitsThatAreNotNumbersAreAnError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    SamplingOptions options = Plain(4);
    options.temperature = temperature;
    Sampler sampler(options);
    for (const float bad : {nan, kInf, -kInf}) {
      ItemResult row;
      row.rows = {1, bad, 2};
      const Result<int32_t> token = sampler.Choose(row);
      ASSERT_FALSE(token);
      EXPECT_EQ(token.error().code(), ErrorCode::kCorrupt);
      EXPECT_NE(token.error().message().find("not finite"), std::string::npos);
    }
    ItemResult top;  // the candidates look well, but another logit is not
    top.top = {{1, 2}, {2, 1}};
    top.log_sum_exp = kNan;
    EXPECT_FALSE(sampler.Choose(top));
  }
}

TEST(CheckSamplingTest, AcceptsItsLimits) {
  EXPECT_TRUE(CheckSampling({}));
  EXPECT_TRUE(CheckSampling({.temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0}));
  EXPECT_TRUE(CheckSampling({.temperature = 100, .top_k = 1, .top_p = 1e-9, .min_p = 1}));
}

TEST(CheckSamplingTest, NamesTheOptionItsLimitsAndWhatCame) {
  const struct {
    SamplingOptions options;
    std::string message;
  } cases[] = {
      {{.temperature = -1}, "--temp must be 0 to 100, but is -1.000000"},
      {{.temperature = 100.5}, "--temp must be 0 to 100, but is 100.500000"},
      {{.temperature = kNan}, "--temp must be 0 to 100, but is nan"},
      {{.top_p = 0}, "--top-p must be above 0, at most 1, but is 0.000000"},
      {{.top_p = 1.25}, "--top-p must be above 0, at most 1, but is 1.250000"},
      {{.top_p = kNan}, "--top-p must be above 0, at most 1, but is nan"},
      {{.min_p = -0.5}, "--min-p must be 0 to 1, but is -0.500000"},
      {{.min_p = 2}, "--min-p must be 0 to 1, but is 2.000000"},
      {{.min_p = kNan}, "--min-p must be 0 to 1, but is nan"},
  };
  for (const auto& c : cases) {
    const Status status = CheckSampling(c.options);
    ASSERT_FALSE(status) << c.message;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.error().message(), c.message);
  }
}

}  // namespace
}  // namespace yoke::engine
