// SendMessage and ReceiveMessage of group.h.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "fabric/group.h"

namespace yoke::fabric {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);

// Waits for a slot to fill, or for the link's error.
Result<std::span<std::byte>> AcquireSlot(Link& link, Waiter& waiter) {
  std::span<std::byte> slot;
  YOKE_RETURN_IF_ERROR(waiter.Until([&] {
    slot = link.TryAcquire();
    return !slot.empty() || !link.State();
  }));
  if (slot.empty()) return std::move(link.State()).error();
  return slot;
}

Result<std::span<const std::byte>> PollSlot(Link& link, Waiter& waiter) {
  std::span<const std::byte> payload;
  YOKE_RETURN_IF_ERROR(waiter.Until([&] {
    payload = link.TryPoll();
    return !payload.empty() || !link.State();
  }));
  if (payload.empty()) return std::move(link.State()).error();
  return payload;
}

}  // namespace

Status SendMessage(Link& link, Waiter& waiter, std::span<const std::byte> message) {
  const uint64_t length = message.size();
  size_t header = kLengthBytes;  // of the first slot
  do {
    YOKE_TRY(const std::span<std::byte> slot, AcquireSlot(link, waiter));
    std::memcpy(slot.data(), &length, header);
    const size_t size = std::min(message.size(), slot.size() - header);
    if (size > 0) std::memcpy(slot.data() + header, message.data(), size);
    link.Post(header + size);
    message = message.subspan(size);
    header = 0;
  } while (!message.empty());
  return Ok{};
}

Result<std::vector<std::byte>> ReceiveMessage(Link& link, Waiter& waiter, size_t bytes_max) {
  YOKE_TRY(std::span<const std::byte> payload, PollSlot(link, waiter));
  uint64_t length = 0;
  if (payload.size() < kLengthBytes) {
    return Error(ErrorCode::kCorrupt, "message starts with a slot of " +
                                          std::to_string(payload.size()) + " bytes, expected " +
                                          std::to_string(kLengthBytes) + " at least");
  }
  std::memcpy(&length, payload.data(), kLengthBytes);
  if (length > bytes_max) {
    return Error(ErrorCode::kCorrupt, "message of " + std::to_string(length) +
                                          " bytes, expected at most " + std::to_string(bytes_max));
  }
  std::vector<std::byte> message(length);
  std::span<std::byte> rest = message;
  for (size_t header = kLengthBytes;; header = 0) {
    const size_t size = std::min(rest.size(), kSlotBytes - header);
    if (payload.size() != header + size) {
      return Error(ErrorCode::kCorrupt, "slot of " + std::to_string(payload.size()) +
                                            " bytes in a message, expected " +
                                            std::to_string(header + size));
    }
    if (size > 0) std::memcpy(rest.data(), payload.data() + header, size);
    link.Release();
    rest = rest.subspan(size);
    if (rest.empty()) return message;
    YOKE_TRY(payload, PollSlot(link, waiter));
  }
}

}  // namespace yoke::fabric
