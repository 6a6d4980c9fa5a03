#include "shard/partition.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace yoke::shard {

std::vector<Range> Partition(size_t total, size_t unit, std::span<const size_t> shares) {
  YOKE_CHECK(unit > 0);
  YOKE_CHECK(!shares.empty());
  const size_t share_sum = std::accumulate(shares.begin(), shares.end(), size_t{0});
  const size_t num_units = (total + unit - 1) / unit;
  std::vector<Range> ranges;
  size_t share_so_far = 0;
  size_t begin = 0;
  for (const size_t share : shares) {
    YOKE_CHECK(share > 0);
    share_so_far += share;
    // Rounded to the nearest unit; the last border is total, since share_so_far == share_sum.
    const size_t border_units = (2 * num_units * share_so_far + share_sum) / (2 * share_sum);
    const size_t end = std::min(total, border_units * unit);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

size_t UnitFor(size_t total, size_t block, size_t num_ranks) {
  return total / block >= num_ranks ? block : 1;
}

Range CoverBlocks(const Range& range, size_t block) {
  if (range.size() == 0) return {range.begin / block * block, range.begin / block * block};
  return {range.begin / block * block, (range.end + block - 1) / block * block};
}

}  // namespace yoke::shard
