// The thread by which a rank shows that it lives, and notices that its supervisor does not.
#pragma once

#include <memory>
#include <thread>

#include "base/result.h"
#include "fabric/board.h"
#include "sys/fd.h"
#include "sys/process.h"

namespace yoke::fabric {

// Exit code of a rank whose supervisor is gone: nobody is left to read why.
constexpr int kExitSupervisorGone = 3;

// Owns a thread that stores the time in the rank's line every 100 ms, until destruction.
class Heartbeat {
 public:
  // line outlives it. control: the read end of a pipe whose write end only the supervisor holds
  // (so it is at its end when the supervisor is gone, however that ended); then the thread ends the
  // process at once, without clean-up. An invalid Fd: no supervisor. The first beat is stored here.
  static Result<std::unique_ptr<Heartbeat>> Start(BoardLine& line, Fd control);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  Heartbeat(BoardLine& line, Fd control, Pipe wake);
  void Loop();

  BoardLine& line_;
  Fd control_;
  Pipe wake_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace yoke::fabric
