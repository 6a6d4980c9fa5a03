// A lost, silent or late rank: every collective that needs it ends with an error that names it.
#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "fabric/group.h"
#include "fabric/test_net.h"
#include "sys/process.h"

namespace yoke::fabric {
namespace {

constexpr int kNumRanks = 3;
constexpr int kLost = 1;
constexpr size_t kFloats = 8 * kSlotBytes / sizeof(float);  // more than a ring holds

struct Fault {
  const char* name;
  void (*mark)(Board& board);
  const char* message;  // its beginning
};

const Fault kFaults[] = {
    {"killed", [](Board& board) { board.ReportExit(kLost, 0, SIGKILL); },
     "rank 1 was killed by signal 9 (Killed) during decode step 3, all-reduce 5"},
    {"exited", [](Board& board) { board.ReportExit(kLost, 4, 0); }, "rank 1 exited with code 4"},
    {"own error",
     [](Board& board) { board.ReportError(kLost, Error(ErrorCode::kCorrupt, "bad shard")); },
     "rank 1: bad shard"},
    {"silent", [](Board& board) { board.lines[kLost].heartbeat_ns = NowNs() - 1'000'000'000; },
     "rank 1 does not respond (no heartbeat for "},
};

struct Operation {
  const char* name;
  std::vector<int> stuck;  // ranks that cannot finish without the lost one
  Status (*run)(Group& group, std::vector<float>& data);
};

const std::vector<size_t> kOffsets = {0, kFloats / 4, kFloats / 2, kFloats};

const Operation kOperations[] = {
    {"all-reduce", {0, 2}, [](Group& g, std::vector<float>& d) { return g.AllReduce(d); }},
    {"all-gather",
     {0, 2},
     [](Group& g, std::vector<float>& d) { return g.AllGather(d, kOffsets); }},
    {"barrier", {0, 2}, [](Group& g, std::vector<float>&) { return g.Barrier(); }},
    {"gather to 0",
     {0},
     [](Group& g, std::vector<float>& d) {
       return g.Gather(0, std::as_writable_bytes(std::span(d)), kOffsets);
     }},
    {"gather to the lost",
     {2},
     [](Group& g, std::vector<float>& d) {
       const std::vector<size_t> offsets = {0, 0, 0, d.size() * sizeof(float)};
       return g.Gather(kLost, std::as_writable_bytes(std::span(d)), offsets);
     }},
    {"broadcast by the lost",
     {0, 2},
     [](Group& g, std::vector<float>& d) {
       return g.Broadcast(kLost, std::as_writable_bytes(std::span(d)));
     }},
    {"await from the lost",
     {0, 2},
     [](Group& g, std::vector<float>&) { return g.AwaitFrom(kLost); }},
    {"broadcast by 0",
     {0},
     [](Group& g, std::vector<float>& d) {
       return g.Broadcast(0, std::as_writable_bytes(std::span(d)));
     }},
};

void ShowDecodeStep(Board& board) {
  BoardLine& line = board.lines[kLost];
  line.phase = Phase::kDecode;
  line.step = 3;
  line.op = Op::kAllReduce;
  line.op_seq = 5;
}

TEST(GroupFaultTest, EveryCollectiveNamesTheLostRank) {
  constexpr WaitLimits kLimits{.stale_ns = 300'000'000, .deadline_ns = 20'000'000'000};
  for (const Backend& backend : kBackends) {
    for (const Fault& fault : kFaults) {
      for (const Operation& operation : kOperations) {
        SCOPED_TRACE(std::string(backend.name) + ", " + fault.name + ", " + operation.name);
        std::unique_ptr<TestNet> net = backend.make(kNumRanks);
        ShowDecodeStep(net->board());
        fault.mark(net->board());
        RunRanks(
            *net, kNumRanks, {0, 2},
            [&](Group& group) {
              std::vector<float> data(kFloats);
              const Status status = operation.run(group, data);
              const std::vector<int>& stuck = operation.stuck;
              if (std::find(stuck.begin(), stuck.end(), group.rank()) == stuck.end()) return;
              ASSERT_FALSE(status);
              // A rank may learn it from the other one's report, which then comes in front.
              EXPECT_NE(status.error().message().find(fault.message), std::string::npos)
                  << status.error().message();
              EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable);
              EXPECT_EQ(net->board().lines[group.rank()].op, Op::kNone);
              EXPECT_FALSE(group.Barrier()) << "a failed group must stay failed";
            },
            kLimits);
        // The supervisor hears the cause, whatever the survivors say.
        const Status cause = net->board().Check(kNumRanks, -1, NowNs(), kLimits.stale_ns);
        ASSERT_FALSE(cause);
        EXPECT_TRUE(cause.error().message().starts_with(fault.message)) << cause.error().message();
      }
    }
  }
}

TEST(GroupFaultTest, DeadlineNamesWhoIsMissing) {
  for (const Backend& backend : kBackends) {
    std::unique_ptr<TestNet> net = backend.make(2);
    Group group = MakeGroup(*net, 2, 0, {.deadline_ns = 50'000'000});
    std::vector<float> data(10);
    const Status status = group.AllReduce(data);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(status.error().message(), "rank 0 waits for rank 1: no answer within 0.05 s");
    EXPECT_GT(group.stats().waited_ns, 40'000'000u);
  }
}

TEST(GroupFaultTest, StopEndsTheWait) {
  for (const Backend& backend : kBackends) {
    std::unique_ptr<TestNet> net = backend.make(kNumRanks);
    RunRanks(*net, kNumRanks, {0, 1}, [&](Group& group) {
      if (group.rank() == 1) {
        net->board().stop = 1;
        return;
      }
      const Status status = group.Barrier();
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code(), ErrorCode::kCancelled);
    });
  }
}

}  // namespace
}  // namespace yoke::fabric
