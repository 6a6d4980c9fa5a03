#include "engine/rank_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/topk.h"
#include "sys/process.h"

namespace yoke::engine {
namespace {

using model::LogitRows;
using model::SequenceStep;

// What a rank says of one row of its vocabulary slice for kLogProbs.
struct TargetPart {
  LogSum sum;
  double target_logit;  // 0 where the target is another rank's
};

LogitRows RowsFor(Want want) {
  if (want == Want::kNothing) return LogitRows::kNone;
  return want == Want::kAllRows || want == Want::kLogProbs ? LogitRows::kAll : LogitRows::kLast;
}

size_t NumRows(const PlanItem& item) {
  switch (RowsFor(item.want)) {
    case LogitRows::kNone:
      return 0;
    case LogitRows::kLast:
      return 1;
    case LogitRows::kAll:
      return item.tokens.size();
  }
  return 0;
}

LogSum SumOf(std::span<const float> logits) {
  if (logits.empty()) return {.max = -std::numeric_limits<double>::infinity(), .sum = 0};
  const double max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return {.max = max, .sum = sum};
}

template <typename T>
void Append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const auto raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

// Takes `count` values from the front of bytes.
template <typename T>
std::vector<T> Take(std::span<const std::byte>& bytes, size_t count) {
  std::vector<T> values(count);
  YOKE_CHECK(bytes.size() >= count * sizeof(T));
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes = bytes.subspan(count * sizeof(T));
  return values;
}

Error BadPlan(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, "step plan: " + what);
}

// One item's result. Takes what belongs to it from the front of every rank's part.

ItemResult CombineTop(const PlanItem& item, std::span<const model::KimiK3Shard> shards,
                      RankStep::Parts& parts) {
  ItemResult out;
  std::vector<LogSum> sums;
  for (size_t r = 0; r < parts.size(); ++r) {
    const size_t count = std::min<size_t>(item.top, shards[r].vocab.size());
    const std::vector<Candidate> best = Take<Candidate>(parts[r], count);
    out.top.insert(out.top.end(), best.begin(), best.end());
    sums.push_back(Take<LogSum>(parts[r], 1)[0]);
  }
  std::sort(out.top.begin(), out.top.end(), Likelier);
  out.top.resize(std::min<size_t>(out.top.size(), item.top));
  out.log_sum_exp = Merge(sums).Value();
  return out;
}

ItemResult CombineRows(size_t num_rows, size_t vocab_size,
                       std::span<const model::KimiK3Shard> shards, RankStep::Parts& parts) {
  ItemResult out;
  out.rows.resize(num_rows * vocab_size);
  for (size_t r = 0; r < parts.size(); ++r) {
    const shard::Range vocab = shards[r].vocab;
    for (size_t i = 0; i < num_rows; ++i) {
      const std::vector<float> slice = Take<float>(parts[r], vocab.size());
      std::copy(slice.begin(), slice.end(),
                out.rows.begin() + static_cast<std::ptrdiff_t>(i * vocab_size + vocab.begin));
    }
  }
  return out;
}

ItemResult CombineLogProbs(size_t num_rows, RankStep::Parts& parts) {
  ItemResult out;
  for (size_t i = 0; i < num_rows; ++i) {
    std::vector<LogSum> sums;
    double target_logit = 0;
    for (std::span<const std::byte>& part : parts) {
      const TargetPart row = Take<TargetPart>(part, 1)[0];
      sums.push_back(row.sum);
      target_logit += row.target_logit;
    }
    out.log_probs.push_back(static_cast<float>(target_logit - Merge(sums).Value()));
  }
  return out;
}

}  // namespace

RankStep::RankStep(model::KimiK3& model, kernels::Backend& backend, fabric::Group& group)
    : model_(model), backend_(backend), group_(group) {}

Result<std::vector<SequenceStep>> RankStep::Prepare(const StepPlan& plan) {
  for (const uint64_t id : plan.release) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) return BadPlan("releases unknown sequence " + std::to_string(id));
    model_.Release(*it->second);
    sequences_.erase(it);
  }
  if (plan.NumTokens() > model_.tokens_max()) {
    return BadPlan(std::to_string(plan.NumTokens()) + " tokens, at most " +
                   std::to_string(model_.tokens_max()));
  }
  std::vector<SequenceStep> steps;
  for (const PlanItem& item : plan.items) {
    const std::string name = "sequence " + std::to_string(item.sequence);
    auto& state = sequences_[item.sequence];
    if (!state) state = model_.NewSequence();
    const auto same = [&](const SequenceStep& step) { return step.state == state.get(); };
    if (std::any_of(steps.begin(), steps.end(), same)) return BadPlan(name + " occurs twice");
    if (state->position != item.position) {
      return BadPlan(name + " is at position " + std::to_string(state->position) + ", not " +
                     std::to_string(item.position));
    }
    if (item.prefill ? item.position % kernels::kKdaSubChunk != 0 : item.tokens.size() != 1) {
      return BadPlan(name + ": a prompt is cut at multiples of 16, a decode step has one token");
    }
    for (const std::vector<int32_t>* tokens : {&item.tokens, &item.targets}) {
      for (const int32_t token : *tokens) {
        if (token >= 0 && static_cast<size_t>(token) < model_.config().vocab_size) continue;
        return BadPlan(name + ": token " + std::to_string(token) + " is outside the vocabulary");
      }
    }
    steps.push_back({.state = state.get(),
                     .tokens = item.tokens,
                     .prefill = item.prefill,
                     .logits = RowsFor(item.want)});
  }
  return steps;
}

Result<StepResult> RankStep::Run(const StepPlan& plan) {
  const uint64_t begin_ns = NowNs();
  const fabric::GroupStats before = group_.stats();
  const uint64_t weight_bytes_before = backend_.WeightBytesRead();
  YOKE_TRY(const std::vector<SequenceStep> steps, Prepare(plan));
  if (steps.empty()) return StepResult{};
  YOKE_TRY(const kernels::View logits, model_.Forward(steps));
  std::vector<std::byte> own = Contribution(plan, logits);
  const RankStats stats = StatsSince(begin_ns, before, weight_bytes_before);
  Append(own, std::span<const RankStats>(&stats, 1));

  std::vector<size_t> offsets = {0};
  for (size_t rank = 0; rank < model_.shards().size(); ++rank) {
    offsets.push_back(offsets.back() + ContributionBytes(plan, rank));
  }
  const auto rank = static_cast<size_t>(group_.rank());
  YOKE_CHECK(own.size() == offsets[rank + 1] - offsets[rank]);
  std::vector<std::byte> all(offsets.back());
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(offsets[rank]));
  YOKE_RETURN_IF_ERROR(group_.Gather(0, all, offsets));
  if (rank != 0) return StepResult{};
  Parts parts;
  for (size_t r = 0; r + 1 < offsets.size(); ++r) {
    parts.push_back(std::span(all).subspan(offsets[r], offsets[r + 1] - offsets[r]));
  }
  return Combine(plan, std::move(parts));
}

RankStats RankStep::StatsSince(uint64_t begin_ns, const fabric::GroupStats& before,
                               uint64_t weight_bytes_before) const {
  const fabric::GroupStats& now = group_.stats();
  const uint64_t total_ns = NowNs() - begin_ns;
  const uint64_t fabric_ns = now.total_ns - before.total_ns;
  const uint64_t waited_ns = now.waited_ns - before.waited_ns;
  return {.compute_ns = total_ns - std::min(total_ns, fabric_ns),
          .collective_ns = fabric_ns - std::min(fabric_ns, waited_ns),
          .waiting_ns = waited_ns,
          .weight_bytes = backend_.WeightBytesRead() - weight_bytes_before,
          .fabric_bytes = now.bytes_sent - before.bytes_sent,
          .num_collectives = now.num_ops - before.num_ops,
          .rss_peak_bytes = PeakRssBytes(),
          .rss_own_bytes = AnonymousRssBytes()};
}

size_t RankStep::ContributionBytes(const StepPlan& plan, size_t rank) const {
  const size_t vocab = model_.shards()[rank].vocab.size();
  size_t bytes = sizeof(RankStats);
  for (const PlanItem& item : plan.items) {
    switch (item.want) {
      case Want::kNothing:
        break;
      case Want::kTop:
        bytes += std::min<size_t>(item.top, vocab) * sizeof(Candidate) + sizeof(LogSum);
        break;
      case Want::kLastRow:
      case Want::kAllRows:
        bytes += NumRows(item) * vocab * sizeof(float);
        break;
      case Want::kLogProbs:
        bytes += NumRows(item) * sizeof(TargetPart);
        break;
    }
  }
  return bytes;
}

std::vector<std::byte> RankStep::Contribution(const StepPlan& plan, const kernels::View& logits) {
  const shard::Range vocab = model_.shard().vocab;
  logits_.resize(logits.rows * logits.cols);
  backend_.Read(logits, logits_);
  std::vector<std::byte> bytes;
  std::span<const float> left = logits_;
  for (const PlanItem& item : plan.items) {
    const size_t num_rows = NumRows(item);
    const std::span<const float> rows = left.first(num_rows * vocab.size());
    left = left.subspan(rows.size());
    if (item.want == Want::kTop) {
      for (const kernels::IndexedValue& entry : kernels::TopK(rows, item.top)) {
        const Candidate candidate = {static_cast<int32_t>(vocab.begin + entry.index), entry.value};
        Append(bytes, std::span<const Candidate>(&candidate, 1));
      }
      const LogSum sum = SumOf(rows);
      Append(bytes, std::span<const LogSum>(&sum, 1));
    } else if (item.want == Want::kLogProbs) {
      for (size_t i = 0; i < num_rows; ++i) {
        const std::span<const float> row = rows.subspan(i * vocab.size(), vocab.size());
        const auto target = static_cast<size_t>(item.targets[i]);
        const bool ours = target >= vocab.begin && target < vocab.end;
        const TargetPart part = {SumOf(row),
                                 ours ? static_cast<double>(row[target - vocab.begin]) : 0.0};
        Append(bytes, std::span<const TargetPart>(&part, 1));
      }
    } else {
      Append(bytes, rows);
    }
  }
  return bytes;
}

StepResult RankStep::Combine(const StepPlan& plan, Parts parts) const {
  StepResult result;
  for (const PlanItem& item : plan.items) {
    switch (item.want) {
      case Want::kNothing:
        result.items.emplace_back();
        break;
      case Want::kTop:
        result.items.push_back(CombineTop(item, model_.shards(), parts));
        break;
      case Want::kLastRow:
      case Want::kAllRows:
        result.items.push_back(
            CombineRows(NumRows(item), model_.config().vocab_size, model_.shards(), parts));
        break;
      case Want::kLogProbs:
        result.items.push_back(CombineLogProbs(NumRows(item), parts));
        break;
    }
  }
  for (std::span<const std::byte>& part : parts) {
    result.ranks.push_back(Take<RankStats>(part, 1)[0]);
  }
  return result;
}

}  // namespace yoke::engine
