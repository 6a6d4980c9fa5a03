// Runs the yoke binary as a user would and says what came of it, with a deadline for everything.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "sys/process.h"

extern char** environ;  // NOLINT: POSIX names it, no header declares it

namespace yoke::integration {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kDeadlineNs = 60 * kSecondNs;

struct Outcome {
  int exit_code = -1;  // 128 + N after signal N
  std::string out;
  std::string err;
};

// Calls `done` until it is true or the time is over; says which.
template <typename Done>
bool Within(uint64_t limit_ns, Done&& done) {
  const uint64_t deadline_ns = NowNs() + limit_ns;
  while (NowNs() < deadline_ns) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return done();
}

// One run in a process group of its own. A run that outlives its deadline is a test failure and
// gets killed, together with its ranks.
class YokeProcess {
 public:
  struct Options {
    std::vector<std::string> args;
    std::string stdout_file = {};  // instead of a pipe to us; "-" closes it
  };

  explicit YokeProcess(const Options& options) {
    const auto [in_read, in_write] = MakePipeEnds();
    const auto [out_read, out_write] = MakePipeEnds();
    const auto [err_read, err_write] = MakePipeEnds();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in_read, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err_write, STDERR_FILENO);
    if (options.stdout_file.empty()) {
      posix_spawn_file_actions_adddup2(&actions, out_write, STDOUT_FILENO);
    } else if (options.stdout_file == "-") {
      posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
    } else {
      posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.stdout_file.c_str(),
                                       O_WRONLY, 0);
    }
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    signal(SIGPIPE, SIG_IGN);  // for us, who may write to a run that does not read
    posix_spawnattr_setsigdefault(&attributes, &pipe_signal);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    std::vector<std::string> args = options.args;
    args.insert(args.begin(), YOKE_BINARY);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    YOKE_CHECK(posix_spawn(&pid_, YOKE_BINARY, &actions, &attributes, argv.data(), environ) == 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    for (const int fd : {in_read, out_write, err_write}) close(fd);
    in_ = in_write;
    out_ = out_read;
    err_ = err_read;
  }
  ~YokeProcess() {
    if (pid_ > 0) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const int fd : {in_, out_, err_}) {
      if (fd >= 0) close(fd);
    }
  }
  YokeProcess(const YokeProcess&) = delete;
  YokeProcess& operator=(const YokeProcess&) = delete;

  int pid() const { return pid_; }
  int stdin_fd() const { return in_; }

  // Input of at most what a pipe holds.
  void Write(std::string_view text) {
    YOKE_CHECK(write(in_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void CloseStdin() { CloseEnd(in_); }
  void CloseStdout() { CloseEnd(out_); }

  // Reads until stdout has brought so many bytes; false when it ends or the deadline comes first.
  bool WaitForOutput(size_t num_bytes) {
    const uint64_t deadline_ns = NowNs() + kDeadlineNs;
    while (outcome_.out.size() < num_bytes && out_ >= 0 && NowNs() < deadline_ns) Transfer({});
    return outcome_.out.size() >= num_bytes;
  }

  // Waits, with stdin still open, until the run has closed its outputs.
  bool WaitForEnd() {
    const uint64_t deadline_ns = NowNs() + kDeadlineNs;
    while ((out_ >= 0 || err_ >= 0) && NowNs() < deadline_ns) Transfer({});
    return out_ < 0 && err_ < 0;
  }

  // Feeds `input`, closes stdin, reads all output and waits for the end.
  Outcome Finish(std::string_view input = {}) {
    const uint64_t deadline_ns = NowNs() + kDeadlineNs;
    if (input.empty()) CloseStdin();
    while ((out_ >= 0 || err_ >= 0) && NowNs() < deadline_ns) {
      const size_t written = Transfer(input);
      input.remove_prefix(written);
      if (input.empty() || in_ < 0) CloseStdin();
    }
    int status = 0;
    const bool ended = Within(deadline_ns - std::min(deadline_ns, NowNs()),
                              [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (!ended) {
      ADD_FAILURE() << "yoke did not end within its deadline; so far on stderr: " << outcome_.err;
      return outcome_;  // the destructor kills it
    }
    outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const int group = std::exchange(pid_, -1);
    EXPECT_TRUE(Within(5 * kSecondNs, [group] { return kill(-group, 0) != 0 && errno == ESRCH; }))
        << "a process of the run is left";
    return outcome_;
  }

 private:
  static std::pair<int, int> MakePipeEnds() {
    std::array<int, 2> ends = {};
    YOKE_CHECK(pipe(ends.data()) == 0);
    for (const int fd : ends) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return {ends[0], ends[1]};
  }
  static void CloseEnd(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  static void ReadSome(int& fd, std::string& text) {
    std::array<char, 4096> buffer = {};
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count > 0) {
      text.append(buffer.data(), static_cast<size_t>(count));
    } else {
      CloseEnd(fd);
    }
  }

  // Waits at most 0.1 s for any end to be ready; returns how much input it wrote.
  size_t Transfer(std::string_view input) {
    std::array<pollfd, 3> fds = {
        {{input.empty() ? -1 : in_, POLLOUT, 0}, {out_, POLLIN, 0}, {err_, POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), 100) <= 0) return 0;
    if (fds[1].revents != 0) ReadSome(out_, outcome_.out);
    if (fds[2].revents != 0) ReadSome(err_, outcome_.err);
    if (fds[0].revents == 0) return 0;
    if ((fds[0].revents & POLLERR) != 0) {  // nobody reads it
      CloseEnd(in_);
      return 0;
    }
    const ssize_t count = write(in_, input.data(), std::min<size_t>(input.size(), 4096));
    return count > 0 ? static_cast<size_t>(count) : 0;
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  Outcome outcome_;
};

inline Outcome RunYoke(const std::vector<std::string>& args, std::string_view input = {},
                       const std::string& stdout_file = {}) {
  return YokeProcess({.args = args, .stdout_file = stdout_file}).Finish(input);
}

// Bad input: exit code 2, and one line of text on stderr that holds each of `parts`.
inline void ExpectRefused(const Outcome& outcome, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("yoke: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
  for (const char c : outcome.err) {
    EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ') << outcome.err;
  }
  EXPECT_EQ(outcome.out, "");
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos)
        << "no \"" << part << "\" in: " << outcome.err;
  }
}

}  // namespace yoke::integration
