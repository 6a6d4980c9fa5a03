// The bulletin board of a group of ranks on one machine: who lives, what each is doing, and the
// first failure. It lies in the shared segment, so that it can be read after a rank was killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace yoke::fabric {

constexpr int kRanksMax = 8;

enum class Phase : uint32_t { kStarting, kLoading, kIdle, kPrefill, kDecode, kStopping };
enum class Op : uint32_t {
  kNone,
  kAllReduce,
  kAllGather,
  kGather,
  kBroadcast,
  kBarrier,
  kReceivePlan,
  kSendResult,
};

// "decode step 12, all-reduce 31": what a rank was doing, for error messages.
std::string DescribeOp(Phase phase, uint64_t step, Op op, uint64_t op_seq);

// One rank's line. Written by its rank only (heartbeat by that rank's heartbeat thread), read by
// all.
struct alignas(64) BoardLine {
  std::atomic<uint32_t> pid;
  std::atomic<Phase> phase;
  std::atomic<uint64_t> step;
  std::atomic<Op> op;
  std::atomic<uint64_t> op_seq;
  std::atomic<uint64_t> heartbeat_ns;  // monotonic clock of the machine
  std::atomic<uint64_t> loaded_bytes;  // of load_bytes: progress while loading
  std::atomic<uint64_t> load_bytes;
  std::atomic<uint32_t> exited;      // set by the supervisor when it reaped the rank
  std::atomic<int32_t> exit_signal;  // signal that ended it, or 0
  std::atomic<int32_t> exit_code;    // exit status when exit_signal is 0
  // The error that this rank met itself (bad file, ...): written before error_set is stored.
  std::atomic<uint32_t> error_set;
  uint32_t error_code;
  char error_text[1000];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint32_t>::is_always_lock_free &&
                  std::atomic<int32_t>::is_always_lock_free &&
                  std::atomic<Phase>::is_always_lock_free && std::atomic<Op>::is_always_lock_free,
              "a lock inside an atomic would not be shared between processes");

// Zero bytes are a valid fresh board.
struct Board {
  std::atomic<uint32_t> stop;  // the supervisor wants every rank to leave now
  BoardLine lines[kRanksMax];

  // Text is cut to what fits; the first error of a rank stays.
  void ReportError(int rank, const Error& error);
  // For the supervisor, once it has reaped the rank: signal 0 and its exit code, or the signal.
  void ReportExit(int rank, int code, int signal);
  // The cause of failure among ranks 0..num_ranks-1 other than `self` (-1: look at all), or Ok:
  // a reaped rank, a rank's own error, or a heartbeat older than stale_ns. Names rank and
  // operation. An error that another rank's loss may have caused (kUnavailable, ...) comes last.
  // The code is kUnavailable, save that the supervisor gets a rank's own error with that error's
  // code. A rank in kStopping may exit with code 0 and need not beat.
  Status Check(int num_ranks, int self, uint64_t now_ns, uint64_t stale_ns) const;
};

}  // namespace yoke::fabric
