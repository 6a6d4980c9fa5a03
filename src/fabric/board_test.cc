#include "fabric/board.h"

#include <csignal>
#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace yoke::fabric {
namespace {

constexpr uint64_t kNowNs = 100'000'000'000;
constexpr uint64_t kStaleNs = 2'500'000'000;

class BoardTest : public ::testing::Test {
 protected:
  // Three ranks that beat.
  BoardTest() : board_(std::make_unique<Board>()) {
    for (int r = 0; r < 3; ++r) board_->lines[r].heartbeat_ns = kNowNs - 50'000'000;
  }

  void SetDoing(int rank, Phase phase, uint64_t step, Op op, uint64_t op_seq) {
    BoardLine& line = board_->lines[rank];
    line.phase = phase;
    line.step = step;
    line.op = op;
    line.op_seq = op_seq;
  }

  Status Check(int self = -1) { return board_->Check(3, self, kNowNs, kStaleNs); }
  std::string Message(int self = -1) {
    const Status status = Check(self);
    return status ? "ok" : status.error().message();
  }

  std::unique_ptr<Board> board_;
};

TEST(DescribeOpTest, NamesPhaseAndOperation) {
  EXPECT_EQ(DescribeOp(Phase::kDecode, 12, Op::kAllReduce, 31), "decode step 12, all-reduce 31");
  EXPECT_EQ(DescribeOp(Phase::kPrefill, 1, Op::kNone, 31), "prefill step 1");
  EXPECT_EQ(DescribeOp(Phase::kLoading, 0, Op::kBarrier, 1), "loading, barrier 1");
  EXPECT_EQ(DescribeOp(Phase::kIdle, 0, Op::kReceivePlan, 4),
            "the wait for work, receiving plan 4");
  EXPECT_EQ(DescribeOp(Phase{77}, 0, Op{78}, 5), "an unknown phase, unknown operation 5");
}

TEST_F(BoardTest, FreshAndBeatingRanksAreWell) {
  EXPECT_EQ(Message(), "ok");
  board_->lines[1].heartbeat_ns = 0;  // has not started to beat
  EXPECT_EQ(Message(), "ok");
  board_->lines[1].heartbeat_ns = kNowNs + 5;  // beat after the caller read the clock
  EXPECT_EQ(Message(), "ok");
}

TEST_F(BoardTest, NamesSignalAndOperationOfAKilledRank) {
  SetDoing(1, Phase::kDecode, 12, Op::kAllReduce, 31);
  board_->ReportExit(1, 0, SIGKILL);
  EXPECT_EQ(Message(),
            "rank 1 was killed by signal 9 (Killed) during decode step 12, all-reduce 31");
  EXPECT_EQ(Check().error().code(), ErrorCode::kUnavailable);
}

TEST_F(BoardTest, NamesExitCode) {
  SetDoing(2, Phase::kLoading, 0, Op::kNone, 0);
  board_->ReportExit(2, 7, 0);
  EXPECT_EQ(Message(), "rank 2 exited with code 7 during loading");
}

TEST_F(BoardTest, OrderlyExitIsNoFailureOnlyInShutdown) {
  board_->ReportExit(2, 0, 0);
  EXPECT_EQ(Message(), "rank 2 exited with code 0 during start-up");
  board_->lines[2].phase = Phase::kStopping;
  board_->lines[2].heartbeat_ns = 1;
  EXPECT_EQ(Message(), "ok");
  board_->ReportExit(2, 1, 0);
  EXPECT_EQ(Message(), "rank 2 exited with code 1 during shutdown");
}

TEST_F(BoardTest, NamesASilentRank) {
  SetDoing(2, Phase::kPrefill, 1, Op::kGather, 9);
  board_->lines[2].heartbeat_ns = kNowNs - 2'600'000'000;
  EXPECT_EQ(Message(),
            "rank 2 does not respond (no heartbeat for 2.6 s) during prefill step 1, gather 9");
  board_->lines[2].heartbeat_ns = kNowNs - kStaleNs;
  EXPECT_EQ(Message(), "ok");
}

TEST_F(BoardTest, LooksAtOthersOnly) {
  board_->ReportExit(1, 0, SIGSEGV);
  EXPECT_EQ(Message(/*self=*/1), "ok");
  EXPECT_NE(Message(/*self=*/0), "ok");
  board_->ReportExit(5, 1, 0);  // beyond num_ranks
  EXPECT_EQ(Message(/*self=*/1), "ok");
}

TEST_F(BoardTest, OwnErrorKeepsItsCodeForTheSupervisor) {
  board_->ReportError(0, Error(ErrorCode::kNotFound, "no such model: x"));
  board_->ReportError(0, Error(ErrorCode::kCorrupt, "a later one"));
  EXPECT_EQ(Message(), "rank 0: no such model: x");
  EXPECT_EQ(Check().error().code(), ErrorCode::kNotFound);
  // For a peer it is the loss of that rank, and so not mistaken for an error of its own.
  EXPECT_EQ(Check(/*self=*/1).error().code(), ErrorCode::kUnavailable);
}

TEST_F(BoardTest, CauseComesBeforeConsequence) {
  board_->ReportError(0, Error(ErrorCode::kUnavailable, "rank 2 is lost"));
  EXPECT_EQ(Message(), "rank 0: rank 2 is lost");
  board_->lines[2].heartbeat_ns = 1;
  EXPECT_TRUE(Message().starts_with("rank 2 does not respond")) << Message();
  board_->ReportError(1, Error(ErrorCode::kCorrupt, "bad shard"));
  board_->ReportExit(1, 2, 0);
  EXPECT_EQ(Message(), "rank 1: bad shard");
  board_->ReportExit(2, 0, SIGABRT);
  EXPECT_TRUE(Message().starts_with("rank 2 was killed by signal 6 (Aborted)")) << Message();
}

TEST_F(BoardTest, CutsLongTextBetweenCharacters) {
  const std::string prefix(sizeof(BoardLine::error_text) - 2, 'x');
  board_->ReportError(0, Error(ErrorCode::kCorrupt, prefix + "\xC3\xA9 and more"));
  EXPECT_EQ(Message(), "rank 0: " + prefix);
  board_->ReportError(1, Error(ErrorCode::kCorrupt, prefix + "yz"));
  board_->lines[0].error_set = 0;
  EXPECT_EQ(Message(), "rank 1: " + prefix + "y");
}

TEST_F(BoardTest, TextWithoutEndIsNotOverrun) {
  BoardLine& line = board_->lines[2];
  std::fill(std::begin(line.error_text), std::end(line.error_text), 'z');
  line.error_set = 1;
  EXPECT_EQ(Message(), "rank 2: " + std::string(sizeof(line.error_text), 'z'));
}

}  // namespace
}  // namespace yoke::fabric
