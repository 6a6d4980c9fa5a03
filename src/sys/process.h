// Child processes that never outlive us, pipes between them, and what a process costs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace yoke {

// A child. Killed and reaped on destruction. Move-only. On Linux the kernel kills it when the
// thread that spawned it ends (PR_SET_PDEATHSIG), so spawn from a thread that lives as long as the
// process; for other systems see EndWithParent. Not thread-safe.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> argv;  // argv[0] is the path of the program
    // (ours, number in the child, each once and at most kChildFdMax). The child has these and its
    // standard streams, which it shares with us unless a pair names 0, 1 or 2; no others.
    std::vector<std::pair<int, int>> fds;
    std::vector<std::string> env;  // "NAME=value", added to ours or in its place
  };
  static constexpr int kChildFdMax = 255;
  // Returns when the program runs; a program that cannot be started is an error.
  static Result<ChildProcess> Spawn(const Options& options);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int pid() const { return pid_; }
  struct Exit {
    int code = 0;    // exit status, if not ended by a signal
    int signal = 0;  // or the signal
  };
  // Reaps without waiting; the answer stays available.
  std::optional<Exit> Poll();
  // SIGKILL (works on stopped processes too), then reap.
  void Kill();

 private:
  explicit ChildProcess(int pid) : pid_(pid) {}
  // One waitpid; keeps the answer.
  void Reap(int flags);

  int pid_ = -1;  // -1 after a move
  std::optional<Exit> exit_;
};

// For a spawned process to call at its start: it ends when its parent does, however that ends. On
// Linux the spawning already saw to it; on macOS a thread waits for the parent's exit.
void EndWithParent();

struct Pipe {
  Fd read;
  Fd write;
};
// Both ends are closed on exec.
Result<Pipe> MakePipe();

// Path of the running program, to start itself again.
Result<std::string> SelfPath();

// Largest resident set of this process so far (file pages included), and what of the present one is
// not file pages.
uint64_t PeakRssBytes();
uint64_t AnonymousRssBytes();  // RssAnon + RssShmem

// Cores that this process may use: its affinity, and a container's CPU quota, rounded up.
int NumCores();

// Monotonic nanoseconds, comparable between processes of one machine.
uint64_t NowNs();

// SIGINT and SIGTERM set a flag instead of ending the process; a second one ends it at once.
void CatchInterrupts();
bool Interrupted();
// In rank processes, which a terminal's Ctrl-C and a service manager's stop reach too: the
// supervisor decides. Only SIGKILL ends such a process.
void IgnoreInterrupts();

}  // namespace yoke
