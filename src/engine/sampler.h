// Chooses the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "engine/step_plan.h"

namespace yoke::engine {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest
  uint32_t top_k = 40;       // 0: all tokens
  double top_p = 0.95;       // 1: off
  double min_p = 0;          // 0: off
  uint64_t seed = 0;
};

// The error names the option, its limits and what came.
Status CheckSampling(const SamplingOptions& options);

// One sequence's sampler. The same seed and logits give the same tokens.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // What to ask the ranks for: the top few, or the whole row where top_k is off or beyond kTopMax.
  Want want() const;
  uint32_t top() const;

  // result: what was asked for. Softmax at the temperature over the top_k; of those the likeliest
  // that reach top_p together, and no less likely than min_p of the likeliest. Logits that are not
  // finite are an error.
  Result<int32_t> Choose(const ItemResult& result);

 private:
  SamplingOptions options_;
  Prng prng_;
};

}  // namespace yoke::engine
