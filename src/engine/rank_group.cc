#include "engine/rank_group.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "fabric/board.h"
#include "fabric/group.h"
#include "fabric/shm_link.h"
#include "fabric/waiter.h"
#include "sys/process.h"
#include "sys/shm.h"

namespace yoke::engine {
namespace {

using fabric::Board;
using fabric::Phase;

constexpr auto kReapPeriod = std::chrono::milliseconds(20);
constexpr uint64_t kReportPeriodNs = 50'000'000;
// For a whole step, longer than a rank waits for a peer, so that the rank's message comes first.
constexpr uint64_t kStepNs = 600'000'000'000;
constexpr uint64_t kStopNs = 2'000'000'000;  // for an orderly end
constexpr size_t kResultBytesMax = size_t{1} << 32;
constexpr int kSegmentFd = 3;
constexpr int kControlFd = 4;

// Reaps children as they end and writes that on the board, where every wait looks.
class Reaper {
 public:
  Reaper(Board& board, std::vector<ChildProcess>& children) : board_(board), children_(children) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Reaper() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      for (size_t i = 0; i < children_.size(); ++i) {
        if (board_.lines[i].exited != 0) continue;
        const std::optional<ChildProcess::Exit> exit = children_[i].Poll();
        if (exit) board_.ReportExit(static_cast<int>(i), exit->code, exit->signal);
      }
      wake_.wait_for(lock, kReapPeriod, [this] { return stop_; });
    }
  }

  Board& board_;
  std::vector<ChildProcess>& children_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

class RankGroup::Impl {
 public:
  Impl(GroupOptions options, ShmSegment segment, Fd control)
      : options_(std::move(options)),
        segment_(std::move(segment)),
        board_(fabric::BoardIn(segment_)),
        control_(std::move(control)),
        waiter_(board_, options_.num_ranks(), -1, {.deadline_ns = kStepNs}),
        link_(fabric::MakeShmLink(segment_, options_.num_ranks(), options_.num_ranks(), 0)) {}

  ~Impl() {
    board_.stop = 1;
    reaper_.reset();
    children_.clear();  // kills and reaps
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status Spawn(const std::string& program, int control_read_fd) {
    for (int rank = 0; rank < options_.num_ranks(); ++rank) {
      const RankOptions rank_options = {
          .group = options_, .rank = rank, .segment_fd = kSegmentFd, .control_fd = kControlFd};
      board_.lines[rank].heartbeat_ns = NowNs();  // it has not started yet, but is not lost
      YOKE_TRY(
          ChildProcess child,
          ChildProcess::Spawn({.argv = {program, "rank", RankOptionsToJson(rank_options)},
                               .fds = {{segment_.fd(), kSegmentFd}, {control_read_fd, kControlFd}},
                               .env = {}}));
      children_.push_back(std::move(child));
    }
    reaper_ = std::make_unique<Reaper>(board_, children_);
    return Ok{};
  }

  Status WaitLoaded(const Hooks& hooks) {
    const uint64_t begin_ns = NowNs();
    uint64_t next_report_ns = begin_ns;
    // Loading takes as long as the disk needs: no deadline, but the ranks must stay alive.
    fabric::Waiter waiter(board_, options_.num_ranks(), -1, {.deadline_ns = fabric::kNoDeadline});
    Status status = waiter.Until([&] {
      if (hooks.on_progress && NowNs() >= next_report_ns) {
        hooks.on_progress(Progress());
        next_report_ns = NowNs() + kReportPeriodNs;
      }
      return AllLoaded() || Interrupted();
    });
    // First, as Ctrl-C also reaches ranks that are not yet so far that they ignore it.
    if (Interrupted()) return Error(ErrorCode::kCancelled, "interrupted while loading");
    if (!status) return std::move(status).error().Wrap("loading the model");
    load_seconds_ = static_cast<double>(NowNs() - begin_ns) * 1e-9;
    return Ok{};
  }

  Result<StepResult> Step(StepPlan plan) {
    plan.step = ++num_steps_;
    YOKE_RETURN_IF_ERROR(Send(plan));
    YOKE_TRY(const std::vector<std::byte> bytes,
             fabric::ReceiveMessage(*link_, waiter_, kResultBytesMax));
    YOKE_TRY(StepResult result, StepResult::Parse(bytes));
    const size_t num_ranks = plan.items.empty() ? 0 : options_.shares.size();
    if (result.items.size() != plan.items.size() || result.ranks.size() != num_ranks) {
      return Error(ErrorCode::kCorrupt, "step result: not the answer to the plan");
    }
    return result;
  }

  Status Stop() {
    StepPlan plan;
    plan.stop = true;
    YOKE_RETURN_IF_ERROR(Send(plan));
    fabric::Waiter waiter(board_, options_.num_ranks(), -1, {.deadline_ns = kStopNs});
    Status status = waiter.Until([this] { return AllGone(); });
    if (!status) return std::move(status).error().Wrap("ending the ranks");
    return Ok{};
  }

  const GroupOptions& options() const { return options_; }
  double load_seconds() const { return load_seconds_; }
  std::vector<int> pids() const {
    std::vector<int> pids;
    for (const ChildProcess& child : children_) pids.push_back(child.pid());
    return pids;
  }

 private:
  Status Send(const StepPlan& plan) {
    return fabric::SendMessage(*link_, waiter_, plan.Serialize());
  }

  bool AllLoaded() const {
    for (int i = 0; i < options_.num_ranks(); ++i) {
      if (board_.lines[i].phase != Phase::kIdle) return false;
    }
    return true;
  }

  bool AllGone() const {
    for (int i = 0; i < options_.num_ranks(); ++i) {
      if (board_.lines[i].exited == 0) return false;
    }
    return true;
  }

  LoadProgress Progress() const {
    LoadProgress progress;
    for (int i = 0; i < options_.num_ranks(); ++i) {
      progress.loaded_bytes += board_.lines[i].loaded_bytes;
      progress.total_bytes += board_.lines[i].load_bytes;
    }
    return progress;
  }

  GroupOptions options_;
  ShmSegment segment_;
  Board& board_;
  Fd control_;  // write end: its closing tells the ranks that we are gone
  fabric::Waiter waiter_;
  std::unique_ptr<fabric::Link> link_;
  std::vector<ChildProcess> children_;
  std::unique_ptr<Reaper> reaper_;
  uint64_t num_steps_ = 0;
  double load_seconds_ = 0;
};

Result<std::unique_ptr<RankGroup>> RankGroup::Start(const std::string& program,
                                                    const GroupOptions& options,
                                                    const Hooks& hooks) {
  YOKE_TRY(ShmSegment segment, ShmSegment::Create(fabric::GroupSegmentBytes(options.num_ranks())));
  YOKE_TRY(Pipe control, MakePipe());
  auto impl = std::make_unique<Impl>(options, std::move(segment), std::move(control.write));
  YOKE_RETURN_IF_ERROR(impl->Spawn(program, control.read.get()));
  if (hooks.on_spawned) hooks.on_spawned(impl->pids());
  YOKE_RETURN_IF_ERROR(impl->WaitLoaded(hooks));
  return std::unique_ptr<RankGroup>(new RankGroup(std::move(impl)));
}

RankGroup::RankGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankGroup::~RankGroup() = default;

Result<StepResult> RankGroup::Step(StepPlan plan) {
  return impl_->Step(std::move(plan));
}
Status RankGroup::Stop() {
  return impl_->Stop();
}
int RankGroup::num_ranks() const {
  return impl_->options().num_ranks();
}
const GroupOptions& RankGroup::options() const {
  return impl_->options();
}
std::vector<int> RankGroup::pids() const {
  return impl_->pids();
}
double RankGroup::load_seconds() const {
  return impl_->load_seconds();
}

}  // namespace yoke::engine
