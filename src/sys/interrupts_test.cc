#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

#include "sys/process.h"

namespace yoke {
namespace {

// Each in a process of its own, as handlers stay.
TEST(InterruptsDeathTest, FirstSignalIsCaughtAndTheSecondEndsTheProcess) {
  for (const int first : {SIGINT, SIGTERM}) {
    for (const int second : {SIGINT, SIGTERM}) {
      EXPECT_EXIT(
          {
            CatchInterrupts();
            if (Interrupted()) ::_exit(1);
            std::raise(first);
            if (!Interrupted()) ::_exit(2);
            std::raise(second);
            ::_exit(3);
          },
          testing::KilledBySignal(second), "");
    }
  }
}

TEST(InterruptsDeathTest, IgnoredSignalsNeitherEndTheProcessNorCount) {
  EXPECT_EXIT(
      {
        IgnoreInterrupts();
        for (int i = 0; i < 2; ++i) {
          std::raise(SIGINT);
          std::raise(SIGTERM);
        }
        ::_exit(Interrupted() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace yoke
