// Who owns which part of a line of heads, rows or columns. Pure arithmetic.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace yoke::shard {

// [begin, end)
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Cuts [0, total) into shares.size() consecutive ranges whose sizes are as near to the shares as
// whole units allow; a unit that does not divide total leaves a shorter last one. Every element is
// in exactly one range; a range may be empty. REQUIRES: unit > 0, at least one share, all > 0.
std::vector<Range> Partition(size_t total, size_t unit, std::span<const size_t> shares);

// The unit in which `total` is best cut for num_ranks: `block` while that gives every rank at
// least one block, else 1.
size_t UnitFor(size_t total, size_t block, size_t num_ranks);

// The smallest range of whole blocks that holds `range`.
Range CoverBlocks(const Range& range, size_t block);

}  // namespace yoke::shard
