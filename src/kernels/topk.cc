#include "kernels/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace yoke::kernels {

std::vector<IndexedValue> TopK(std::span<const float> logits, size_t k) {
  YOKE_CHECK(logits.size() <= std::numeric_limits<uint32_t>::max());
  const auto before = [](const IndexedValue& a, const IndexedValue& b) {
    if (std::isnan(a.value) != std::isnan(b.value)) return std::isnan(b.value);
    if (std::isnan(a.value)) return a.index < b.index;
    return a.value != b.value ? a.value > b.value : a.index < b.index;
  };
  k = std::min(k, logits.size());
  std::vector<IndexedValue> best;
  if (k == 0) return best;
  best.reserve(k);
  // A heap with the worst of the best on top: most logits are turned away by one comparison.
  for (size_t i = 0; i < logits.size(); ++i) {
    const IndexedValue item{static_cast<uint32_t>(i), logits[i]};
    if (best.size() == k) {
      if (!before(item, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), before);
      best.back() = item;
    } else {
      best.push_back(item);
    }
    std::push_heap(best.begin(), best.end(), before);
  }
  std::sort_heap(best.begin(), best.end(), before);
  return best;
}

}  // namespace yoke::kernels
