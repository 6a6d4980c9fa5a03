#include "engine/rank_process.h"

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/rank_step.h"
#include "engine/step_plan.h"
#include "fabric/board.h"
#include "fabric/group.h"
#include "fabric/heartbeat.h"
#include "fabric/shm_link.h"
#include "kernels/cpu_backend.h"
#include "kernels/reference_backend.h"
#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/model_info.h"
#include "sys/process.h"
#include "sys/shm.h"

namespace yoke::engine {
namespace {

using fabric::Board;
using fabric::BoardLine;
using fabric::Phase;

// A plan travels in one broadcast if it fits, which decode plans do.
constexpr size_t kInlinePlanBytes = 2048;
struct PlanFrame {
  uint64_t num_bytes;
  std::array<std::byte, kInlinePlanBytes> bytes;
};

std::unique_ptr<kernels::Backend> MakeBackend(const GroupOptions& options) {
  if (options.backend == BackendKind::kReference) return kernels::MakeReferenceBackend();
  return kernels::MakeCpuBackend(
      {.num_threads = options.threads_per_rank,
       .oversubscribed =
           options.threads_per_rank * options.shares.size() > static_cast<size_t>(NumCores())});
}

// File bytes that a rank is going to copy, for the progress bar: its share, roughly.
uint64_t ExpectedBytes(const model::Checkpoint& checkpoint, const RankOptions& options) {
  size_t sum = 0;
  for (const size_t share : options.group.shares) sum += share;
  return checkpoint.TotalBytes() * options.group.shares[static_cast<size_t>(options.rank)] / sum;
}

class Rank {
 public:
  Rank(const RankOptions& options, ShmSegment& segment)
      : options_(options),
        board_(fabric::BoardIn(segment)),
        line_(board_.lines[options.rank]),
        // A rank waits for its next plan as long as its peers live.
        waiter_(board_, options.group.num_ranks(), options.rank,
                {.deadline_ns = fabric::kNoDeadline}),
        group_(options.rank, MakeLinks(options, segment), board_, {}),
        backend_(MakeBackend(options.group)) {
    if (options.rank == 0) {
      const int num_ranks = options.group.num_ranks();
      supervisor_ = fabric::MakeShmLink(segment, num_ranks, 0, num_ranks);
    }
  }

  Status Load() {
    line_.phase = Phase::kLoading;
    YOKE_TRY(const model::KimiK3Config config, model::ReadConfig(options_.group.model_folder));
    YOKE_TRY(const model::Checkpoint checkpoint,
             model::Checkpoint::Open(options_.group.model_folder));
    YOKE_RETURN_IF_ERROR(model::CheckInventory(checkpoint, config));
    YOKE_TRY(std::vector<model::KimiK3Shard> shards,
             model::ShardKimiK3(config, options_.group.shares));
    line_.load_bytes = ExpectedBytes(checkpoint, options_);
    model::WeightLoader loader(checkpoint, *backend_, options_.group.trunk,
                               [this](uint64_t bytes) { line_.loaded_bytes = bytes; });
    const model::KimiK3Shard& shard = shards[static_cast<size_t>(options_.rank)];
    YOKE_TRY(model::KimiK3Weights weights, model::LoadKimiK3Weights(config, shard, loader));
    model_ = std::make_unique<model::KimiK3>(
        config, std::move(shards), std::move(weights), *backend_, group_,
        model::KimiK3::Options{.tokens_max = options_.group.tokens_max});
    step_ = std::make_unique<RankStep>(*model_, *backend_, group_);
    return Ok{};
  }

  Status Serve() {
    for (;;) {
      line_.phase = Phase::kIdle;
      YOKE_TRY(const StepPlan plan, ReceivePlan());
      if (plan.stop) break;
      line_.step = plan.step;
      line_.phase = plan.HasPrefill() ? Phase::kPrefill : Phase::kDecode;
      YOKE_TRY(const StepResult result, step_->Run(plan));
      if (!supervisor_) continue;
      line_.op = fabric::Op::kSendResult;
      YOKE_RETURN_IF_ERROR(fabric::SendMessage(*supervisor_, waiter_, result.Serialize()));
      line_.op = fabric::Op::kNone;
    }
    line_.phase = Phase::kStopping;
    return Ok{};
  }

 private:
  static std::vector<std::unique_ptr<fabric::Link>> MakeLinks(const RankOptions& options,
                                                              ShmSegment& segment) {
    const int num_ranks = options.group.num_ranks();
    std::vector<std::unique_ptr<fabric::Link>> links;
    for (int peer = 0; peer < num_ranks; ++peer) {
      links.push_back(peer == options.rank
                          ? nullptr
                          : fabric::MakeShmLink(segment, num_ranks, options.rank, peer));
    }
    return links;
  }

  // Rank 0 gets the plan from the supervisor, the others from rank 0.
  Result<StepPlan> ReceivePlan() {
    std::vector<std::byte> bytes;
    PlanFrame frame = {};
    if (supervisor_) {
      line_.op = fabric::Op::kReceivePlan;
      YOKE_TRY(bytes, fabric::ReceiveMessage(*supervisor_, waiter_, kPlanBytesMax));
      line_.op = fabric::Op::kNone;
      frame.num_bytes = bytes.size();
      if (bytes.size() <= kInlinePlanBytes) {
        std::memcpy(frame.bytes.data(), bytes.data(), bytes.size());
      }
    }
    YOKE_RETURN_IF_ERROR(group_.AwaitFrom(0));
    YOKE_RETURN_IF_ERROR(group_.Broadcast(0, std::as_writable_bytes(std::span(&frame, 1))));
    if (frame.num_bytes > kPlanBytesMax) {
      return Error(ErrorCode::kCorrupt, "step plan: longer than its limit");
    }
    if (frame.num_bytes <= kInlinePlanBytes) {
      return StepPlan::Parse(std::span(frame.bytes).first(frame.num_bytes));
    }
    bytes.resize(frame.num_bytes);
    YOKE_RETURN_IF_ERROR(group_.Broadcast(0, bytes));
    return StepPlan::Parse(bytes);
  }

  const RankOptions& options_;
  Board& board_;
  BoardLine& line_;
  fabric::Waiter waiter_;
  fabric::Group group_;
  std::unique_ptr<fabric::Link> supervisor_;  // on rank 0
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::KimiK3> model_;
  std::unique_ptr<RankStep> step_;
};

}  // namespace

int RunRank(const RankOptions& options) {
  EndWithParent();
  IgnoreInterrupts();
  Result<ShmSegment> segment = ShmSegment::Attach(
      Fd(options.segment_fd), fabric::GroupSegmentBytes(options.group.num_ranks()));
  if (!segment) return kRankExitFailed;
  Board& board = fabric::BoardIn(segment.value());
  const auto heartbeat =
      fabric::Heartbeat::Start(board.lines[options.rank], Fd(options.control_fd));
  if (!heartbeat) {
    board.ReportError(options.rank, heartbeat.error());
    return kRankExitFailed;
  }
  Rank rank(options, segment.value());
  Status status = rank.Load();
  if (status) status = rank.Serve();
  if (status) return kRankExitOk;
  // Also an error that may be only the consequence of a peer's: the board puts those last.
  board.ReportError(options.rank, status.error());
  return kRankExitFailed;
}

}  // namespace yoke::engine
