// One ordered, reliable connection to one peer, in fixed slots. Back ends: shm_link.h; TCP and RDMA
// verbs fit the same calls.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace yoke::fabric {

// Payload bytes of a slot. A decode step's all-reduce (7168 f32) fits one slot.
constexpr size_t kSlotBytes = 32 * 1024;
constexpr size_t kSlotAlignment = 64;

// Never blocks: callers spin through Waiter. One thread uses a link.
class Link {
 public:
  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A slot to fill, kSlotBytes long, or an empty span while the peer has not released one. Asking
  // again before Post gives the same slot. Slots and payloads are aligned to kSlotAlignment.
  virtual std::span<std::byte> TryAcquire() = 0;
  // Sends the acquired slot's first num_bytes, 1..kSlotBytes.
  virtual void Post(size_t num_bytes) = 0;

  // The next arrived slot's payload, or an empty span. Stays valid until Release. A payload has at
  // least one byte.
  virtual std::span<const std::byte> TryPoll() = 0;
  virtual void Release() = 0;

  // Ok, or why nothing will arrive any more.
  virtual Status State() const = 0;
};

}  // namespace yoke::fabric
