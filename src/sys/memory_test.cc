#include "sys/memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

namespace yoke {
namespace {

bool AllZero(const PageBuffer& buffer) {
  return std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(PageBufferTest, IsZeroedAndAlignedToPagesAtEverySize) {
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{4097}, (size_t{2} << 20) + 1}) {
    PageBuffer buffer(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0U);
    EXPECT_TRUE(AllZero(buffer));
    std::ranges::fill(buffer.bytes(), std::byte{1});
  }
}

TEST(PageBufferTest, MayBeEmpty) {
  const PageBuffer buffer(0);
  EXPECT_TRUE(buffer.bytes().empty());
}

TEST(PageBufferTest, MovingTakesTheMemory) {
  PageBuffer first(100);
  first.as<uint32_t>()[3] = 7;
  const std::byte* const data = first.data();
  PageBuffer second(std::move(first));
  EXPECT_EQ(first.size(), 0U);  // NOLINT(bugprone-use-after-move): that is the promise
  EXPECT_EQ(first.data(), nullptr);
  PageBuffer third(50);
  third = std::move(second);
  EXPECT_EQ(second.size(), 0U);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 100U);
  EXPECT_EQ(std::as_const(third).as<uint32_t>()[3], 7U);
}

TEST(PageBufferDeathTest, OutOfMemoryEndsTheProcess) {
  EXPECT_DEATH(PageBuffer(SIZE_MAX / 2), "CHECK failed: !out_of_memory");
}

}  // namespace
}  // namespace yoke
