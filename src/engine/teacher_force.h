// Runs given tokens through the ranks, cut and mixed in a chosen way, and collects every logit:
// what `verify`, the tests and perplexity stand on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/rank_group.h"

namespace yoke::engine {

// tokens[0, prompt_len) are prefilled, the others decoded one a step.
struct Script {
  std::vector<int32_t> tokens;
  size_t prompt_len = 0;
};

struct ForceOptions {
  size_t chunk = 64;      // prompt tokens of one sequence in a step; a multiple of 16
  bool together = false;  // all sequences share steps, else one after the other
};

// Result i: logits of script i, [tokens.size(), vocab_size]. Logits that are not finite are an
// error.
Result<std::vector<std::vector<float>>> TeacherForce(RankGroup& group,
                                                     std::span<const Script> scripts,
                                                     const ForceOptions& options);

struct Perplexity {
  size_t num_tokens = 0;  // scored
  double nll_sum = 0;     // nats
  double seconds = 0;
  double BitsPerToken() const;
  double Value() const;  // exp(nll_sum / num_tokens)
};

// The text's tokens in windows of `window`, each from a fresh state; the first token of a window is
// not scored. on_progress: tokens done of all; returning false stops with kCancelled.
Result<Perplexity> ScoreText(RankGroup& group, std::span<const int> tokens, size_t window,
                             const std::function<bool(size_t done, size_t total)>& on_progress);

// How two runs of the same tokens compare, with the words that the project uses.
struct Comparison {
  double diff_max = 0;  // largest |logit difference|
  size_t num_positions = 0;
  size_t num_argmax_differ = 0;
  size_t num_near_ties = 0;  // of those: the reference's top-2 gap is below 4 x the bound
  bool bitwise = true;       // every logit is finite and has the same bits

  // Every argmax equal but for near-ties, which are at most 1 % of the positions; not of nothing.
  bool Agree() const;
};
// logits: [num_positions, vocab_size] each, of the same size. Adds to `comparison`.
void Compare(std::span<const float> reference, std::span<const float> other, size_t vocab_size,
             double logit_bound, Comparison& comparison);

// The largest difference of any logit that rank counts may cause, for models of this kind in f32.
constexpr double kLogitBound = 1e-3;

}  // namespace yoke::engine
