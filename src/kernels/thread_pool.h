// Threads that walk through one program together, with spinning barriers between its parts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace yoke::kernels {

// The thread that calls Run takes part as thread 0; the others sleep between runs, after a short
// spin. One thread at a time may call Run. All other members are for the threads inside a run.
class ThreadPool {
 public:
  struct Options {
    size_t num_threads = 1;
    // More threads, over all processes, than cores: waiting threads give their core away at once.
    bool oversubscribed = false;
  };
  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t num_threads() const { return num_threads_; }

  // body(thread_idx) once on every thread; returns when all have returned.
  template <typename Body>
  void Run(const Body& body) {
    RunErased(&body, [](const void* erased, size_t thread_idx) {
      (*static_cast<const Body*>(erased))(thread_idx);
    });
  }

  // Returns once every thread has called it. What they wrote before is visible after.
  void Barrier();

  // 0, 1, 2, ... shared by all threads, from 0 again after each Barrier.
  size_t NextUnit() {
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    return next_unit_[phase % 2].value.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  // Apart from the others, so that spinning on one does not slow down the rest.
  struct alignas(128) Counter {
    std::atomic<size_t> value{0};
  };
  using ErasedBody = void (*)(const void* body, size_t thread_idx);

  void RunErased(const void* body, ErasedBody call);
  void WorkerLoop(size_t thread_idx);
  // The number of the run after `seen`; sleeps if that takes long.
  uint32_t WaitForRun(uint32_t seen) const;

  const size_t num_threads_;
  const uint32_t num_spins_;
  std::vector<std::thread> threads_;

  // Written by thread 0 before it raises run_.
  const void* body_ = nullptr;
  ErasedBody call_ = nullptr;
  bool stop_ = false;

  alignas(128) std::atomic<uint32_t> run_{0};
  alignas(128) std::atomic<uint32_t> phase_{0};  // barriers passed
  Counter num_arrived_;
  Counter next_unit_[2];  // of even and odd phases
};

}  // namespace yoke::kernels
