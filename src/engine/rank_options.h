// How a group of ranks is set up; one rank process gets this as its command line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/weight_loader.h"

namespace yoke::engine {

enum class BackendKind { kCpu, kReference };

struct GroupOptions {
  std::string model_folder;
  std::vector<size_t> shares = {1};  // one a rank
  size_t threads_per_rank = 1;
  size_t tokens_max = 256;  // of a step
  model::TrunkFormat trunk = model::TrunkFormat::kAsStored;
  BackendKind backend = BackendKind::kCpu;

  int num_ranks() const { return static_cast<int>(shares.size()); }
};

struct RankOptions {
  GroupOptions group;
  int rank = 0;
  // Descriptors that the supervisor passes on.
  int segment_fd = 3;
  int control_fd = 4;  // read end of a pipe that closes when the supervisor is gone
};

std::string RankOptionsToJson(const RankOptions& options);
Result<RankOptions> RankOptionsFromJson(std::string_view json);

}  // namespace yoke::engine
