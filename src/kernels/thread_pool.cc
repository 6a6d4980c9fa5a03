#include "kernels/thread_pool.h"

#include "base/check.h"
#include "sys/cpu_relax.h"

namespace yoke::kernels {
namespace {

// About 50 us of pauses on the machines of today: longer than a well-balanced phase or a local
// all-reduce, shorter than a scheduler's time slice.
constexpr uint32_t kSpins = 1500;

}  // namespace

ThreadPool::ThreadPool(const Options& options)
    : num_threads_(options.num_threads), num_spins_(options.oversubscribed ? 0 : kSpins) {
  YOKE_CHECK(num_threads_ > 0);
  threads_.reserve(num_threads_ - 1);
  for (size_t i = 1; i < num_threads_; ++i) {
    threads_.emplace_back([this, i] { WorkerLoop(i); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::RunErased(const void* body, ErasedBody call) {
  body_ = body;
  call_ = call;
  if (num_threads_ > 1) {
    run_.fetch_add(1, std::memory_order_release);
    run_.notify_all();
  }
  call(body, 0);
  Barrier();
}

void ThreadPool::WorkerLoop(size_t thread_idx) {
  uint32_t run = 0;
  while (true) {
    run = WaitForRun(run);
    if (stop_) return;
    call_(body_, thread_idx);
    Barrier();
  }
}

uint32_t ThreadPool::WaitForRun(uint32_t seen) const {
  for (uint32_t i = 0; i < num_spins_; ++i) {
    const uint32_t run = run_.load(std::memory_order_acquire);
    if (run != seen) return run;
    CpuRelax();
  }
  run_.wait(seen, std::memory_order_acquire);
  return run_.load(std::memory_order_acquire);
}

void ThreadPool::Barrier() {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (num_arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    num_arrived_.value.store(0, std::memory_order_relaxed);
    // Last used two phases ago; nobody is still there, and nobody is in the next phase yet.
    next_unit_[(phase + 1) % 2].value.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (uint32_t i = 0; phase_.load(std::memory_order_acquire) == phase; ++i) {
    if (i < num_spins_) {
      CpuRelax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace yoke::kernels
