#include "kernels/cpu_queue.h"

#include <hwy/highway.h>

namespace yoke::kernels::cpu {
namespace {

constexpr size_t kCommandsReserved = 64;

}  // namespace

void Scratch::Reserve(size_t num_floats) {
  const size_t num_bytes = num_floats * sizeof(float);
  if (num_bytes > memory_.size()) memory_ = PageBuffer(num_bytes);
}

CpuQueue::CpuQueue(const ThreadPool::Options& options)
    : pool_(options), per_thread_(options.num_threads) {
  commands_.reserve(kCommandsReserved);
}

void CpuQueue::ReservePerThread(size_t num_floats) {
  for (Scratch& scratch : per_thread_) scratch.Reserve(num_floats);
}

void CpuQueue::Flush() {
  if (commands_.empty()) return;
  // Highway's choice of a target, made here so that no two threads make it at once.
  if (!hwy::GetChosenTarget().IsInitialized()) {
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  pool_.Run([this](size_t thread_idx) { WalkThrough(thread_idx); });
  commands_.clear();
}

void CpuQueue::WalkThrough(size_t thread_idx) {
  const Worker worker(pool_, shared_.data(), per_thread_[thread_idx].data());
  for (const Command& command : commands_) {
    for (size_t phase = 0; phase < command.num_phases; ++phase) {
      command.run(command.task, phase, worker);
      pool_.Barrier();
    }
  }
}

}  // namespace yoke::kernels::cpu
