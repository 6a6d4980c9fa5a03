#include "fabric/waiter.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>

#include "sys/cpu_relax.h"
#include "sys/process.h"

namespace yoke::fabric {
namespace {

constexpr uint64_t kLookNs = 1'000'000;
constexpr uint32_t kPausesPerClock = 64;
// Where each waiting process has a core, spinning covers the usual skew between ranks; where not,
// the core that we hold is the one that the peer needs.
constexpr uint32_t kSpinsMax = 2048;
constexpr uint32_t kSpinsMaxShortOfCores = 64;
// From here on a wait naps for 1/64 of the time waited so far: a rank that waits for work does not
// burn a core, and no answer comes more than 1.6 % later.
constexpr uint64_t kNapAfterNs = 10'000'000;
constexpr uint64_t kNapNsMax = 1'000'000;

}  // namespace

Waiter::Waiter(const Board& board, int num_ranks, int self, WaitLimits limits)
    : board_(board),
      num_ranks_(num_ranks),
      self_(self),
      limits_(limits),
      spins_max_(self >= 0 && num_ranks <= NumCores() ? kSpinsMax : kSpinsMaxShortOfCores) {}

void Waiter::Begin() {
  spins_ = 0;
  begin_ns_ = 0;
}

Status Waiter::End() {
  if (begin_ns_ != 0) waited_ns_ += NowNs() - begin_ns_;
  return Ok{};
}

Status Waiter::Pause() {
  if (begin_ns_ == 0) {
    begin_ns_ = looked_ns_ = watching_since_ns_ = NowNs();
    elapsed_ns_ = 0;
  }
  if (spins_ < spins_max_) {
    CpuRelax();
    if (++spins_ % kPausesPerClock != 0) return Ok{};
  } else {
    const uint64_t waited_ns = looked_ns_ - begin_ns_;
    if (waited_ns < kNapAfterNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(waited_ns / 64, kNapNsMax)));
    }
  }
  const uint64_t now_ns = NowNs();
  if (now_ns - looked_ns_ < kLookNs) return Ok{};
  Status status = Look(now_ns);
  if (!status) waited_ns_ += now_ns - begin_ns_;
  return status;
}

Status Waiter::Look(uint64_t now_ns) {
  // A long gap means that we were stopped ourselves (Ctrl-Z, a debugger, a machine out of memory),
  // and then probably our peers too: they get time to beat again before they count as lost.
  const uint64_t watch_ns = limits_.stale_ns / 5;
  const uint64_t gap_ns = now_ns - looked_ns_;
  if (gap_ns > watch_ns) watching_since_ns_ = now_ns;
  elapsed_ns_ += std::min(gap_ns, watch_ns);
  looked_ns_ = now_ns;
  if (board_.stop.load(std::memory_order_relaxed) != 0) {
    return Error(ErrorCode::kCancelled, "the supervisor stopped the group");
  }
  const bool watched = now_ns - watching_since_ns_ >= watch_ns;
  const uint64_t stale_ns = watched ? limits_.stale_ns : std::numeric_limits<uint64_t>::max();
  YOKE_RETURN_IF_ERROR(board_.Check(num_ranks_, self_, now_ns, stale_ns));
  if (elapsed_ns_ >= limits_.deadline_ns) {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", static_cast<double>(limits_.deadline_ns) * 1e-9);
    return Error(ErrorCode::kDeadlineExceeded, std::string("no answer within ") + seconds + " s");
  }
  return Ok{};
}

}  // namespace yoke::fabric
