// How a rank waits for peers: spin a little, then yield, look at the board now and then, give up at
// a deadline. Every wait of the fabric goes through here, so none is without a bound.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "fabric/board.h"

namespace yoke::fabric {

struct WaitLimits {
  uint64_t stale_ns = 2'500'000'000;     // a peer without heartbeat for this long is lost
  uint64_t deadline_ns = 120'000'000'000;  // one wait in all
};

// One rank's (or the supervisor's) way to wait. Not thread-safe.
class Waiter {
 public:
  // board outlives the waiter. self: own rank, or -1 for the supervisor.
  Waiter(const Board& board, int num_ranks, int self, WaitLimits limits);

  // Calls `ready` until it is true. Time spent is added to waited_ns().
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
  Status Pause();  // spin, then yield; every so often check board and deadline

  const Board& board_;
  int num_ranks_;
  int self_;
  WaitLimits limits_;
  uint32_t spins_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t waited_ns_ = 0;
};

}  // namespace yoke::fabric
