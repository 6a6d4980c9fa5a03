#include "engine/step_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace {

size_t g_allocation_max = 0;  // largest single allocation since it was last set to zero

}  // namespace

// Not inlined, or the compiler takes malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  g_allocation_max = std::max(g_allocation_max, size);
  void* const memory = std::malloc(std::max<size_t>(size, 1));
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}

namespace yoke::engine {
namespace {

using Bytes = std::vector<std::byte>;

constexpr double kInf = std::numeric_limits<double>::infinity();

StepPlan SomePlan() {
  StepPlan plan;
  plan.step = 0x0123'4567'89ab'cdef;
  plan.release = {7, 1ULL << 63};
  plan.items.push_back({.sequence = 3,
                        .position = 48,
                        .prefill = true,
                        .want = Want::kLogProbs,
                        .top = 0,
                        .tokens = {5, 6, 7},
                        .targets = {6, 7, 2047}});
  plan.items.push_back({.sequence = 1ULL << 40,
                        .position = 0xffff'ffff,
                        .prefill = false,
                        .want = Want::kTop,
                        .top = kTopMax,
                        .tokens = {-1},
                        .targets = {}});
  return plan;
}

StepResult SomeResult() {
  StepResult result;
  result.ranks.push_back({.compute_ns = 1,
                          .collective_ns = 2,
                          .waiting_ns = 3,
                          .weight_bytes = 4,
                          .fabric_bytes = 5,
                          .num_collectives = 6,
                          .rss_peak_bytes = 7,
                          .rss_own_bytes = 1ULL << 60});
  result.ranks.push_back({});
  result.items.push_back(
      {.top = {{40, 2.5F}, {3, -1.25F}}, .log_sum_exp = 3.75, .rows = {}, .log_probs = {}});
  result.items.push_back(
      {.top = {}, .log_sum_exp = 0, .rows = {1, 2, 3, 4}, .log_probs = {-0.5F, -8}});
  return result;
}

// The wire form is the comparison: it holds every field.
template <typename Message>
void ExpectRoundTrip(const Message& message) {
  const Bytes bytes = message.Serialize();
  const Result<Message> parsed = Message::Parse(bytes);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed.value().Serialize(), bytes);
}

template <typename Message>
void ExpectEveryCutIsAnError(const Message& message) {
  Bytes bytes = message.Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result<Message> parsed = Message::Parse(std::span(bytes).first(size));
    ASSERT_FALSE(parsed) << size << " of " << bytes.size() << " bytes were enough";
    EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(Message::Parse(bytes)) << "a byte too many";
}

// Damages messages: each parse ends in a value or an error, and no count makes it allocate more
// than the bytes at hand can fill.
template <typename Message>
void ExpectDamageIsHarmless(const Message& message, uint64_t seed) {
  Prng prng(seed);
  const Bytes good = message.Serialize();
  int num_errors = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes bad = good;
    const size_t num_flips = 1 + prng.Below(4);
    for (size_t i = 0; i < num_flips; ++i) {
      bad[prng.Below(bad.size())] ^= static_cast<std::byte>(1 + prng.Below(255));
    }
    g_allocation_max = 0;
    const Result<Message> parsed = Message::Parse(bad);
    ASSERT_LE(g_allocation_max, 8 * bad.size() + 4096) << "seed " << seed << " round " << round;
    num_errors += parsed ? 0 : 1;
  }
  EXPECT_GT(num_errors, 1000);
}

TEST(StepPlanTest, PlanComesBackAsItWas) {
  ExpectRoundTrip(StepPlan{});
  StepPlan stop;
  stop.stop = true;
  ExpectRoundTrip(stop);
  ExpectRoundTrip(SomePlan());

  const StepPlan parsed = StepPlan::Parse(SomePlan().Serialize()).value();
  EXPECT_EQ(parsed.step, 0x0123'4567'89ab'cdefU);
  EXPECT_FALSE(parsed.stop);
  EXPECT_EQ(parsed.release, (std::vector<uint64_t>{7, 1ULL << 63}));
  ASSERT_EQ(parsed.items.size(), 2u);
  EXPECT_EQ(parsed.items[0].sequence, 3u);
  EXPECT_EQ(parsed.items[0].position, 48u);
  EXPECT_TRUE(parsed.items[0].prefill);
  EXPECT_EQ(parsed.items[0].want, Want::kLogProbs);
  EXPECT_EQ(parsed.items[0].tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(parsed.items[0].targets, (std::vector<int32_t>{6, 7, 2047}));
  EXPECT_FALSE(parsed.items[1].prefill);
  EXPECT_EQ(parsed.items[1].want, Want::kTop);
  EXPECT_EQ(parsed.items[1].top, kTopMax);
  EXPECT_EQ(parsed.items[1].tokens, (std::vector<int32_t>{-1}));
}

TEST(StepPlanTest, ResultComesBackAsItWas) {
  ExpectRoundTrip(StepResult{});
  ExpectRoundTrip(SomeResult());

  const StepResult parsed = StepResult::Parse(SomeResult().Serialize()).value();
  ASSERT_EQ(parsed.ranks.size(), 2u);
  EXPECT_EQ(parsed.ranks[0].waiting_ns, 3u);
  EXPECT_EQ(parsed.ranks[0].rss_own_bytes, 1ULL << 60);
  ASSERT_EQ(parsed.items.size(), 2u);
  ASSERT_EQ(parsed.items[0].top.size(), 2u);
  EXPECT_EQ(parsed.items[0].top[1].token, 3);
  EXPECT_EQ(parsed.items[0].top[1].logit, -1.25F);
  EXPECT_EQ(parsed.items[0].log_sum_exp, 3.75);
  EXPECT_EQ(parsed.items[1].rows, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(parsed.items[1].log_probs, (std::vector<float>{-0.5F, -8}));
}

TEST(StepPlanTest, EveryCutOfAMessageIsAnError) {
  ExpectEveryCutIsAnError(SomePlan());
  ExpectEveryCutIsAnError(SomeResult());
}

TEST(StepPlanTest, DamagedBytesNeitherCrashNorAllocateWithoutBound) {
  ExpectDamageIsHarmless(SomePlan(), 1);
  ExpectDamageIsHarmless(SomeResult(), 2);
}

TEST(StepPlanTest, ContradictoryItemsAreRefused) {
  const struct {
    const char* name;
    void (*spoil)(PlanItem& item);
  } cases[] = {
      {"no tokens", [](PlanItem& item) { item.tokens.clear(), item.targets.clear(); }},
      {"fewer targets than tokens", [](PlanItem& item) { item.targets.pop_back(); }},
      {"more targets than tokens", [](PlanItem& item) { item.targets.push_back(1); }},
      {"top beyond its limit", [](PlanItem& item) { item.top = kTopMax + 1; }},
      {"a want that does not exist", [](PlanItem& item) { item.want = static_cast<Want>(5); }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    StepPlan plan = SomePlan();
    c.spoil(plan.items[0]);
    const Result<StepPlan> parsed = StepPlan::Parse(plan.Serialize());
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(StepPlanTest, MessagesBeyondTheirLimitsAreRefused) {
  StepPlan many_items;
  many_items.items.resize(kPlanItemsMax + 1, {.tokens = {1}, .targets = {}});
  EXPECT_FALSE(StepPlan::Parse(many_items.Serialize()));
  many_items.items.pop_back();
  EXPECT_TRUE(StepPlan::Parse(many_items.Serialize()));

  StepPlan many_released;
  many_released.release.resize(kPlanItemsMax + 1);
  EXPECT_FALSE(StepPlan::Parse(many_released.Serialize()));

  StepResult many_ranks;
  many_ranks.ranks.resize(9);
  EXPECT_FALSE(StepResult::Parse(many_ranks.Serialize()));

  StepResult long_top;
  long_top.items.resize(1);
  long_top.items[0].top.resize(kTopMax + 1);
  EXPECT_FALSE(StepResult::Parse(long_top.Serialize()));
}

TEST(StepPlanTest, CountsTokensAndSeesPrefill) {
  StepPlan plan = SomePlan();
  EXPECT_EQ(plan.NumTokens(), 4u);
  EXPECT_TRUE(plan.HasPrefill());
  plan.items.erase(plan.items.begin());
  EXPECT_EQ(plan.NumTokens(), 1u);
  EXPECT_FALSE(plan.HasPrefill());
}

LogSum SumOf(std::span<const double> logits) {
  LogSum part = {.max = -kInf, .sum = 0};
  for (const double logit : logits) part.max = std::max(part.max, logit);
  for (const double logit : logits) part.sum += std::exp(logit - part.max);
  return part;
}

TEST(LogSumTest, MergedSlicesEqualTheWhole) {
  Prng prng(3);
  for (const double scale : {1.0, 30.0, 700.0}) {  // e^700 and its square overflow a double
    std::vector<double> logits(301);
    for (double& logit : logits) logit = scale * (2 * prng.UniformDouble() - 1);
    const double whole = SumOf(logits).Value();
    for (const size_t num_slices : {size_t{1}, size_t{2}, size_t{3}, size_t{8}, size_t{301}}) {
      SCOPED_TRACE(testing::Message() << "scale " << scale << ", " << num_slices << " slices");
      std::vector<LogSum> parts;
      for (size_t i = 0; i < num_slices; ++i) {
        const size_t begin = 301 * i / num_slices;
        parts.push_back(
            SumOf(std::span(logits).subspan(begin, 301 * (i + 1) / num_slices - begin)));
      }
      EXPECT_NEAR(Merge(parts).Value(), whole, 1e-12 * std::max(1.0, std::fabs(whole)));
    }
  }
}

TEST(LogSumTest, KnownValues) {
  EXPECT_DOUBLE_EQ((LogSum{.max = 2, .sum = 1}).Value(), 2);
  const LogSum two[] = {{.max = 5, .sum = 1}, {.max = 5, .sum = 1}};
  EXPECT_DOUBLE_EQ(Merge(two).Value(), 5 + std::log(2.0));
  const LogSum apart[] = {{.max = -1000, .sum = 1}, {.max = 1000, .sum = 3}};
  EXPECT_DOUBLE_EQ(Merge(apart).Value(), 1000 + std::log(3.0));
}

TEST(LogSumTest, EmptySlicesAddNothing) {
  const LogSum empty = {.max = -kInf, .sum = 0};
  const LogSum parts[] = {empty, {.max = 1, .sum = 2}, empty};
  EXPECT_DOUBLE_EQ(Merge(parts).Value(), 1 + std::log(2.0));
  EXPECT_EQ(Merge(std::span(&empty, 1)).Value(), -kInf);
}

TEST(LogSumTest, NotANumberIsNotLost) {
  const LogSum parts[] = {{.max = 1, .sum = std::nan("")}, {.max = 1, .sum = 2}};
  EXPECT_FALSE(std::isfinite(Merge(parts).Value()));
}

}  // namespace
}  // namespace yoke::engine
