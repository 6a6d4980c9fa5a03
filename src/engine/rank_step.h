// One rank's part of a step: from the plan to the bytes that rank 0 sends back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/step_plan.h"
#include "fabric/group.h"
#include "kernels/backend.h"
#include "model/kimi_k3.h"

namespace yoke::engine {

// Holds the sequences of one rank. Not thread-safe; everything passed in outlives it.
class RankStep {
 public:
  RankStep(model::KimiK3& model, kernels::Backend& backend, fabric::Group& group);

  // All ranks call this with the same plan. An error in the plan itself is the same on all ranks.
  // The result is filled on rank 0, elsewhere empty.
  Result<StepResult> Run(const StepPlan& plan);

  // What each rank contributed: [num_ranks].
  using Parts = std::vector<std::span<const std::byte>>;

 private:
  Result<std::vector<model::SequenceStep>> Prepare(const StepPlan& plan);
  // This rank's contribution to the results, in bytes whose number all ranks know.
  std::vector<std::byte> Contribution(const StepPlan& plan, const kernels::View& logits);
  StepResult Combine(const StepPlan& plan, Parts parts) const;
  RankStats StatsSince(uint64_t begin_ns, const fabric::GroupStats& before,
                       uint64_t weight_bytes_before) const;
  size_t ContributionBytes(const StepPlan& plan, size_t rank) const;

  model::KimiK3& model_;
  kernels::Backend& backend_;
  fabric::Group& group_;
  std::map<uint64_t, std::unique_ptr<model::SequenceState>> sequences_;
  std::vector<float> logits_;  // host copy: [num_logit_rows, vocab range]
};

}  // namespace yoke::engine
