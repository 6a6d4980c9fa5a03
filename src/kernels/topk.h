// What sampling needs of a row of logits on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace yoke::kernels {

struct IndexedValue {
  uint32_t index = 0;
  float value = 0;
};

// The k largest in descending order, equal ones by index; all of them if there are fewer than k.
// What is not a number comes last.
std::vector<IndexedValue> TopK(std::span<const float> logits, size_t k);

}  // namespace yoke::kernels
