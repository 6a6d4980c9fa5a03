#include "sys/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "sys/errno_error.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <sys/event.h>

#include <thread>
#else
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

extern char** environ;  // NOLINT(readability-identifier-naming): POSIX

namespace yoke {
namespace {

constexpr int kFirstFreeFd = 3;       // behind the standard streams
constexpr int kFdBoundMax = 1 << 16;  // where a loop over all possible descriptors stops
constexpr int kExitBeforeExec = 127;  // the shell's number for "could not be run"

// All that the child needs between fork and exec, where it may not allocate: another thread may
// have held the allocator's lock when we forked.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> envp;
  std::vector<std::pair<int, int>> fds;  // (source, target)
  int report_fd = -1;                    // an errno goes here if exec is not reached
  int scratch = kFirstFreeFd;            // above all targets
  int fd_bound = 0;
  pid_t parent = -1;
};

std::string_view NameOf(std::string_view assignment) {
  return assignment.substr(0, assignment.find('='));
}

std::vector<char*> MergedEnvironment(const std::vector<std::string>& added) {
  std::vector<char*> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const auto replaces = [&](const std::string& other) { return NameOf(other) == NameOf(*entry); };
    if (std::none_of(added.begin(), added.end(), replaces)) merged.push_back(*entry);
  }
  for (const std::string& entry : added) merged.push_back(const_cast<char*>(entry.c_str()));
  merged.push_back(nullptr);
  return merged;
}

ChildPlan MakePlan(const ChildProcess::Options& options, int report_fd) {
  ChildPlan plan;
  for (const std::string& argument : options.argv) {
    plan.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  plan.argv.push_back(nullptr);
  plan.envp = MergedEnvironment(options.env);
  plan.fds = options.fds;
  plan.report_fd = report_fd;
  for (const auto& [source, target] : options.fds) {
    YOKE_CHECK(target >= 0 && target <= ChildProcess::kChildFdMax);
    plan.scratch = std::max(plan.scratch, target + 1);
  }
  plan.fd_bound = std::min(::getdtablesize(), kFdBoundMax);
  plan.parent = ::getpid();
  return plan;
}

// From here to exec: only async-signal-safe calls.

void CloseFrom(int first, int bound) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0) == 0) return;
#endif
  for (int fd = first; fd < bound; ++fd) ::close(fd);
}

// Leaves the standard streams, the targets and, at plan.scratch, the report pipe. False: see errno.
bool ArrangeFds(ChildPlan& plan) {
  // Out of the way of all targets first, as one pair's target may be another's source.
  plan.report_fd = ::fcntl(plan.report_fd, F_DUPFD_CLOEXEC, plan.scratch + 1);
  if (plan.report_fd < 0) return false;
  for (auto& [source, target] : plan.fds) {
    source = ::fcntl(source, F_DUPFD_CLOEXEC, plan.scratch + 1);
    if (source < 0) return false;
  }
  for (const auto& [source, target] : plan.fds) {
    if (::dup2(source, target) < 0) return false;
  }
  if (::dup2(plan.report_fd, plan.scratch) < 0) return false;
  plan.report_fd = plan.scratch;
  if (::fcntl(plan.report_fd, F_SETFD, FD_CLOEXEC) != 0) return false;
  for (int fd = kFirstFreeFd; fd < plan.scratch; ++fd) {
    bool is_target = false;
    for (const auto& pair : plan.fds) is_target = is_target || pair.second == fd;
    if (!is_target) ::close(fd);
  }
  CloseFrom(plan.scratch + 1, plan.fd_bound);
  return true;
}

[[noreturn]] void RunChild(ChildPlan& plan) {
#ifdef __linux__
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(kExitBeforeExec);  // it died before the line above
#endif
  const int original_report_fd = plan.report_fd;
  if (ArrangeFds(plan)) ::execve(plan.argv[0], plan.argv.data(), plan.envp.data());
  const int error = errno;
  const int report_fd = plan.report_fd < 0 ? original_report_fd : plan.report_fd;
  // If even this fails, the parent sees the exit status.
  [[maybe_unused]] const ssize_t written = ::write(report_fd, &error, sizeof(error));
  ::_exit(kExitBeforeExec);
}

// The child's errno, or 0 when its exec closed the pipe.
int ReadReport(const Fd& fd) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(fd.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(error) ? error : 0;
}

// An ignored SIGCHLD, which a process may inherit, would let children vanish without a status.
void KeepExitStatuses() {
  struct sigaction action = {};
  YOKE_CHECK(::sigaction(SIGCHLD, nullptr, &action) == 0);
  if (action.sa_handler == SIG_IGN) std::signal(SIGCHLD, SIG_DFL);
}

}  // namespace

Result<ChildProcess> ChildProcess::Spawn(const Options& options) {
  YOKE_CHECK(!options.argv.empty());
  YOKE_TRY(Pipe report, MakePipe());
  ChildPlan plan = MakePlan(options, report.write.get());
  KeepExitStatuses();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoError("cannot start a process", errno);
  if (pid == 0) RunChild(plan);
  ChildProcess child(pid);
  report.write = Fd();
  if (const int error = ReadReport(report.read); error != 0) {
    return ErrnoError("cannot start " + options.argv[0], error);
  }
  return child;
}

ChildProcess::~ChildProcess() {
  Kill();
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), exit_(std::exchange(other.exit_, std::nullopt)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  ChildProcess taken(std::move(other));
  std::swap(pid_, taken.pid_);
  std::swap(exit_, taken.exit_);
  return *this;
}

void ChildProcess::Reap(int flags) {
  int status = 0;
  pid_t got = 0;
  do {
    got = ::waitpid(pid_, &status, flags);
  } while (got < 0 && errno == EINTR);
  YOKE_CHECK(got >= 0);
  if (got == 0) return;
  exit_ = Exit();
  if (WIFSIGNALED(status)) {
    exit_->signal = WTERMSIG(status);
  } else {
    exit_->code = WEXITSTATUS(status);
  }
}

std::optional<ChildProcess::Exit> ChildProcess::Poll() {
  if (pid_ >= 0 && !exit_) Reap(WNOHANG);
  return exit_;
}

void ChildProcess::Kill() {
  // After the reaping, the number may belong to someone else.
  if (pid_ < 0 || exit_) return;
  ::kill(pid_, SIGKILL);
  Reap(0);
}

Result<Pipe> MakePipe() {
  int fds[2] = {-1, -1};
#ifdef __APPLE__
  if (::pipe(fds) != 0) return ErrnoError("cannot make a pipe", errno);
  for (const int fd : fds) (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
#else
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("cannot make a pipe", errno);
#endif
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

#ifdef __APPLE__

void EndWithParent() {
  constexpr pid_t kInit = 1;  // takes over the children of the dead
  const pid_t parent = ::getppid();
  if (parent == kInit) ::kill(::getpid(), SIGKILL);
  std::thread([parent] {
    const Fd queue(::kqueue());
    struct kevent watch = {};
    EV_SET(&watch, static_cast<uintptr_t>(parent), EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0,
           nullptr);
    struct kevent event = {};
    int num_events = 0;
    // A parent that is gone by now cannot be watched: the same end.
    do {
      num_events = ::kevent(queue.get(), &watch, 1, &event, 1, nullptr);
    } while (num_events < 0 && errno == EINTR);
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

Result<std::string> SelfPath() {
  uint32_t size = 0;
  (void)::_NSGetExecutablePath(nullptr, &size);  // tells the size
  std::string path(size, '\0');
  if (::_NSGetExecutablePath(path.data(), &size) != 0) {
    return Error(ErrorCode::kUnavailable, "cannot find the path of this program");
  }
  path.resize(std::strlen(path.c_str()));
  return path;
}

#else

void EndWithParent() {}

Result<std::string> SelfPath() {
  std::string path(PATH_MAX, '\0');
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size < 0) return ErrnoError("cannot read /proc/self/exe", errno);
  path.resize(static_cast<size_t>(size));
  return path;
}

#endif

}  // namespace yoke
