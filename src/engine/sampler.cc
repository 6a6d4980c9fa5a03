#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace yoke::engine {
namespace {

Error BadOption(const char* name, const char* limits, double value) {
  return Error(ErrorCode::kInvalidArgument, std::string("--") + name + " must be " + limits +
                                                ", but is " + std::to_string(value));
}

std::vector<Candidate> FromRow(std::span<const float> row, uint32_t top_k) {
  std::vector<Candidate> candidates(row.size());
  for (size_t i = 0; i < row.size(); ++i) candidates[i] = {static_cast<int32_t>(i), row[i]};
  std::sort(candidates.begin(), candidates.end(), Likelier);
  if (top_k != 0 && top_k < candidates.size()) candidates.resize(top_k);
  return candidates;
}

// With candidates only, the sum tells of the others.
bool AllFinite(const ItemResult& result) {
  const auto finite = [](float logit) { return std::isfinite(logit); };
  return std::isfinite(result.log_sum_exp) &&
         std::all_of(result.rows.begin(), result.rows.end(), finite);
}

}  // namespace

Status CheckSampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    return BadOption("temp", "0 to 100", options.temperature);
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return BadOption("top-p", "above 0, at most 1", options.top_p);
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return BadOption("min-p", "0 to 1", options.min_p);
  }
  return Ok{};
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), prng_(options.seed) {}

Want Sampler::want() const {
  const bool greedy = options_.temperature == 0;
  return greedy || (options_.top_k != 0 && options_.top_k <= kTopMax) ? Want::kTop : Want::kLastRow;
}

uint32_t Sampler::top() const {
  if (want() != Want::kTop) return 0;
  return options_.temperature == 0 ? 1 : options_.top_k;
}

Result<int32_t> Sampler::Choose(const ItemResult& result) {
  if (!AllFinite(result)) return NotFiniteError();
  const std::vector<Candidate> candidates =
      result.rows.empty() ? result.top : FromRow(result.rows, options_.top_k);
  YOKE_CHECK(!candidates.empty());
  if (options_.temperature == 0) return candidates.front().token;

  std::vector<double> weights;  // relative to the likeliest
  double total = 0;
  for (const Candidate& candidate : candidates) {
    const double below = static_cast<double>(candidate.logit - candidates.front().logit);
    weights.push_back(std::exp(below / options_.temperature));
    total += weights.back();
  }
  double kept = 0;
  size_t num_kept = 0;
  while (num_kept < weights.size() && kept < options_.top_p * total &&
         weights[num_kept] >= options_.min_p) {
    kept += weights[num_kept++];
  }
  double pick = prng_.UniformDouble() * kept;
  for (size_t i = 0; i + 1 < num_kept; ++i) {
    if (pick < weights[i]) return candidates[i].token;
    pick -= weights[i];
  }
  return candidates[num_kept - 1].token;
}

}  // namespace yoke::engine
