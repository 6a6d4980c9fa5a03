// The life of one rank: attach, load its shard, then run the supervisor's steps in lock-step with
// the other ranks.
#pragma once

#include "engine/rank_options.h"

namespace yoke::engine {

// Exit codes of a rank process.
constexpr int kRankExitOk = 0;
constexpr int kRankExitFailed = 3;    // its own error, which it put on the board
constexpr int kRankExitPeerLost = 4;  // another rank's failure ended it

// Runs until the plan says stop, an error, or the supervisor's end. Returns an exit code; errors
// are reported through the board.
int RunRank(const RankOptions& options);

}  // namespace yoke::engine
