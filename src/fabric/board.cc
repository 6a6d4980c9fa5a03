#include "fabric/board.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

namespace yoke::fabric {
namespace {

// Phase and Op come from shared memory, so a value out of range is possible.
std::string DescribePhase(Phase phase, uint64_t step) {
  switch (phase) {
    case Phase::kStarting:
      return "start-up";
    case Phase::kLoading:
      return "loading";
    case Phase::kIdle:
      return "the wait for work";
    case Phase::kPrefill:
      return "prefill step " + std::to_string(step);
    case Phase::kDecode:
      return "decode step " + std::to_string(step);
    case Phase::kStopping:
      return "shutdown";
  }
  return "an unknown phase";
}

const char* OpName(Op op) {
  switch (op) {
    case Op::kNone:
      return nullptr;
    case Op::kAllReduce:
      return "all-reduce";
    case Op::kAllGather:
      return "all-gather";
    case Op::kGather:
      return "gather";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kBarrier:
      return "barrier";
    case Op::kReceivePlan:
      return "receiving plan";
    case Op::kSendResult:
      return "sending result";
  }
  return "unknown operation";
}

// The same words on every system, unlike strsignal.
std::string DescribeSignal(int signal) {
  struct Name {
    int signal;
    const char* text;
  };
  constexpr Name kNames[] = {
      {SIGKILL, "Killed"},     {SIGSEGV, "Segmentation fault"}, {SIGBUS, "Bus error"},
      {SIGABRT, "Aborted"},    {SIGILL, "Illegal instruction"}, {SIGFPE, "Arithmetic error"},
      {SIGTERM, "Terminated"}, {SIGINT, "Interrupt"},           {SIGHUP, "Hangup"}};
  std::string text = "signal " + std::to_string(signal);
  for (const Name& name : kNames) {
    if (name.signal == signal) text += std::string(" (") + name.text + ")";
  }
  return text;
}

// Errors that a rank may meet only because another one is lost.
bool MayBeConsequence(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kCancelled ||
         code == ErrorCode::kDeadlineExceeded;
}

ErrorCode OwnErrorCode(const BoardLine& line) {
  return static_cast<ErrorCode>(line.error_code);
}

std::string During(const BoardLine& line) {
  return " during " + DescribeOp(line.phase.load(std::memory_order_relaxed),
                                 line.step.load(std::memory_order_relaxed),
                                 line.op.load(std::memory_order_relaxed),
                                 line.op_seq.load(std::memory_order_relaxed));
}

// What a look at one line tells, the surest cause of a failure first.
enum class Finding { kExited, kOwnError, kSilent, kConsequence, kNothing };

Finding Examine(const BoardLine& line, uint64_t now_ns, uint64_t stale_ns) {
  const bool exited = line.exited.load(std::memory_order_acquire) != 0;
  if (line.error_set.load(std::memory_order_acquire) != 0) {
    return MayBeConsequence(OwnErrorCode(line)) ? Finding::kConsequence : Finding::kOwnError;
  }
  const bool stopping = line.phase.load(std::memory_order_relaxed) == Phase::kStopping;
  if (exited) {
    const bool orderly = stopping && line.exit_signal.load(std::memory_order_relaxed) == 0 &&
                         line.exit_code.load(std::memory_order_relaxed) == 0;
    return orderly ? Finding::kNothing : Finding::kExited;
  }
  const uint64_t beat_ns = line.heartbeat_ns.load(std::memory_order_relaxed);
  const bool silent = beat_ns != 0 && now_ns > beat_ns && now_ns - beat_ns > stale_ns;
  return silent && !stopping ? Finding::kSilent : Finding::kNothing;
}

std::string DescribeExit(const BoardLine& line) {
  const int signal = line.exit_signal.load(std::memory_order_relaxed);
  if (signal != 0) return " was killed by " + DescribeSignal(signal);
  return " exited with code " + std::to_string(line.exit_code.load(std::memory_order_relaxed));
}

std::string DescribeSilence(const BoardLine& line, uint64_t now_ns) {
  const uint64_t beat_ns = line.heartbeat_ns.load(std::memory_order_relaxed);
  const uint64_t silent_ns = now_ns > beat_ns ? now_ns - beat_ns : 0;  // it may just have beaten
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.1f", static_cast<double>(silent_ns) * 1e-9);
  return std::string(" does not respond (no heartbeat for ") + seconds + " s)";
}

}  // namespace

std::string DescribeOp(Phase phase, uint64_t step, Op op, uint64_t op_seq) {
  std::string text = DescribePhase(phase, step);
  if (const char* name = OpName(op)) {
    text += std::string(", ") + name + ' ' + std::to_string(op_seq);
  }
  return text;
}

void Board::ReportError(int rank, const Error& error) {
  BoardLine& line = lines[rank];
  if (line.error_set.load(std::memory_order_relaxed) != 0) return;
  line.error_code = static_cast<uint32_t>(error.code());
  const std::string& text = error.message();
  size_t size = std::min(text.size(), sizeof(line.error_text) - 1);
  // Cut before a character, not inside one: 10xxxxxx continues a UTF-8 character.
  if (size < text.size()) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  }
  std::memcpy(line.error_text, text.data(), size);
  line.error_text[size] = '\0';
  line.error_set.store(1, std::memory_order_release);
}

void Board::ReportExit(int rank, int code, int signal) {
  BoardLine& line = lines[rank];
  line.exit_code.store(code, std::memory_order_relaxed);
  line.exit_signal.store(signal, std::memory_order_relaxed);
  line.exited.store(1, std::memory_order_release);
}

Status Board::Check(int num_ranks, int self, uint64_t now_ns, uint64_t stale_ns) const {
  int rank = -1;
  Finding finding = Finding::kNothing;
  for (int r = 0; r < num_ranks; ++r) {
    if (r == self) continue;
    const Finding found = Examine(lines[r], now_ns, stale_ns);
    if (found < finding) {
      finding = found;
      rank = r;
    }
  }
  if (finding == Finding::kNothing) return Ok{};
  const BoardLine& line = lines[rank];
  const std::string who = "rank " + std::to_string(rank);
  if (finding == Finding::kExited) {
    return Error(ErrorCode::kUnavailable, who + DescribeExit(line) + During(line));
  }
  if (finding == Finding::kSilent) {
    return Error(ErrorCode::kUnavailable, who + DescribeSilence(line, now_ns) + During(line));
  }
  const ErrorCode code = self < 0 ? OwnErrorCode(line) : ErrorCode::kUnavailable;
  const size_t size = strnlen(line.error_text, sizeof(line.error_text));
  return Error(code, who + ": " + std::string(line.error_text, size));
}

}  // namespace yoke::fabric
