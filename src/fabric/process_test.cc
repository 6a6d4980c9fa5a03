// Ranks as real processes: one is killed or stopped in the middle of all-reduces.
#include "sys/process.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "fabric/heartbeat.h"
#include "fabric/test_net.h"

namespace yoke::fabric {
namespace {

constexpr int kNumRanks = 3;
constexpr int kVictim = 1;

class ProcessTest : public ::testing::Test {
 protected:
  ~ProcessTest() override {
    for (pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  void StartRanks(WaitLimits limits) {
    control_ = std::move(MakePipe()).value();
    for (int rank = 0; rank < kNumRanks; ++rank) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) RunRank(rank, limits);
      pids_.push_back(pid);
    }
    EXPECT_TRUE(WaitFor([&] { return OpSeq(0) > 100; })) << "ranks must be at work";
  }

  // In the child: all-reduces without end; the first error goes to the board.
  [[noreturn]] void RunRank(int rank, WaitLimits limits) {
    control_.write = Fd();
    BoardLine& line = board().lines[rank];
    auto heartbeat = Heartbeat::Start(line, std::move(control_.read));
    line.step = 7;
    line.phase = Phase::kDecode;
    Group group = MakeGroup(net_, kNumRanks, rank, limits);
    std::vector<float> data(7168);
    while (heartbeat && group.AllReduce(data)) {
    }
    _exit(0);
  }

  bool WaitFor(const std::function<bool()>& ready) {
    const Board none{};
    Waiter waiter(none, 0, -1, {.deadline_ns = 10'000'000'000});
    return waiter.Until(ready).has_value();
  }

  bool HaveFailed(int rank) { return board().lines[rank].error_set.load() != 0; }
  uint64_t OpSeq(int rank) { return board().lines[rank].op_seq; }
  pid_t pid(int rank) { return pids_[static_cast<size_t>(rank)]; }
  Board& board() { return net_.board(); }

  // Both survivors end with an error that begins with this, and the supervisor hears it too.
  void ExpectSurvivorsName(const std::string& loss, uint64_t since_ns) {
    EXPECT_TRUE(WaitFor([&] { return HaveFailed(0) && HaveFailed(2); }));
    EXPECT_LT(NowNs() - since_ns, 5'000'000'000u);
    for (int rank : {0, 2}) {
      const std::string text = board().lines[rank].error_text;
      EXPECT_NE(text.find(loss), std::string::npos) << text;
      EXPECT_NE(text.find(" during decode step 7"), std::string::npos) << text;
    }
    const Status status = board().Check(kNumRanks, -1, NowNs(), WaitLimits().stale_ns);
    ASSERT_FALSE(status);
    EXPECT_TRUE(status.error().message().starts_with(loss)) << status.error().message();
  }

  ShmTestNet net_{kNumRanks};
  Pipe control_;
  std::vector<pid_t> pids_;
};

TEST_F(ProcessTest, AKilledRankEndsTheOthers) {
  StartRanks({});
  const uint64_t begin_ns = NowNs();
  ASSERT_EQ(kill(pid(kVictim), SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid(kVictim), &status, 0), pid(kVictim));
  ASSERT_TRUE(WIFSIGNALED(status));
  board().ReportExit(kVictim, 0, WTERMSIG(status));
  ExpectSurvivorsName("rank 1 was killed by signal 9 (Killed)", begin_ns);
}

TEST_F(ProcessTest, AStoppedRankEndsTheOthers) {
  StartRanks({});
  const uint64_t begin_ns = NowNs();
  ASSERT_EQ(kill(pid(kVictim), SIGSTOP), 0);
  ExpectSurvivorsName("rank 1 does not respond (no heartbeat for ", begin_ns);
}

// Ctrl-Z and fg stop and continue all of them: nobody is lost.
TEST_F(ProcessTest, AGroupThatIsStoppedAsAWholeGoesOn) {
  constexpr uint64_t kStaleNs = 500'000'000;
  StartRanks({.stale_ns = kStaleNs});
  for (pid_t pid : pids_) ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const uint64_t begin_ns = NowNs();
  ASSERT_TRUE(WaitFor([&] { return NowNs() - begin_ns > kStaleNs + kStaleNs / 2; }));
  const uint64_t reached = OpSeq(0);
  for (pid_t pid : pids_) ASSERT_EQ(kill(pid, SIGCONT), 0);
  EXPECT_TRUE(WaitFor([&] { return OpSeq(0) > reached + 100 || HaveFailed(0); }));
  for (int rank = 0; rank < kNumRanks; ++rank) {
    EXPECT_FALSE(HaveFailed(rank)) << board().lines[rank].error_text;
  }
}

TEST_F(ProcessTest, RanksEndWithTheirSupervisor) {
  StartRanks({});
  control_.write = Fd();
  for (int rank = 0; rank < kNumRanks; ++rank) {
    int status = 0;
    EXPECT_TRUE(WaitFor([&] { return waitpid(pid(rank), &status, WNOHANG) == pid(rank); }));
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), kExitSupervisorGone);
  }
  pids_.clear();
}

}  // namespace
}  // namespace yoke::fabric
