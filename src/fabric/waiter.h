// How a rank waits for peers: spin a little, then yield, after some milliseconds nap; look at the
// board now and then, give up at a deadline. Every wait of the fabric goes through here, so none
// outlasts the loss of a peer, and only those for new work or for a disk have no deadline besides.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "fabric/board.h"

namespace yoke::fabric {

constexpr uint64_t kNoDeadline = UINT64_MAX;

struct WaitLimits {
  uint64_t stale_ns = 2'500'000'000;       // a peer without heartbeat for this long is lost
  uint64_t deadline_ns = 120'000'000'000;  // one wait in all
};

// One rank's (or the supervisor's) way to wait. Not thread-safe.
class Waiter {
 public:
  // board outlives the waiter. self: own rank, or -1 for the supervisor.
  Waiter(const Board& board, int num_ranks, int self, WaitLimits limits);

  // Calls `ready` until it is true; no clock is read if it is true at once. Errors: kCancelled when
  // the supervisor stops the group, kUnavailable for a lost peer, kDeadlineExceeded.
  template <typename Ready>
  Status Until(Ready&& ready) {
    for (Begin();;) {
      if (ready()) return End();
      if (Status state = Pause(); !state) return state;
    }
  }

  uint64_t waited_ns() const { return waited_ns_; }

 private:
  void Begin();
  Status End();
  Status Pause();  // spin, yield or nap; every so often Look
  Status Look(uint64_t now_ns);

  const Board& board_;
  int num_ranks_;
  int self_;
  WaitLimits limits_;
  uint32_t spins_max_;  // pauses before yielding
  uint32_t spins_ = 0;
  uint64_t begin_ns_ = 0;           // of this wait; 0 before its first pause
  uint64_t looked_ns_ = 0;          // when we last looked at the board
  uint64_t watching_since_ns_ = 0;  // since then we looked without a long gap
  uint64_t elapsed_ns_ = 0;         // of this wait; a long gap counts only in part
  uint64_t waited_ns_ = 0;          // sum over all waits
};

}  // namespace yoke::fabric
