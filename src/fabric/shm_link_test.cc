// What is special about shared memory: the supervisor's endpoint, and a segment that holds
// nonsense.
#include "fabric/shm_link.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "fabric/group.h"
#include "fabric/test_net.h"

namespace yoke::fabric {
namespace {

// Offsets in a slot's 64-byte header, and of the released count before the first slot of a ring.
constexpr std::ptrdiff_t kSequenceAt = -64;
constexpr std::ptrdiff_t kSizeAt = -56;
constexpr std::ptrdiff_t kReleasedAt = -64 - 128;

class ShmLinkTest : public ::testing::Test {
 protected:
  // Rank 1 sends one slot of 16 bytes to rank 0; returns where its payload lies.
  std::byte* SendOne() {
    const std::span<std::byte> slot = peer_->TryAcquire();
    std::memset(slot.data(), 7, 16);
    peer_->Post(16);
    return slot.data();
  }

  static void Store(std::byte* payload, std::ptrdiff_t offset, uint64_t value, size_t size) {
    std::memcpy(payload + offset, &value, size);
  }

  ShmTestNet net_{2};
  std::unique_ptr<Link> peer_ = net_.MakeLink(1, 0);
};

TEST_F(ShmLinkTest, HeaderIsWhereTheFormatSays) {
  std::byte* payload = SendOne();
  uint64_t sequence = 0;
  uint32_t size = 0;
  std::memcpy(&sequence, payload + kSequenceAt, sizeof(sequence));
  std::memcpy(&size, payload + kSizeAt, sizeof(size));
  EXPECT_EQ(sequence, 1u);
  EXPECT_EQ(size, 16u);
  std::unique_ptr<Link> own = net_.MakeLink(0, 1);
  ASSERT_EQ(own->TryPoll().data(), payload);
  own->Release();
  uint64_t num_released = 0;
  std::memcpy(&num_released, payload + kReleasedAt, sizeof(num_released));
  EXPECT_EQ(num_released, 1u);
}

TEST_F(ShmLinkTest, CorruptSizeIsAnError) {
  std::byte* payload = SendOne();
  for (uint64_t size : {uint64_t{0}, uint64_t{kSlotBytes + 1}, uint64_t{0xFFFFFFFF}}) {
    Store(payload, kSizeAt, size, 4);
    std::unique_ptr<Link> own = net_.MakeLink(0, 1);
    EXPECT_TRUE(own->State());
    EXPECT_TRUE(own->TryPoll().empty());
    const Status state = own->State();
    ASSERT_FALSE(state);
    EXPECT_EQ(state.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(state.error().message(), "shared-memory link: slot of " + std::to_string(size) +
                                           " bytes, expected 1 to 32768");
    EXPECT_TRUE(own->TryAcquire().empty()) << "a failed link carries nothing";
  }
}

TEST_F(ShmLinkTest, CorruptSequenceIsAnError) {
  std::byte* payload = SendOne();
  for (uint64_t sequence : {uint64_t{2}, uint64_t{5}, ~uint64_t{0}}) {
    Store(payload, kSequenceAt, sequence, 8);
    std::unique_ptr<Link> own = net_.MakeLink(0, 1);
    EXPECT_TRUE(own->TryPoll().empty());
    EXPECT_FALSE(own->State());
  }
}

TEST_F(ShmLinkTest, CorruptReleasedCountIsAnError) {
  std::byte* payload = SendOne();
  Store(payload, kReleasedAt, 1000, 8);
  for (int i = 0; i < 10 && !peer_->TryAcquire().empty(); ++i) peer_->Post(16);
  ASSERT_FALSE(peer_->State());
  EXPECT_EQ(peer_->State().error().message(),
            "shared-memory link: released-slot count 1000 after 4 sent slots");
}

TEST_F(ShmLinkTest, CollectiveOnACorruptRingNamesThePeer) {
  Store(SendOne(), kSizeAt, 1'000'000, 4);
  Group group = MakeGroup(net_, 2, 0);
  std::vector<float> data(4);
  const Status status = group.AllReduce(data);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(),
            "link to rank 1: shared-memory link: slot of 1000000 bytes, expected 1 to 32768");
  const Status board = net_.board().Check(2, /*self=*/1, 0, 0);
  ASSERT_FALSE(board) << "the peer must learn of it";
  EXPECT_EQ(board.error().message(), "rank 0: " + status.error().message());
}

TEST_F(ShmLinkTest, AwaitOnACorruptRingEnds) {
  Store(SendOne(), kSizeAt, 1'000'000, 4);
  Group group = MakeGroup(net_, 2, 0);
  const Status status = group.AwaitFrom(1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
}

TEST_F(ShmLinkTest, RandomBytesInTheRingsNeverCrash) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    ShmTestNet net(2);
    std::byte* rings = net.segment().data() + sizeof(Board);
    const size_t size = net.segment().size() - sizeof(Board);
    // Small numbers are near what is right, so that some get past the first check.
    for (size_t i = 0; i < size; i += 4) {
      const auto value = static_cast<uint32_t>(round % 2 == 0 ? random() : random() % 3);
      std::memcpy(rings + i, &value, std::min<size_t>(4, size - i));
    }
    Group group = MakeGroup(net, 2, 0, {.deadline_ns = 10'000'000});
    std::vector<float> data(10 * kSlotBytes / sizeof(float));
    EXPECT_FALSE(group.AllReduce(data));
  }
}

TEST(ShmLinkLayoutTest, EveryPairHasItsOwnRing) {
  constexpr int kNumRanks = 4;
  ShmTestNet net(kNumRanks);
  std::vector<std::pair<int, int>> pairs = {{0, kNumRanks}, {kNumRanks, 0}};
  for (int a = 0; a < kNumRanks; ++a) {
    for (int b = 0; b < kNumRanks; ++b) {
      if (a != b) pairs.emplace_back(a, b);
    }
  }
  std::vector<std::unique_ptr<Link>> links;
  for (auto [self, peer] : pairs) links.push_back(net.MakeLink(self, peer));
  std::vector<const std::byte*> slots;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::span<std::byte> slot = links[i]->TryAcquire();
    EXPECT_GE(slot.data(), net.segment().data() + sizeof(Board));
    EXPECT_LE(slot.data() + slot.size(), net.segment().data() + net.segment().size());
    slots.push_back(slot.data());
    slot[0] = static_cast<std::byte>(pairs[i].first * 16 + pairs[i].second);
    links[i]->Post(1);
  }
  std::sort(slots.begin(), slots.end());
  for (size_t i = 1; i < slots.size(); ++i) {
    EXPECT_GE(slots[i] - slots[i - 1], static_cast<std::ptrdiff_t>(kSlotBytes));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::span<const std::byte> payload = links[i]->TryPoll();
    ASSERT_EQ(payload.size(), 1u);
    EXPECT_EQ(payload[0], static_cast<std::byte>(pairs[i].second * 16 + pairs[i].first));
  }
}

}  // namespace
}  // namespace yoke::fabric
