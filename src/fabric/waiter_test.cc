#include "fabric/waiter.h"

#include <csignal>
#include <limits>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "sys/process.h"

namespace yoke::fabric {
namespace {

constexpr uint64_t kMs = 1'000'000;

class WaiterTest : public ::testing::Test {
 protected:
  Status WaitForever(WaitLimits limits, int self = 0) {
    Waiter waiter(*board_, 2, self, limits);
    return waiter.Until([] { return false; });
  }

  std::unique_ptr<Board> board_ = std::make_unique<Board>();
};

TEST_F(WaiterTest, ReadyAtOnceWaitsNothing) {
  Waiter waiter(*board_, 2, 0, {});
  ASSERT_TRUE(waiter.Until([] { return true; }));
  EXPECT_EQ(waiter.waited_ns(), 0u);
}

// Long enough to go through spinning, yielding and napping.
TEST_F(WaiterTest, AddsUpTheTimeWaited) {
  Waiter waiter(*board_, 2, 0, {});
  uint64_t sum_ns = 0;
  for (int wait = 0; wait < 2; ++wait) {
    uint64_t second_call_ns = 0;
    uint64_t last_call_ns = 0;
    int num_calls = 0;
    const uint64_t begin_ns = NowNs();
    ASSERT_TRUE(waiter.Until([&] {
      last_call_ns = NowNs();
      if (++num_calls == 2) second_call_ns = last_call_ns;
      return num_calls > 2 && last_call_ns - second_call_ns >= 30 * kMs;
    }));
    EXPECT_LE(waiter.waited_ns() - sum_ns, NowNs() - begin_ns);
    sum_ns += last_call_ns - second_call_ns;
    EXPECT_GE(waiter.waited_ns(), sum_ns);
    sum_ns = waiter.waited_ns();
  }
}

TEST_F(WaiterTest, SeesWhatAnotherThreadStores) {
  std::atomic<bool> asked{false};
  std::atomic<bool> answered{false};
  std::thread peer([&] {
    while (!asked.load(std::memory_order_acquire)) std::this_thread::yield();
    answered.store(true, std::memory_order_release);
  });
  Waiter waiter(*board_, 2, 0, {});
  EXPECT_TRUE(waiter.Until([&] {
    asked.store(true, std::memory_order_release);
    return answered.load(std::memory_order_acquire);
  }));
  peer.join();
}

TEST_F(WaiterTest, EndsAtTheDeadline) {
  const uint64_t begin_ns = NowNs();
  const Status status = WaitForever({.deadline_ns = 40 * kMs});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(status.error().message(), "no answer within 0.04 s");
  EXPECT_GE(NowNs() - begin_ns, 40 * kMs);
}

TEST_F(WaiterTest, EndsWhenTheSupervisorStops) {
  board_->stop = 1;
  const Status status = WaitForever({});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCancelled);
}

TEST_F(WaiterTest, EndsWhenAPeerIsLost) {
  board_->ReportExit(1, 0, SIGKILL);
  Status status = WaitForever({});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "rank 1 was killed by signal 9 (Killed) during start-up");
  // The lost one is the waiter itself: not its business.
  EXPECT_EQ(WaitForever({.deadline_ns = 20 * kMs}, /*self=*/1).error().code(),
            ErrorCode::kDeadlineExceeded);
  // The supervisor looks at all ranks.
  EXPECT_EQ(WaitForever({}, /*self=*/-1).error().code(), ErrorCode::kUnavailable);
}

TEST_F(WaiterTest, EndsWhenAHeartbeatIsStaleButWatchesFirst) {
  const uint64_t begin_ns = NowNs();
  board_->lines[1].heartbeat_ns = begin_ns - 1000 * kMs;
  const Status status = WaitForever({.stale_ns = 500 * kMs, .deadline_ns = 5000 * kMs});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(status.error().message().starts_with("rank 1 does not respond"));
  EXPECT_GE(NowNs() - begin_ns, 100 * kMs);
}

TEST_F(WaiterTest, NoLimitIsNeverReached) {
  constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  Waiter waiter(*board_, 2, 0, {.stale_ns = kNever, .deadline_ns = kNever});
  const uint64_t begin_ns = NowNs();
  board_->lines[1].heartbeat_ns = 1;
  EXPECT_TRUE(waiter.Until([&] { return NowNs() - begin_ns >= 20 * kMs; }));
}

}  // namespace
}  // namespace yoke::fabric
