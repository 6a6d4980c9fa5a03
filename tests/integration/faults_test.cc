// A rank that is killed, stopped or left alone, in load, prefill and decode: an error within 5 s
// that names it and what it was doing, and nothing left behind.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/rank_group.h"
#include "sys/process.h"

namespace yoke::engine {
namespace {

constexpr uint64_t kLostNs = 5'000'000'000;
const std::string kModel = std::string(YOKE_SOURCE_DIR) + "/models/demo-k3";

GroupOptions Ranks(size_t num_ranks) {
  return {.model_folder = kModel, .shares = std::vector<size_t>(num_ranks, 1), .tokens_max = 64};
}

StepPlan Prefill(size_t num_tokens) {
  StepPlan plan;
  plan.items.push_back({.sequence = 0,
                        .position = 0,
                        .prefill = true,
                        .want = Want::kTop,
                        .top = 4,
                        .tokens = std::vector<int32_t>(num_tokens, 300),
                        .targets = {}});
  return plan;
}

StepPlan Decode(size_t position) {
  StepPlan plan;
  plan.items.push_back({.sequence = 0,
                        .position = static_cast<uint32_t>(position),
                        .prefill = false,
                        .want = Want::kTop,
                        .top = 4,
                        .tokens = {301},
                        .targets = {}});
  return plan;
}

std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    names.insert(entry.path().filename());
  }
  return names;
}

bool IsAlive(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:")) return line.find('Z') == std::string::npos;
  }
  return false;
}

std::vector<int> ChildrenOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<int> children;
  for (int child = 0; file >> child;) children.push_back(child);
  return children;
}

template <typename Done>
bool Within5s(Done&& done) {
  const uint64_t deadline_ns = NowNs() + kLostNs;
  while (NowNs() < deadline_ns) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return done();
}

class FaultsTest : public testing::Test {
 protected:
  void SetUp() override { names_before_ = SharedMemoryNames(); }
  void TearDown() override {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(SharedMemoryNames(), names_before_);
  }

  std::unique_ptr<RankGroup> Start(size_t num_ranks) {
    auto group = RankGroup::Start(YOKE_BINARY, Ranks(num_ranks), {});
    EXPECT_TRUE(group) << group.error().message();
    return group ? std::move(group).value() : nullptr;
  }

  // What must be true of the error that a lost rank gives.
  static void ExpectNamed(const Status& status, int rank, const std::string& how,
                          uint64_t begin_ns) {
    ASSERT_FALSE(status) << "the loss of rank " << rank << " went unnoticed";
    EXPECT_LT(NowNs() - begin_ns, kLostNs);
    const std::string& message = status.error().message();
    EXPECT_NE(message.find("rank " + std::to_string(rank)), std::string::npos) << message;
    EXPECT_NE(message.find(how), std::string::npos) << message;
    EXPECT_TRUE(
        message.find("load") != std::string::npos || message.find("start") != std::string::npos ||
        message.find("step") != std::string::npos || message.find("plan") != std::string::npos)
        << "does not say what the rank was doing: " << message;
  }

  static Status ToStatus(Result<StepResult> result) {
    if (result) return Ok{};
    return std::move(result).error();
  }

  std::set<std::string> names_before_;
};

constexpr const char* kKilled = "killed by signal 9";
constexpr const char* kStopped = "does not respond";

TEST_F(FaultsTest, ARankKilledOrStoppedWhileLoadingIsNamed) {
  for (const int signal_number : {SIGKILL, SIGSTOP}) {
    for (const int rank : {0, 1}) {
      SCOPED_TRACE(testing::Message() << "signal " << signal_number << " rank " << rank);
      uint64_t begin_ns = 0;
      auto group = RankGroup::Start(
          YOKE_BINARY, Ranks(2),
          {.on_progress = nullptr, .on_spawned = [&](const std::vector<int>& pids) {
             begin_ns = NowNs();
             kill(pids.at(static_cast<size_t>(rank)), signal_number);
           }});
      ExpectNamed(group ? Status(Ok{}) : Status(group.error()), rank,
                  signal_number == SIGKILL ? kKilled : kStopped, begin_ns);
    }
  }
}

// The rank is lost before the step begins, so that the others must notice inside it.
TEST_F(FaultsTest, ARankKilledOrStoppedBeforePrefillOrDecodeIsNamed) {
  for (const bool decode : {false, true}) {
    for (const int signal_number : {SIGKILL, SIGSTOP}) {
      for (const int rank : {0, 2}) {
        SCOPED_TRACE(testing::Message() << (decode ? "decode" : "prefill") << ", signal "
                                        << signal_number << ", rank " << rank);
        const auto group = Start(3);
        ASSERT_TRUE(group);
        if (decode) {
          ASSERT_TRUE(group->Step(Prefill(32)));
        }
        const uint64_t begin_ns = NowNs();
        kill(group->pids().at(static_cast<size_t>(rank)), signal_number);
        ExpectNamed(ToStatus(group->Step(decode ? Decode(32) : Prefill(32))), rank,
                    signal_number == SIGKILL ? kKilled : kStopped, begin_ns);
      }
    }
  }
}

// Killed at any moment of a running step, collectives included.
TEST_F(FaultsTest, ARankKilledInTheMiddleOfDecodeIsNamed) {
  for (int trial = 0; trial < 8; ++trial) {
    const int rank = trial % 2;
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const auto group = Start(2);
    ASSERT_TRUE(group);
    ASSERT_TRUE(group->Step(Prefill(16)));
    std::atomic<uint64_t> begin_ns = 0;
    std::atomic<bool> stepping = false;
    std::thread killer([&] {
      stepping.wait(false);
      const uint64_t until_ns = NowNs() + 700'000 * static_cast<uint64_t>(trial);
      while (NowNs() < until_ns) std::this_thread::yield();
      begin_ns = NowNs();
      kill(group->pids().at(static_cast<size_t>(rank)), SIGKILL);
    });
    stepping = true;
    stepping.notify_one();
    Status status = Ok{};
    for (size_t position = 16; status && position < 4000; ++position) {
      status = ToStatus(group->Step(Decode(position)));
    }
    killer.join();
    ExpectNamed(status, rank, kKilled, begin_ns);
    EXPECT_FALSE(group->Step(Decode(17))) << "a group without a rank must not go on";
  }
}

TEST_F(FaultsTest, RanksEndWithASupervisorThatIsKilled) {
  for (const bool one_stopped : {false, true}) {
    SCOPED_TRACE(one_stopped);
    Result<Pipe> out = MakePipe();
    ASSERT_TRUE(out);
    auto supervisor = ChildProcess::Spawn({.argv = {YOKE_BINARY, "run", kModel, "--ranks", "3",
                                                    "-n", "4000", "--temp", "0", "-p", "And"},
                                           .fds = {{out.value().write.get(), 1}, {2, 2}},
                                           .env = {}});
    ASSERT_TRUE(supervisor);
    std::vector<int> ranks;
    ASSERT_TRUE(Within5s([&] {
      ranks = ChildrenOf(supervisor.value().pid());
      return ranks.size() == 3;
    }));
    if (one_stopped) kill(ranks[1], SIGSTOP);
    supervisor.value().Kill();
    for (const int rank : ranks) {
      EXPECT_TRUE(Within5s([rank] { return !IsAlive(rank); })) << "rank process " << rank;
    }
  }
}

TEST_F(FaultsTest, AnOrderlyEndLeavesNothing) {
  const auto group = Start(4);
  ASSERT_TRUE(group);
  ASSERT_TRUE(group->Step(Prefill(16)));
  const Status stopped = group->Stop();
  EXPECT_TRUE(stopped) << stopped.error().message();
  for (const int pid : group->pids()) EXPECT_FALSE(IsAlive(pid));
}

TEST_F(FaultsTest, APlanThatContradictsTheSequencesEndsTheGroupWithAReason) {
  const auto group = Start(2);
  ASSERT_TRUE(group);
  const Result<StepResult> result = group->Step(Decode(5));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("position 0, not 5"), std::string::npos)
      << result.error().message();
}

}  // namespace
}  // namespace yoke::engine
