#include "engine/rank_options.h"

#include "base/json.h"
#include "fabric/board.h"

namespace yoke::engine {

std::string RankOptionsToJson(const RankOptions& options) {
  Json json;
  json["model"] = options.group.model_folder;
  json["shares"] = options.group.shares;
  json["threads"] = options.group.threads_per_rank;
  json["tokens_max"] = options.group.tokens_max;
  json["trunk_q8_0"] = options.group.trunk == model::TrunkFormat::kQ8_0;
  json["reference"] = options.group.backend == BackendKind::kReference;
  json["rank"] = options.rank;
  json["segment_fd"] = options.segment_fd;
  json["control_fd"] = options.control_fd;
  return DumpJson(json);
}

Result<RankOptions> RankOptionsFromJson(std::string_view text) {
  YOKE_TRY(const Json json, ParseJson(text, 1 << 20));
  RankOptions options;
  YOKE_TRY(options.group.model_folder, JsonString(json, "model"));
  YOKE_TRY(const std::vector<int64_t> shares, JsonInts(json, "shares"));
  if (shares.empty() || shares.size() > static_cast<size_t>(fabric::kRanksMax)) {
    return Error(ErrorCode::kInvalidArgument, "shares: expected 1 to 8 numbers");
  }
  options.group.shares.clear();
  for (const int64_t share : shares) {
    if (share <= 0) return Error(ErrorCode::kInvalidArgument, "shares: must be above zero");
    options.group.shares.push_back(static_cast<size_t>(share));
  }
  YOKE_TRY(const int64_t threads, JsonInt(json, "threads", 1, 1024));
  YOKE_TRY(const int64_t tokens_max, JsonInt(json, "tokens_max", 1, 1 << 20));
  YOKE_TRY(const bool q8, JsonBool(json, "trunk_q8_0"));
  YOKE_TRY(const bool reference, JsonBool(json, "reference"));
  YOKE_TRY(const int64_t rank, JsonInt(json, "rank", 0, static_cast<int64_t>(shares.size()) - 1));
  YOKE_TRY(const int64_t segment_fd, JsonInt(json, "segment_fd", 0, 1 << 20));
  YOKE_TRY(const int64_t control_fd, JsonInt(json, "control_fd", 0, 1 << 20));
  options.group.threads_per_rank = static_cast<size_t>(threads);
  options.group.tokens_max = static_cast<size_t>(tokens_max);
  options.group.trunk = q8 ? model::TrunkFormat::kQ8_0 : model::TrunkFormat::kAsStored;
  options.group.backend = reference ? BackendKind::kReference : BackendKind::kCpu;
  options.rank = static_cast<int>(rank);
  options.segment_fd = static_cast<int>(segment_fd);
  options.control_fd = static_cast<int>(control_fd);
  return options;
}

}  // namespace yoke::engine
