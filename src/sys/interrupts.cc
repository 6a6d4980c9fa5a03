#include <array>
#include <atomic>
#include <csignal>

#include "base/check.h"
#include "sys/process.h"

namespace yoke {
namespace {

constexpr std::array kInterrupts = {SIGINT, SIGTERM};

std::atomic<bool> g_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // or a signal handler may not touch it

void HandleInterrupt(int signal_number) {
  if (!g_interrupted.exchange(true)) return;
  // Blocked while we are in its handler, so it ends the process as soon as we return.
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void SetHandler(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // No SA_RESTART: a read that waits for the terminal must return.
  for (const int signal_number : kInterrupts) {
    YOKE_CHECK(::sigaction(signal_number, &action, nullptr) == 0);
  }
}

}  // namespace

void CatchInterrupts() {
  SetHandler(HandleInterrupt);
}

bool Interrupted() {
  return g_interrupted.load();
}

void IgnoreInterrupts() {
  SetHandler(SIG_IGN);
}

}  // namespace yoke
