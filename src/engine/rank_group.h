// The supervisor's end: starts the ranks of one model on this machine, hands them steps, and
// notices when one dies, stops or fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/rank_options.h"
#include "engine/step_plan.h"

namespace yoke::engine {

struct LoadProgress {
  uint64_t loaded_bytes = 0;  // over all ranks
  uint64_t total_bytes = 0;   // an estimate
};

// Owns the rank processes: destroying it kills and reaps what is left. One thread uses it.
class RankGroup {
 public:
  struct Hooks {
    std::function<void(const LoadProgress&)> on_progress;          // while loading
    std::function<void(const std::vector<int>& pids)> on_spawned;  // before loading
  };

  // Returns when every rank has loaded its shard. Spawns from the calling thread, which must live
  // as long as the group. `program`: the yoke binary, run as `program rank JSON`.
  static Result<std::unique_ptr<RankGroup>> Start(const std::string& program,
                                                  const GroupOptions& options, const Hooks& hooks);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Runs one step; numbers the plan itself. The result has one item for each of the plan, and each
  // rank's account unless the plan has no items. An error (a lost rank, within 5 s, named with its
  // operation) ends the group.
  Result<StepResult> Step(StepPlan plan);

  // Orderly end: every rank leaves by itself, within a bound.
  Status Stop();

  int num_ranks() const;
  const GroupOptions& options() const;
  std::vector<int> pids() const;
  double load_seconds() const;

 private:
  class Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::engine
