#include "sys/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <gtest/gtest.h>

namespace yoke {
namespace {

constexpr uint64_t kDeadlineNs = 20'000'000'000;
constexpr int kPollMs = 1000;

ChildProcess::Options Shell(const std::string& script) {
  ChildProcess::Options options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

std::optional<ChildProcess::Exit> WaitForExit(ChildProcess& child) {
  for (const uint64_t begin = NowNs(); NowNs() < begin + kDeadlineNs; ::sched_yield()) {
    if (const auto exit = child.Poll()) return exit;
  }
  return std::nullopt;
}

// All that comes before the last writer is gone, or "timed out".
std::string ReadToEnd(const Fd& fd) {
  std::string text;
  for (const uint64_t begin = NowNs(); NowNs() < begin + kDeadlineNs;) {
    struct pollfd ready = {fd.get(), POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) <= 0) continue;
    std::array<char, 1000> part = {};
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    if (got == 0) return text;
    if (got > 0) text.append(part.data(), static_cast<size_t>(got));
  }
  return "timed out";
}

// What the program writes to its standard output.
std::string OutputOf(ChildProcess::Options options) {
  Pipe pipe = MakePipe().value();
  options.fds.emplace_back(pipe.write.get(), STDOUT_FILENO);
  Result<ChildProcess> child = ChildProcess::Spawn(options);
  if (!child) return child.error().message();
  pipe.write = Fd();
  return ReadToEnd(pipe.read);
}

bool IsGone(int pid) {
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

TEST(ChildProcessTest, PollSeesTheExitCodeOrTheSignal) {
  ChildProcess code = ChildProcess::Spawn(Shell("exit 7")).value();
  ChildProcess signal = ChildProcess::Spawn(Shell("kill -USR1 $$")).value();
  for (int i = 0; i < 2; ++i) {  // the answer stays
    const auto code_exit = WaitForExit(code);
    ASSERT_TRUE(code_exit.has_value());
    EXPECT_EQ(code_exit->code, 7);
    EXPECT_EQ(code_exit->signal, 0);
    const auto signal_exit = WaitForExit(signal);
    ASSERT_TRUE(signal_exit.has_value());
    EXPECT_EQ(signal_exit->code, 0);
    EXPECT_EQ(signal_exit->signal, SIGUSR1);
  }
}

TEST(ChildProcessTest, PollDoesNotWait) {
  Pipe pipe = MakePipe().value();
  ChildProcess::Options options = Shell("read line; exit 3");
  options.fds = {{pipe.read.get(), STDIN_FILENO}};
  ChildProcess child = ChildProcess::Spawn(options).value();
  EXPECT_FALSE(child.Poll().has_value());
  ASSERT_EQ(::write(pipe.write.get(), "\n", 1), 1);
  const auto exit = WaitForExit(child);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->code, 3);
}

TEST(ChildProcessTest, DestructionKillsAndReaps) {
  int pid = -1;
  {
    const ChildProcess child = ChildProcess::Spawn(Shell("exec sleep 1000")).value();
    pid = child.pid();
    ASSERT_FALSE(IsGone(pid));
  }
  EXPECT_TRUE(IsGone(pid));
}

TEST(ChildProcessTest, MovingKeepsTheChildAndAssignmentKillsTheOldOne) {
  ChildProcess first = ChildProcess::Spawn(Shell("exec sleep 1000")).value();
  ChildProcess second = ChildProcess::Spawn(Shell("exec sleep 1000")).value();
  const int first_pid = first.pid();
  const int second_pid = second.pid();
  second = std::move(first);
  EXPECT_EQ(second.pid(), first_pid);
  EXPECT_FALSE(second.Poll().has_value());
  EXPECT_TRUE(IsGone(second_pid));
  EXPECT_FALSE(first.Poll().has_value());  // NOLINT(bugprone-use-after-move): no child, no answer
  first.Kill();
  EXPECT_FALSE(IsGone(first_pid));
}

TEST(ChildProcessTest, StoppedChildIsKilled) {
  ChildProcess child = ChildProcess::Spawn(Shell("kill -STOP $$; exit 1")).value();
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WSTOPPED | WNOWAIT), 0);
  EXPECT_FALSE(child.Poll().has_value());
  child.Kill();
  const auto exit = child.Poll();
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->signal, SIGKILL);
}

TEST(ChildProcessTest, WhatCannotBeStartedIsAnErrorAndLeavesNothing) {
  ChildProcess::Options options;
  options.argv = {"/no/such/program"};
  Result<ChildProcess> child = ChildProcess::Spawn(options);
  ASSERT_FALSE(child.has_value());
  EXPECT_EQ(child.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(child.error().message(), "cannot start /no/such/program: No such file or directory");
  options.argv = {"/"};
  EXPECT_EQ(ChildProcess::Spawn(options).error().code(), ErrorCode::kInvalidArgument);
  options = Shell("exit 0");
  options.fds = {{-1, 3}};
  EXPECT_EQ(ChildProcess::Spawn(options).error().message(),
            "cannot start /bin/sh: Bad file descriptor");
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no child is left to reap
  EXPECT_EQ(errno, ECHILD);
}

// Prints the numbers from 3 to 99 that are open.
constexpr char kListFds[] =
    "i=3; while [ $i -lt 100 ]; do [ -e /dev/fd/$i ] && echo $i; i=$((i+1)); done; true";

TEST(ChildProcessTest, HasTheFdsAtTheirNumbersAndNoOthers) {
  std::array<Pipe, 3> pipes = {MakePipe().value(), MakePipe().value(), MakePipe().value()};
  // Stays open over exec, unless closed: below, between and above the targets.
  std::vector<Fd> inherited;
  for (const int at_least : {3, 20, 60}) {
    inherited.emplace_back(::fcntl(pipes[0].read.get(), F_DUPFD, at_least));
  }
  ChildProcess::Options options = Shell(kListFds);
  options.fds = {{pipes[0].read.get(), 4}, {pipes[1].read.get(), 9}, {pipes[2].read.get(), 50}};
  EXPECT_EQ(OutputOf(options), "4\n9\n50\n");
  EXPECT_EQ(OutputOf(Shell(kListFds)), "");
}

TEST(ChildProcessTest, FdsMaySwapNumbers) {
  Pipe first = MakePipe().value();
  Pipe second = MakePipe().value();
  ASSERT_EQ(::write(first.write.get(), "first\n", 6), 6);
  ASSERT_EQ(::write(second.write.get(), "second\n", 7), 7);
  const int a = first.read.get();
  const int b = second.read.get();
  ChildProcess::Options options = Shell("read x < /dev/fd/" + std::to_string(a) +
                                        "; read y < /dev/fd/" + std::to_string(b) + "; echo $x $y");
  options.fds = {{a, b}, {b, a}};
  EXPECT_EQ(OutputOf(options), "second first\n");
}

// The targets are the lowest free numbers, which the spawning itself would like to use.
TEST(ChildProcessTest, TargetsMayBeNumbersThatSpawnNeeds) {
  constexpr size_t kNumPipes = 6;
  std::array<Pipe, kNumPipes> pipes;
  for (size_t i = 0; i < kNumPipes; ++i) {
    pipes[i] = MakePipe().value();
    const std::string line = std::to_string(i) + "\n";
    ASSERT_EQ(::write(pipes[i].write.get(), line.data(), line.size()), 2);
  }
  const int first_free = MakePipe().value().read.get();
  std::string script;
  std::vector<std::pair<int, int>> fds;
  for (size_t i = 0; i < kNumPipes; ++i) {
    const int target = first_free + static_cast<int>(kNumPipes - i);
    fds.emplace_back(pipes[i].read.get(), target);
    script += "read x < /dev/fd/" + std::to_string(target) + "; echo $x;";
  }
  ChildProcess::Options options = Shell(script);
  options.fds = fds;
  EXPECT_EQ(OutputOf(options), "0\n1\n2\n3\n4\n5\n");
  options.argv = {"/no/such/program"};
  EXPECT_FALSE(ChildProcess::Spawn(options).has_value());
}

TEST(ChildProcessTest, EnvironmentIsOursWithAdditionsAndReplacements) {
  ASSERT_EQ(::setenv("YOKE_TEST_KEPT", "kept", 1), 0);
  ASSERT_EQ(::setenv("YOKE_TEST_REPLACED", "old", 1), 0);
  ChildProcess::Options options;
  options.argv = {"/usr/bin/env"};
  options.env = {"YOKE_TEST_REPLACED=new", "YOKE_TEST_ADDED=a=b"};
  const std::string output = OutputOf(options);
  for (const char* const line :
       {"YOKE_TEST_KEPT=kept\n", "YOKE_TEST_REPLACED=new\n", "YOKE_TEST_ADDED=a=b\n"}) {
    EXPECT_NE(output.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(output.find("REPLACED=old"), std::string::npos);
}

TEST(ChildProcessTest, ExitIsSeenEvenIfChildSignalsWereIgnored) {
  std::signal(SIGCHLD, SIG_IGN);
  ChildProcess child = ChildProcess::Spawn(Shell("exit 5")).value();
  const auto exit = WaitForExit(child);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->code, 5);
}

TEST(ChildProcessTest, SelfPathStartsThisProgram) {
  ChildProcess::Options options;
  options.argv = {SelfPath().value(), "--gtest_list_tests", "--gtest_filter=*SelfPath*"};
  EXPECT_NE(OutputOf(options).find("SelfPathStartsThisProgram"), std::string::npos);
}

#ifdef __linux__  // elsewhere only programs that call EndWithParent do this
TEST(ChildProcessTest, DiesWhenItsParentIsKilled) {
  for (const char* const script : {"exec sleep 1000", "kill -STOP $$"}) {
    SCOPED_TRACE(script);
    Pipe alive = MakePipe().value();  // its write end closes with the last process that holds it
    Pipe started = MakePipe().value();
    const pid_t parent = ::fork();
    ASSERT_GE(parent, 0);
    if (parent == 0) {
      ChildProcess::Options options = Shell(script);
      options.fds = {{alive.write.get(), 3}};
      const Result<ChildProcess> child = ChildProcess::Spawn(options);
      if (!child || ::write(started.write.get(), "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    started.write = Fd();
    alive.write = Fd();
    char byte = 0;
    ASSERT_EQ(::read(started.read.get(), &byte, 1), 1);
    // Both hold the pipe, so nothing has closed it yet.
    struct pollfd ready = {alive.read.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 0), 0);
    ASSERT_EQ(::kill(parent, SIGKILL), 0);
    ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
    EXPECT_EQ(ReadToEnd(alive.read), "");
  }
}
#endif

TEST(PipeTest, EndsAreClosedOnExec) {
  const Pipe pipe = MakePipe().value();
  EXPECT_NE(::fcntl(pipe.read.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(pipe.write.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(FdTest, OwnsOneDescriptor) {
  Pipe pipe = MakePipe().value();
  const int number = pipe.read.get();
  Fd moved(std::move(pipe.read));
  EXPECT_FALSE(pipe.read.valid());  // NOLINT(bugprone-use-after-move): that is the promise
  EXPECT_EQ(moved.get(), number);
  moved = std::move(pipe.write);
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);  // assignment closed the old one
  const int released = moved.Release();
  EXPECT_FALSE(moved.valid());
  EXPECT_NE(::fcntl(released, F_GETFD), -1);
  { const Fd owner(released); }
  EXPECT_EQ(::fcntl(released, F_GETFD), -1);
}

}  // namespace
}  // namespace yoke
