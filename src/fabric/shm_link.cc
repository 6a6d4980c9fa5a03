#include "fabric/shm_link.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <string>

namespace yoke::fabric {
namespace {

// A rank may be a whole lock-step operation ahead of a peer, and large data pipelines.
constexpr size_t kNumSlots = 4;
// Two cache lines: neighbours are fetched in pairs on x86, and a line has 128 bytes on Apple
// silicon.
constexpr size_t kApart = 128;

struct Slot {
  // Release store by the sender after size and payload; n + 1 for the n-th slot sent on the ring.
  alignas(kSlotAlignment) std::atomic<uint64_t> sequence;
  std::atomic<uint32_t> size;
  alignas(kSlotAlignment) std::byte payload[kSlotBytes];
};
static_assert(sizeof(Slot) == kSlotAlignment + kSlotBytes);

struct Ring {
  // Release store by the receiver after it has read the payload.
  alignas(kApart) std::atomic<uint64_t> num_released;
  alignas(kApart) Slot slots[kNumSlots];
};

size_t RoundUp(size_t bytes) {
  return (bytes + kApart - 1) / kApart * kApart;
}

// Rings by number: n - 1 from each rank, then rank 0 to the supervisor, then back.
size_t NumRings(size_t num_ranks) {
  return num_ranks * (num_ranks - 1) + 2;
}

size_t RingIndex(size_t num_ranks, size_t from, size_t to) {
  if (to == num_ranks) return num_ranks * (num_ranks - 1);
  if (from == num_ranks) return num_ranks * (num_ranks - 1) + 1;
  return from * (num_ranks - 1) + (to > from ? to - 1 : to);
}

// Single producer, single consumer, no locks. Whatever the segment holds, nothing is read or
// written outside the ring's slots: counters that a correct peer cannot have stored end the link.
class ShmLink final : public Link {
 public:
  ShmLink(Ring& out, Ring& in) : out_(out), in_(in) {}

  std::span<std::byte> TryAcquire() override {
    if (error_) return {};
    if (num_posted_ - num_freed_ == kNumSlots) {
      const uint64_t num_released = out_.num_released.load(std::memory_order_acquire);
      if (num_posted_ - num_released > kNumSlots) {
        return Fail("released-slot count " + std::to_string(num_released) + " after " +
                    std::to_string(num_posted_) + " sent slots");
      }
      if (num_posted_ - num_released == kNumSlots) return {};
      num_freed_ = num_released;
    }
    return out_.slots[num_posted_ % kNumSlots].payload;
  }

  void Post(size_t num_bytes) override {
    YOKE_CHECK(num_bytes > 0 && num_bytes <= kSlotBytes);
    YOKE_CHECK(num_posted_ - num_freed_ < kNumSlots);
    Slot& slot = out_.slots[num_posted_ % kNumSlots];
    ++num_posted_;
    slot.size.store(static_cast<uint32_t>(num_bytes), std::memory_order_relaxed);
    slot.sequence.store(num_posted_, std::memory_order_release);
  }

  std::span<const std::byte> TryPoll() override {
    if (error_) return {};
    const Slot& slot = in_.slots[num_taken_ % kNumSlots];
    const uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
    if (sequence != num_taken_ + 1) {
      const uint64_t previous = num_taken_ < kNumSlots ? 0 : num_taken_ + 1 - kNumSlots;
      if (sequence == previous) return {};
      return Fail("slot sequence " + std::to_string(sequence) + ", expected " +
                  std::to_string(num_taken_ + 1));
    }
    const uint32_t size = slot.size.load(std::memory_order_relaxed);
    if (size == 0 || size > kSlotBytes) {
      return Fail("slot of " + std::to_string(size) + " bytes, expected 1 to " +
                  std::to_string(kSlotBytes));
    }
    return {slot.payload, size};
  }

  void Release() override {
    ++num_taken_;
    in_.num_released.store(num_taken_, std::memory_order_release);
  }

  Status State() const override {
    if (error_) return *error_;
    return Ok{};
  }

 private:
  std::span<std::byte> Fail(const std::string& what) {
    error_.emplace(ErrorCode::kCorrupt, "shared-memory link: " + what);
    return {};
  }

  Ring& out_;
  Ring& in_;
  uint64_t num_posted_ = 0;
  uint64_t num_freed_ = 0;  // of the posted ones, at least this many were released
  uint64_t num_taken_ = 0;
  std::optional<Error> error_;
};

Ring& RingIn(ShmSegment& segment, int num_ranks, int from, int to) {
  const size_t index =
      RingIndex(static_cast<size_t>(num_ranks), static_cast<size_t>(from), static_cast<size_t>(to));
  std::byte* at = segment.data() + RoundUp(sizeof(Board)) + index * sizeof(Ring);
  return *std::launder(reinterpret_cast<Ring*>(at));
}

}  // namespace

size_t GroupSegmentBytes(int num_ranks) {
  YOKE_CHECK(num_ranks >= 1 && num_ranks <= kRanksMax);
  return RoundUp(sizeof(Board)) + NumRings(static_cast<size_t>(num_ranks)) * sizeof(Ring);
}

Board& BoardIn(ShmSegment& segment) {
  YOKE_CHECK(segment.size() >= sizeof(Board));
  return *std::launder(reinterpret_cast<Board*>(segment.data()));
}

std::unique_ptr<Link> MakeShmLink(ShmSegment& segment, int num_ranks, int self, int peer) {
  YOKE_CHECK(segment.size() >= GroupSegmentBytes(num_ranks));
  YOKE_CHECK(self >= 0 && self <= num_ranks && peer >= 0 && peer <= num_ranks && self != peer);
  // The supervisor, endpoint num_ranks, talks with rank 0 only.
  YOKE_CHECK((self != num_ranks || peer == 0) && (peer != num_ranks || self == 0));
  return std::make_unique<ShmLink>(RingIn(segment, num_ranks, self, peer),
                                   RingIn(segment, num_ranks, peer, self));
}

}  // namespace yoke::fabric
