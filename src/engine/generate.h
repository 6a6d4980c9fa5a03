// Text from a prompt: prefill in chunks, then one token a step.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/rank_group.h"
#include "engine/sampler.h"
#include "model/model_info.h"

namespace yoke::engine {

enum class StopReason { kEndOfText, kLength, kContextFull, kInterrupted };
std::string_view ToString(StopReason reason);

struct GenerateOptions {
  size_t num_tokens = 256;  // to generate at most
  size_t context = 4096;    // positions at most, prompt included
  SamplingOptions sampling;
};

// One rank's sums over a run.
struct RankReport {
  RankStats prompt;  // over all prefill steps; rss fields: latest
  RankStats decode;  // over all decode steps
};

struct GenerateReport {
  size_t num_prompt_tokens = 0;
  size_t num_generated = 0;
  size_t num_decode_steps = 0;  // the first token comes out of the prefill
  double prompt_seconds = 0;    // to the end of the prefill, which gives the first token
  double decode_seconds = 0;
  StopReason stop = StopReason::kLength;
  std::vector<int> tokens;
  std::vector<RankReport> ranks;
};

// A prompt that is empty or does not fit the context is an error.
Status CheckPrompt(std::span<const int> prompt, const GenerateOptions& options,
                   const model::ModelInfo& info);

// on_text gets the text as it becomes complete; when it returns false (nobody reads any more) the
// generation ends.
Result<GenerateReport> Generate(RankGroup& group, const model::ModelInfo& info,
                                std::span<const int> prompt, const GenerateOptions& options,
                                const std::function<bool(std::string_view text)>& on_text);

}  // namespace yoke::engine
