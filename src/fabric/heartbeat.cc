#include "fabric/heartbeat.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace yoke::fabric {
namespace {

constexpr int kPeriodMs = 100;

void Beat(BoardLine& line) {
  line.heartbeat_ns.store(NowNs(), std::memory_order_relaxed);
}

// Reads what poll announced. True at the end of the pipe; nothing is ever sent on it.
bool AtEnd(int fd) {
  char ignored[64];
  const ssize_t size = read(fd, ignored, sizeof(ignored));
  return size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN);
}

}  // namespace

Result<std::unique_ptr<Heartbeat>> Heartbeat::Start(BoardLine& line, Fd control) {
  YOKE_TRY(Pipe wake, MakePipe());
  return std::unique_ptr<Heartbeat>(new Heartbeat(line, std::move(control), std::move(wake)));
}

Heartbeat::Heartbeat(BoardLine& line, Fd control, Pipe wake)
    : line_(line), control_(std::move(control)), wake_(std::move(wake)) {
  Beat(line_);
  thread_ = std::thread([this] { Loop(); });
}

Heartbeat::~Heartbeat() {
  wake_.write = Fd();
  thread_.join();
}

void Heartbeat::Loop() {
  // poll ignores a negative descriptor.
  pollfd fds[] = {{wake_.read.get(), POLLIN, 0}, {control_.get(), POLLIN, 0}};
  for (;;) {
    const int num_ready = poll(fds, 2, kPeriodMs);
    Beat(line_);
    if (num_ready <= 0) continue;  // the period is over, or a signal came
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0 && AtEnd(control_.get())) _exit(kExitSupervisorGone);
  }
}

}  // namespace yoke::fabric
