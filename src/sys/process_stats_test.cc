#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "sys/memory.h"
#include "sys/process.h"
#include "sys/shm.h"

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define YOKE_TEST_SHADOW_MEMORY
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define YOKE_TEST_SHADOW_MEMORY
#endif

namespace yoke {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kSlack = 8 * kMiB;  // what the test's own machinery may take or give back

TEST(ProcessStatsTest, AnonymousMemoryFollowsWhatIsTouchedAndFreed) {
#ifdef YOKE_TEST_SHADOW_MEMORY
  GTEST_SKIP() << "the thread sanitizer keeps four bytes for every byte touched";
#endif
  const uint64_t before = AnonymousRssBytes();
  ASSERT_GT(before, 0U);
  {
    PageBuffer buffer(32 * kMiB);
    std::ranges::fill(buffer.bytes(), std::byte{1});
    EXPECT_GT(AnonymousRssBytes(), before + 32 * kMiB - kSlack);
    EXPECT_LT(AnonymousRssBytes(), before + 32 * kMiB + kSlack);
    EXPECT_GE(PeakRssBytes(), 32 * kMiB);
  }
  EXPECT_LT(AnonymousRssBytes(), before + kSlack);
  EXPECT_GE(PeakRssBytes(), 32 * kMiB);
}

#ifdef __linux__
TEST(ProcessStatsTest, SharedSegmentsCount) {
  ShmSegment segment = ShmSegment::Create(32 * kMiB).value();
  const uint64_t before = AnonymousRssBytes();
  std::fill_n(segment.data(), segment.size(), std::byte{1});
  EXPECT_GT(AnonymousRssBytes(), before + 32 * kMiB - kSlack);
}
#endif

TEST(ProcessStatsTest, MachineHasCoresAndMemory) {
  EXPECT_GE(NumCores(), 1);
  EXPECT_LE(static_cast<unsigned>(NumCores()), std::max(1U, std::thread::hardware_concurrency()));
}

TEST(ClockTest, NeverGoesBackAndDoesGoForward) {
  const uint64_t begin = NowNs();
  uint64_t last = begin;
  while (last < begin + 1'000'000) {
    const uint64_t now = NowNs();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace yoke
