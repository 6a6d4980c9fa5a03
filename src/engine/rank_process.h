// The life of one rank: attach, load its shard, then run the supervisor's steps in lock-step with
// the other ranks.
#pragma once

#include "engine/rank_options.h"

namespace yoke::engine {

// Exit codes of a rank process; heartbeat.h has one more.
constexpr int kRankExitOk = 0;      // told to stop
constexpr int kRankExitFailed = 4;  // an error, which it put on the board

// Runs until the plan says stop, an error, or the supervisor's end. Returns an exit code; errors
// are reported through the board.
int RunRank(const RankOptions& options);

}  // namespace yoke::engine
