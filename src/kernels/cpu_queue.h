// Ops that wait for a flush, and the threads that run them. Internal to cpu_backend.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu_ops.h"
#include "kernels/thread_pool.h"
#include "sys/memory.h"

namespace yoke::kernels::cpu {

// Zeroed memory that only grows. What it holds is lost when it does.
class Scratch {
 public:
  void Reserve(size_t num_floats);
  float* data() { return memory_.as<float>(); }

 private:
  PageBuffer memory_;
};

// One thread enqueues and flushes. Does not allocate once it has seen the longest step and the
// largest scratch.
class CpuQueue {
 public:
  explicit CpuQueue(const ThreadPool::Options& options);

  size_t num_threads() const { return pool_.num_threads(); }

  // Memory that every later op may use during its run.
  void ReserveShared(size_t num_floats) { shared_.Reserve(num_floats); }
  void ReservePerThread(size_t num_floats);

  template <typename Task>
  void Push(const Task& task) {
    static_assert(std::is_trivially_copyable_v<Task> && sizeof(Task) <= kTaskBytes);
    Command& command = commands_.emplace_back();
    std::memcpy(command.task, &task, sizeof(Task));
    command.num_phases = task.num_phases();
    command.run = [](const void* erased, size_t phase, const Worker& worker) {
      Run(*static_cast<const Task*>(erased), phase, worker);
    };
  }

  // Runs and forgets all that was pushed.
  void Flush();

 private:
  static constexpr size_t kTaskBytes = 1024;
  struct Command {
    alignas(64) std::byte task[kTaskBytes];
    size_t num_phases;
    void (*run)(const void* task, size_t phase, const Worker& worker);
  };

  void WalkThrough(size_t thread_idx);

  ThreadPool pool_;
  std::vector<Command> commands_;
  Scratch shared_;
  std::vector<Scratch> per_thread_;
};

}  // namespace yoke::kernels::cpu
