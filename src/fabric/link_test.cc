// Conformance of one link between two endpoints, and of whole messages on it.
#include "fabric/link.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "fabric/group.h"
#include "fabric/test_net.h"

namespace yoke::fabric {
namespace {

std::vector<std::byte> Pattern(size_t size, uint32_t start) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(((i + start) * 2654435761u) >> 13 & 0xFF);
  }
  return bytes;
}

class LinkTest : public ::testing::TestWithParam<Backend> {
 protected:
  // Fills and posts one slot when there is a free one.
  bool TrySend(std::span<const std::byte> bytes) {
    const std::span<std::byte> slot = a_->TryAcquire();
    if (slot.empty()) return false;
    EXPECT_EQ(slot.size(), kSlotBytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot.data()) % kSlotAlignment, 0u);
    EXPECT_EQ(a_->TryAcquire().data(), slot.data());
    std::memcpy(slot.data(), bytes.data(), bytes.size());
    a_->Post(bytes.size());
    return true;
  }

  std::span<const std::byte> Poll() {
    Waiter waiter(net_->board(), 2, 1, kTestLimits);
    std::span<const std::byte> payload;
    EXPECT_TRUE(waiter.Until([&] {
      payload = b_->TryPoll();
      return !payload.empty();
    }));
    return payload;
  }

  Result<std::vector<std::byte>> ReceiveFromThread(std::span<const std::byte> message,
                                                   size_t bytes_max) {
    std::thread sender([&] {
      Waiter waiter(net_->board(), 2, 0, kTestLimits);
      EXPECT_TRUE(SendMessage(*a_, waiter, message));
    });
    Waiter waiter(net_->board(), 2, 1, kTestLimits);
    auto received = ReceiveMessage(*b_, waiter, bytes_max);
    sender.join();
    return received;
  }

  std::unique_ptr<TestNet> net_ = GetParam().make(2);
  std::unique_ptr<Link> a_ = net_->MakeLink(0, 1);
  std::unique_ptr<Link> b_ = net_->MakeLink(1, 0);
};

TEST_P(LinkTest, NothingArrivesUnsent) {
  EXPECT_TRUE(a_->TryPoll().empty());
  EXPECT_TRUE(b_->TryPoll().empty());
  EXPECT_TRUE(a_->State());
}

TEST_P(LinkTest, SlotsArriveInOrderAndStayUntilReleased) {
  for (uint32_t round = 0; round < 40; ++round) {
    const std::vector<std::byte> first = Pattern(1 + round * 700, round);
    const std::vector<std::byte> second = Pattern(kSlotBytes, round + 1000);
    ASSERT_TRUE(TrySend(first));
    const std::span<const std::byte> payload = Poll();
    ASSERT_TRUE(TrySend(second));
    EXPECT_EQ(b_->TryPoll().data(), payload.data());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(payload.data()) % kSlotAlignment, 0u);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), first.begin(), first.end()));
    b_->Release();
    const std::span<const std::byte> next = Poll();
    EXPECT_TRUE(std::equal(next.begin(), next.end(), second.begin(), second.end()));
    b_->Release();
  }
  EXPECT_TRUE(b_->TryPoll().empty());
  EXPECT_TRUE(a_->TryPoll().empty()) << "nothing may come back to the sender";
}

TEST_P(LinkTest, AFullLinkTakesMoreOnlyAfterARelease) {
  uint32_t num_sent = 0;
  while (TrySend(Pattern(kSlotBytes, num_sent))) {
    ++num_sent;
    ASSERT_LT(num_sent, 10'000u) << "a link must be bounded";
  }
  ASSERT_GE(num_sent, 2u);  // the collectives need a peer to be one operation ahead
  for (uint32_t i = 0; i < num_sent; ++i) {
    const std::vector<std::byte> expected = Pattern(kSlotBytes, i);
    const std::span<const std::byte> payload = Poll();
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
    b_->Release();
  }
  Waiter waiter(net_->board(), 2, 0, kTestLimits);
  EXPECT_TRUE(waiter.Until([&] { return !a_->TryAcquire().empty(); }));
}

TEST_P(LinkTest, MessagesOfAnySizeArriveWhole) {
  for (size_t size : {size_t{0}, size_t{1}, kSlotBytes - 9, kSlotBytes - 8, kSlotBytes - 7,
                      kSlotBytes, 2 * kSlotBytes - 8, size_t{3'000'000}}) {
    SCOPED_TRACE(size);
    const std::vector<std::byte> message = Pattern(size, 5);
    auto received = ReceiveFromThread(message, size);
    ASSERT_TRUE(received) << received.error().message();
    EXPECT_TRUE(received.value() == message);
  }
}

TEST_P(LinkTest, TooLongMessageIsRefused) {
  auto received = ReceiveFromThread(Pattern(101, 0), 100);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(received.error().message(), "message of 101 bytes, expected at most 100");
}

// A length that no memory could hold must be refused before anything is allocated.
TEST_P(LinkTest, AbsurdLengthIsRefused) {
  ASSERT_TRUE(TrySend(std::vector<std::byte>(20, std::byte{0xFF})));
  Waiter waiter(net_->board(), 2, 1, kTestLimits);
  const auto received = ReceiveMessage(*b_, waiter, 1000);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().message(),
            "message of 18446744073709551615 bytes, expected at most 1000");
}

TEST_P(LinkTest, SlotsThatAreNoMessageAreRefused) {
  ASSERT_TRUE(TrySend(std::vector<std::byte>(3)));
  Waiter waiter(net_->board(), 2, 1, kTestLimits);
  auto received = ReceiveMessage(*b_, waiter, 1000);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().message(),
            "message starts with a slot of 3 bytes, expected 8 at least");
  b_->Release();
  std::vector<std::byte> bytes(20);  // says 5 bytes, brings 12
  bytes[0] = std::byte{5};
  ASSERT_TRUE(TrySend(bytes));
  received = ReceiveMessage(*b_, waiter, 1000);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().message(), "slot of 20 bytes in a message, expected 13");
}

TEST_P(LinkTest, WaitForAMessageEndsWithTheSender) {
  net_->board().ReportExit(0, 1, 0);
  Waiter waiter(net_->board(), 2, 1, kTestLimits);
  const auto received = ReceiveMessage(*b_, waiter, 10);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().message(), "rank 0 exited with code 1 during start-up");
}

TEST_P(LinkTest, SendIntoAFullLinkEndsWithTheReceiver) {
  net_->board().ReportExit(1, 1, 0);
  Waiter waiter(net_->board(), 2, 0, kTestLimits);
  const Status status = SendMessage(*a_, waiter, std::vector<std::byte>(64 * kSlotBytes));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "rank 1 exited with code 1 during start-up");
}

INSTANTIATE_TEST_SUITE_P(Links, LinkTest, ::testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace yoke::fabric
