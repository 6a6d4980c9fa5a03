// Links inside one machine, over a shared segment that has no name: the supervisor makes it, the
// rank processes inherit its file descriptor.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"
#include "fabric/board.h"
#include "fabric/link.h"
#include "sys/shm.h"

namespace yoke::fabric {

// Segment layout: Board, then for each ordered pair of the num_ranks + 1 endpoints that may talk
// a ring of slots. Endpoint num_ranks is the supervisor; it talks with rank 0 only.
//   ring = u64 slots released by the receiver, padded to 128 bytes; slot * 4
//   slot = u64 sequence (1 for the first slot sent), u32 payload bytes, padded to 64 bytes; payload
size_t GroupSegmentBytes(int num_ranks);

// The board at the front of a segment of that size. REQUIRES: segment.size() >= that.
Board& BoardIn(ShmSegment& segment);

// The link from endpoint `self` to endpoint `peer`. The segment outlives it. At most one link for
// each (self, peer) in the life of a segment: it starts with the ring's first slot.
std::unique_ptr<Link> MakeShmLink(ShmSegment& segment, int num_ranks, int self, int peer);

}  // namespace yoke::fabric
