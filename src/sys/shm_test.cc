#include "sys/shm.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <utility>

#include <gtest/gtest.h>

namespace yoke {
namespace {

constexpr size_t kBytes = 10'000;

Fd Duplicate(const ShmSegment& segment) {
  return Fd(::fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
}

TEST(ShmSegmentTest, StartsZeroedAtTheSizeAskedFor) {
  ShmSegment segment = ShmSegment::Create(kBytes).value();
  EXPECT_EQ(segment.size(), kBytes);
  EXPECT_TRUE(std::all_of(segment.data(), segment.data() + kBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(ShmSegmentTest, TwoMappingsSeeTheSameBytes) {
  ShmSegment first = ShmSegment::Create(kBytes).value();
  ShmSegment second = ShmSegment::Attach(Duplicate(first), kBytes).value();
  ASSERT_NE(first.data(), second.data());
  first.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(second.data()[kBytes - 1], std::byte{7});
  second.data()[0] = std::byte{8};
  EXPECT_EQ(first.data()[0], std::byte{8});
}

TEST(ShmSegmentTest, LivesAsLongAsOneHolder) {
  ShmSegment first = ShmSegment::Create(kBytes).value();
  first.data()[5] = std::byte{9};
  ShmSegment second = ShmSegment::Attach(Duplicate(first), kBytes).value();
  first = ShmSegment::Create(1).value();
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(second.data()[5], std::byte{9});
  const ShmSegment third = std::move(second);
  EXPECT_EQ(third.size(), kBytes);
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the promise
}

TEST(ShmSegmentTest, RefusesASegmentThatIsTooShortOrNone) {
  const ShmSegment segment = ShmSegment::Create(kBytes).value();
  // macOS rounds segments up to whole pages.
  const Result<ShmSegment> longer = ShmSegment::Attach(Duplicate(segment), 1 << 20);
  ASSERT_FALSE(longer.has_value());
  EXPECT_EQ(longer.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(longer.error().message().find("expected 1048576 bytes at least, got 1"),
            std::string::npos)
      << longer.error().message();
  EXPECT_FALSE(ShmSegment::Attach(Fd(), kBytes).has_value());
}

TEST(ShmSegmentTest, MoreThanTheMachineCanAddressIsAnError) {
  EXPECT_FALSE(ShmSegment::Create(size_t{1} << 62).has_value());
}

TEST(ShmSegmentTest, HasNoName) {
  const ShmSegment segment = ShmSegment::Create(kBytes).value();
  struct stat own = {};
  ASSERT_EQ(::fstat(segment.fd(), &own), 0);
  EXPECT_EQ(own.st_nlink, 0U);
#ifdef __linux__
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    struct stat other = {};
    if (::stat(entry.path().c_str(), &other) != 0) continue;  // gone by now: not ours
    EXPECT_FALSE(other.st_dev == own.st_dev && other.st_ino == own.st_ino) << entry.path();
  }
#endif
}

}  // namespace
}  // namespace yoke
