#include "engine/generate.h"

#include <algorithm>
#include <utility>

#include "sys/process.h"

namespace yoke::engine {
namespace {

double Seconds(uint64_t begin_ns) {
  return static_cast<double>(NowNs() - begin_ns) * 1e-9;
}

void AddStats(const RankStats& step, RankStats& sum) {
  sum.compute_ns += step.compute_ns;
  sum.collective_ns += step.collective_ns;
  sum.waiting_ns += step.waiting_ns;
  sum.weight_bytes += step.weight_bytes;
  sum.fabric_bytes += step.fabric_bytes;
  sum.num_collectives += step.num_collectives;
  sum.rss_peak_bytes = step.rss_peak_bytes;
  sum.rss_own_bytes = step.rss_own_bytes;
}

// One generation in progress.
class Generation {
 public:
  Generation(RankGroup& group, const GenerateOptions& options)
      : group_(group), sampler_(options.sampling) {
    report_.ranks.resize(static_cast<size_t>(group.num_ranks()));
  }

  // Runs tokens at the end of the sequence; with_logits: returns the token that follows.
  Result<int32_t> Run(std::span<const int> tokens, bool prefill, bool with_logits) {
    StepPlan plan;
    plan.items.push_back({.sequence = 0,
                          .position = static_cast<uint32_t>(position_),
                          .prefill = prefill,
                          .want = with_logits ? sampler_.want() : Want::kNothing,
                          .top = with_logits ? sampler_.top() : 0,
                          .tokens = {tokens.begin(), tokens.end()},
                          .targets = {}});
    YOKE_TRY(const StepResult result, group_.Step(std::move(plan)));
    position_ += tokens.size();
    for (size_t r = 0; r < result.ranks.size(); ++r) {
      RankReport& rank = report_.ranks.at(r);
      AddStats(result.ranks[r], prefill ? rank.prompt : rank.decode);
    }
    if (!with_logits) return 0;
    return sampler_.Choose(result.items.at(0));
  }

  // The token after the prompt.
  Result<int32_t> Prefill(std::span<const int> prompt) {
    const size_t chunk = group_.options().tokens_max / 16 * 16;
    for (;;) {
      const std::span<const int> rest = prompt.subspan(position_);
      if (rest.size() <= chunk) return Run(rest, true, true);
      YOKE_TRY(const int32_t unused, Run(rest.first(chunk), true, false));
      static_cast<void>(unused);
      if (Interrupted()) return Error(ErrorCode::kCancelled, "interrupted in the prompt");
    }
  }

  Status Release() {
    StepPlan plan;
    plan.release.push_back(0);
    YOKE_TRY(const StepResult done, group_.Step(std::move(plan)));
    return Ok{};
  }

  size_t position() const { return position_; }
  GenerateReport& report() { return report_; }

 private:
  RankGroup& group_;
  Sampler sampler_;
  GenerateReport report_;
  size_t position_ = 0;
};

}  // namespace

std::string_view ToString(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText:
      return "end of text";
    case StopReason::kLength:
      return "length";
    case StopReason::kContextFull:
      return "context full";
    case StopReason::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

Status CheckPrompt(std::span<const int> prompt, const GenerateOptions& options,
                   const model::ModelInfo& info) {
  if (prompt.empty()) return Error(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (prompt.size() < options.context) return Ok{};
  return Error(ErrorCode::kInvalidArgument,
               "the prompt has " + std::to_string(prompt.size()) + " tokens, the context is " +
                   std::to_string(options.context) +
                   "; shorten the prompt or raise --ctx (the model's limit is " +
                   std::to_string(info.config.context_max) + ")");
}

Result<GenerateReport> Generate(RankGroup& group, const model::ModelInfo& info,
                                std::span<const int> prompt, const GenerateOptions& options,
                                const std::function<bool(std::string_view)>& on_text) {
  YOKE_RETURN_IF_ERROR(CheckPrompt(prompt, options, info));
  const std::vector<int>& ends = info.config.eos_tokens;
  Generation run(group, options);
  GenerateReport& report = run.report();
  report.num_prompt_tokens = prompt.size();
  model::StreamDecoder decoder;
  const uint64_t begin_ns = NowNs();
  YOKE_TRY(int32_t token, run.Prefill(prompt));
  report.prompt_seconds = Seconds(begin_ns);
  const uint64_t decode_begin_ns = NowNs();
  for (;;) {
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      report.stop = StopReason::kEndOfText;
      break;
    }
    if (report.num_generated == options.num_tokens) break;
    report.tokens.push_back(token);
    const std::string text = decoder.Push(info.tokenizer.TokenBytes(token));
    const bool wanted = text.empty() || on_text(text);
    if (++report.num_generated == options.num_tokens || !wanted) break;
    if (run.position() == options.context) {
      report.stop = StopReason::kContextFull;
      break;
    }
    if (Interrupted()) {
      report.stop = StopReason::kInterrupted;
      break;
    }
    const int last = token;
    YOKE_TRY(token, run.Run({&last, 1}, false, true));
    ++report.num_decode_steps;
  }
  report.decode_seconds = Seconds(decode_begin_ns);
  if (const std::string text = decoder.Finish(); !text.empty()) on_text(text);
  YOKE_RETURN_IF_ERROR(run.Release());
  return std::move(report);
}

}  // namespace yoke::engine
