#include "fabric/heartbeat.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "fabric/waiter.h"

namespace yoke::fabric {
namespace {

class HeartbeatTest : public ::testing::Test {
 protected:
  // Waits until line 0 has beaten after `beat_ns`.
  bool BeatsAgain(uint64_t beat_ns) {
    Waiter waiter(board_, 1, 0, {.deadline_ns = 10'000'000'000});
    return waiter.Until([&] { return board_.lines[0].heartbeat_ns > beat_ns; }).has_value();
  }

  Board board_{};
};

TEST_F(HeartbeatTest, BeatsAtOnceAndAgain) {
  const uint64_t begin_ns = NowNs();
  auto heartbeat = Heartbeat::Start(board_.lines[0], Fd());
  ASSERT_TRUE(heartbeat);
  const uint64_t first_ns = board_.lines[0].heartbeat_ns;
  EXPECT_GE(first_ns, begin_ns);
  EXPECT_LE(first_ns, NowNs());
  EXPECT_TRUE(BeatsAgain(first_ns));
  EXPECT_TRUE(BeatsAgain(board_.lines[0].heartbeat_ns));
}

TEST_F(HeartbeatTest, EndsWithoutWaitingForItsPeriod) {
  constexpr int kRounds = 30;
  const uint64_t begin_ns = NowNs();
  for (int i = 0; i < kRounds; ++i) ASSERT_TRUE(Heartbeat::Start(board_.lines[0], Fd()));
  EXPECT_LT(NowNs() - begin_ns, kRounds * 100'000'000ull / 2);
}

TEST_F(HeartbeatTest, AnOpenControlPipeIsNoEnd) {
  auto control = MakePipe();
  ASSERT_TRUE(control);
  auto heartbeat = Heartbeat::Start(board_.lines[0], std::move(control.value().read));
  ASSERT_TRUE(heartbeat);
  ASSERT_EQ(write(control.value().write.get(), "x", 1), 1);
  EXPECT_TRUE(BeatsAgain(NowNs()));
  EXPECT_TRUE(BeatsAgain(NowNs()));
  heartbeat = Heartbeat::Start(board_.lines[0], Fd());  // stops the first before the pipe closes
}

TEST_F(HeartbeatTest, EndsTheProcessWhenTheSupervisorIsGone) {
  auto control = MakePipe();
  ASSERT_TRUE(control);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    control.value().write = Fd();  // only the supervisor's end keeps the pipe open
    auto heartbeat = Heartbeat::Start(board_.lines[0], std::move(control.value().read));
    while (heartbeat) pause();
    _exit(1);
  }
  control.value().read = Fd();
  control.value().write = Fd();
  int status = 0;
  Waiter waiter(board_, 1, 0, {.deadline_ns = 10'000'000'000});
  pid_t reaped = 0;
  const Status ended = waiter.Until([&] {
    reaped = waitpid(child, &status, WNOHANG);
    return reaped != 0;
  });
  if (!ended) kill(child, SIGKILL);
  ASSERT_TRUE(ended);
  ASSERT_EQ(reaped, child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kExitSupervisorGone);
}

}  // namespace
}  // namespace yoke::fabric
