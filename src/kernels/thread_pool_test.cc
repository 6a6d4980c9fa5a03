#include "kernels/thread_pool.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace yoke::kernels {
namespace {

struct PoolCase {
  size_t num_threads;
  bool oversubscribed;
};

class ThreadPoolTest : public testing::TestWithParam<PoolCase> {
 protected:
  ThreadPool pool_{{GetParam().num_threads, GetParam().oversubscribed}};
  const size_t num_threads_ = GetParam().num_threads;
};

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest,
                         testing::Values(PoolCase{1, false}, PoolCase{2, false}, PoolCase{2, true},
                                         PoolCase{4, false}, PoolCase{4, true}),
                         [](const auto& pool_case) {
                           return std::to_string(pool_case.param.num_threads) +
                                  (pool_case.param.oversubscribed ? "Oversubscribed" : "Threads");
                         });

TEST_P(ThreadPoolTest, RunsTheBodyOnceOnEveryThread) {
  std::vector<size_t> calls(num_threads_);
  std::vector<std::thread::id> ids(num_threads_);
  for (int run = 0; run < 30; ++run) {
    pool_.Run([&](size_t thread_idx) {
      ++calls[thread_idx];
      ids[thread_idx] = std::this_thread::get_id();
    });
  }
  EXPECT_EQ(calls, std::vector<size_t>(num_threads_, 30));
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), num_threads_);
}

// Each thread reads what another wrote just before the barrier: a thread that slips through one
// reads an old number (and the thread sanitizer reports it).
TEST_P(ThreadPoolTest, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  constexpr size_t kPhases = 60;
  std::vector<size_t> phase_of(num_threads_);
  std::vector<size_t> num_wrong(num_threads_);
  pool_.Run([&](size_t thread_idx) {
    for (size_t phase = 1; phase <= kPhases; ++phase) {
      phase_of[thread_idx] = phase;
      pool_.Barrier();
      for (const size_t seen : phase_of) num_wrong[thread_idx] += seen == phase ? 0 : 1;
      pool_.Barrier();
    }
  });
  EXPECT_EQ(num_wrong, std::vector<size_t>(num_threads_));
}

TEST_P(ThreadPoolTest, HandsOutEachUnitOnceInEveryPhase) {
  constexpr size_t kPhases = 20;
  constexpr size_t kUnits = 37;
  std::vector<std::vector<int>> taken(kPhases, std::vector<int>(kUnits));
  for (int run = 0; run < 3; ++run) {
    pool_.Run([&](size_t) {
      for (size_t phase = 0; phase < kPhases; ++phase) {
        for (size_t unit = pool_.NextUnit(); unit < kUnits; unit = pool_.NextUnit()) {
          ++taken[phase][unit];
        }
        pool_.Barrier();
      }
    });
  }
  EXPECT_EQ(taken, std::vector<std::vector<int>>(kPhases, std::vector<int>(kUnits, 3)));
}

TEST_P(ThreadPoolTest, RunsAgainAfterTheThreadsWentToSleep) {
  size_t num_calls = 0;
  for (int run = 0; run < 3; ++run) {
    std::vector<size_t> calls(num_threads_);
    pool_.Run([&](size_t thread_idx) { ++calls[thread_idx]; });
    for (const size_t count : calls) num_calls += count;
    // Longer than any spin before the sleep.
    for (int i = 0; i < 3000; ++i) std::this_thread::yield();
  }
  EXPECT_EQ(num_calls, 3 * num_threads_);
}

TEST(ThreadPoolEndTest, EndsWithoutARun) {
  for (int i = 0; i < 6; ++i) ThreadPool pool({3, i % 2 == 0});
}

}  // namespace
}  // namespace yoke::kernels
