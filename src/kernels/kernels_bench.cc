// GB/s of weights, states and caches that each op reads, with Kimi K3's shapes, next to what plain
// reads of memory reach ("of_peak"). Each iteration uses another of many copies, together beyond
// the caches. YOKE_BENCH_THREADS sets the number of threads (default: all cores).
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/backend.h"
#include "kernels/cpu_backend.h"
#include "tensor/host_matrix.h"

namespace yoke::kernels {
namespace {

constexpr size_t kColdBytes = size_t{512} << 20;  // of all copies together

size_t NumThreads() {
  const char* text = std::getenv("YOKE_BENCH_THREADS");
  const long from_env = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
  if (from_env > 0) return static_cast<size_t>(from_env);
  return std::max<size_t>(1, std::thread::hardware_concurrency());
}

// Sums `memory` with all threads, each a slice.
uint64_t ReadAll(const std::vector<uint64_t>& memory) {
  const size_t num_threads = NumThreads();
  std::vector<uint64_t> sums(num_threads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      std::array<uint64_t, 8> partial{};
      const size_t end = memory.size() * (i + 1) / num_threads / 8 * 8;
      for (size_t j = memory.size() * i / num_threads / 8 * 8; j < end; j += 8) {
        for (size_t k = 0; k < 8; ++k) partial[k] += memory[j + k];
      }
      for (const uint64_t sum : partial) sums[i] += sum;
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

// Bytes per second of the best of several plain reads; measured once.
double PeakBytesPerSecond() {
  static const double peak = [] {
    const std::vector<uint64_t> memory(kColdBytes / sizeof(uint64_t), 1);
    double best = 0;
    for (int i = 0; i < 8; ++i) {
      const auto start = std::chrono::steady_clock::now();
      benchmark::DoNotOptimize(ReadAll(memory));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, static_cast<double>(kColdBytes) / seconds.count());
    }
    return best;
  }();
  return peak;
}

// GB/s, and the share of plain reads: bytes_per_iteration is the mean.
void Report(benchmark::State& state, double bytes_per_iteration) {
  using benchmark::Counter;
  const double bytes = bytes_per_iteration * static_cast<double>(state.iterations());
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
  state.counters["of_peak"] = Counter(bytes / PeakBytesPerSecond(), Counter::kIsRate);
}

void BM_PlainRead(benchmark::State& state) {
  const std::vector<uint64_t> memory(kColdBytes / sizeof(uint64_t), 1);
  for (auto _ : state) benchmark::DoNotOptimize(ReadAll(memory));
  Report(state, static_cast<double>(kColdBytes));
}
BENCHMARK(BM_PlainRead)->UseRealTime();

std::unique_ptr<Backend> Cpu() {
  return MakeCpuBackend({.num_threads = NumThreads()});
}

// A weight of ordinary small values, whatever the dtype: every byte 0x3c, scales of 2^-7 or so.
WeightId AddWeight(Backend& backend, DType dtype, size_t rows, size_t cols) {
  HostMatrix matrix = HostMatrix::Make(dtype, rows, cols);
  if (matrix.data.size() > 0) std::memset(matrix.data.data(), 0x3c, matrix.data.size());
  if (dtype == DType::kMxfp4) std::memset(matrix.scales.data(), 120, matrix.scales.size());
  if (dtype == DType::kQ8_0) std::memset(matrix.scales.data(), 0x11, matrix.scales.size());
  return backend.AddWeight(std::move(matrix));
}

// [rows, cols] of `value`.
View MakeView(Backend& backend, size_t rows, size_t cols, float value = 0.5f) {
  const View view{backend.Allocate(rows * cols), 0, rows, cols, cols};
  backend.Write(view, std::vector<float>(rows * cols, value));
  return view;
}

void BM_Linear(benchmark::State& state, DType dtype) {
  constexpr size_t kRows = 3072;
  constexpr size_t kCols = 3584;
  const size_t num_tokens = static_cast<size_t>(state.range(0));
  const auto backend = Cpu();
  std::vector<WeightId> weights;
  const size_t weight_bytes = kRows * (DataBytes(dtype, kCols) + ScaleBytes(dtype, kCols));
  for (size_t bytes = 0; bytes < kColdBytes; bytes += weight_bytes) {
    weights.push_back(AddWeight(*backend, dtype, kRows, kCols));
  }
  const View x = MakeView(*backend, num_tokens, kCols);
  const View y = MakeView(*backend, num_tokens, kRows);
  size_t turn = 0;
  for (auto _ : state) {
    backend->Linear(x, {{weights[turn++ % weights.size()], y}});
    backend->Flush();
  }
  Report(state, static_cast<double>(weight_bytes));
}
BENCHMARK_CAPTURE(BM_Linear, f32, DType::kF32)->Arg(1)->Arg(16)->UseRealTime();
BENCHMARK_CAPTURE(BM_Linear, bf16, DType::kBf16)->Arg(1)->Arg(16)->UseRealTime();
BENCHMARK_CAPTURE(BM_Linear, q8_0, DType::kQ8_0)->Arg(1)->Arg(16)->UseRealTime();
BENCHMARK_CAPTURE(BM_Linear, mxfp4, DType::kMxfp4)->Arg(1)->Arg(16)->UseRealTime();

// 128 experts of a quarter of K3's width: what one of four ranks reads of each. Tokens draw 16.
void BM_Moe(benchmark::State& state) {
  constexpr size_t kExperts = 128;
  constexpr size_t kTopK = 16;
  constexpr size_t kLatent = 3584;
  constexpr size_t kInner = 768;
  const size_t num_tokens = static_cast<size_t>(state.range(0));
  const auto backend = Cpu();
  MoeArgs args;
  args.num_experts = kExperts;
  args.situ_beta = 4;
  args.situ_linear_beta = 25;
  args.z = MakeView(*backend, num_tokens, kLatent);
  args.y = MakeView(*backend, num_tokens, kLatent);
  args.weights = MakeView(*backend, num_tokens, kTopK, 1.f / kTopK);
  args.w1 = AddWeight(*backend, DType::kMxfp4, kExperts * kInner, kLatent);
  args.w3 = AddWeight(*backend, DType::kMxfp4, kExperts * kInner, kLatent);
  args.w2 = AddWeight(*backend, DType::kMxfp4, kExperts * kLatent, kInner);
  // Token t of turn i takes experts 16 (i + t) .. + 15, scattered.
  std::array<View, kExperts / kTopK> ids;
  for (size_t turn = 0; turn < ids.size(); ++turn) {
    ids[turn] = MakeView(*backend, num_tokens, kTopK);
    std::vector<float> values;
    for (size_t i = 0; i < num_tokens * kTopK; ++i) {
      values.push_back(static_cast<float>((turn * kTopK + i) * 37 % kExperts));
    }
    backend->Write(ids[turn], values);
  }
  const uint64_t bytes_before = backend->WeightBytesRead();
  size_t turn = 0;
  for (auto _ : state) {
    args.expert_ids = ids[turn++ % ids.size()];
    backend->Moe(args);
    backend->Flush();
  }
  Report(state, static_cast<double>(backend->WeightBytesRead() - bytes_before) /
                    static_cast<double>(state.iterations()));
}
BENCHMARK(BM_Moe)->Arg(1)->Arg(16)->UseRealTime();

// A quarter of K3's heads. Decode: one token of each of `sequences`; prefill: `tokens` of one.
void BM_Kda(benchmark::State& state, bool prefill) {
  constexpr size_t kHeads = 24;
  constexpr size_t kDim = 128;
  constexpr size_t kChannels = kHeads * kDim;
  const size_t num_tokens = static_cast<size_t>(state.range(0));
  const size_t num_segments = prefill ? 1 : num_tokens;
  const auto backend = Cpu();
  KdaArgs args;
  args.num_heads = kHeads;
  args.head_dim = kDim;
  args.gate_lower_bound = -5;
  args.norm_eps = 1e-5f;
  args.l2_eps = 1e-6f;
  args.q = args.k = args.v = args.forget = args.gate = MakeView(*backend, num_tokens, kChannels);
  args.beta = MakeView(*backend, num_tokens, kHeads);
  args.out = MakeView(*backend, num_tokens, kChannels);
  args.q_conv = args.k_conv = args.v_conv =
      AddWeight(*backend, DType::kF32, kChannels, kKdaConvTaps);
  args.a_log = AddWeight(*backend, DType::kF32, 1, kHeads);
  args.dt_bias = AddWeight(*backend, DType::kF32, 1, kChannels);
  args.o_norm = AddWeight(*backend, DType::kF32, 1, kDim);
  std::vector<Segment> segments;
  for (size_t s = 0; s < num_segments; ++s) {
    segments.push_back({s, num_tokens / num_segments, 0, prefill});
  }
  args.segments = segments;
  constexpr size_t kStateBytes = kHeads * kDim * kDim * sizeof(float);
  std::vector<View> conv, delta;
  while (delta.size() < num_segments || delta.size() * kStateBytes < kColdBytes) {
    conv.push_back(MakeView(*backend, 9, kChannels));
    delta.push_back(MakeView(*backend, kHeads, kDim * kDim));
  }
  size_t first = 0;
  for (auto _ : state) {
    if (first + num_segments > delta.size()) first = 0;
    args.conv_states = std::span(conv).subspan(first, num_segments);
    args.delta_states = std::span(delta).subspan(first, num_segments);
    first += num_segments;
    backend->Kda(args);
    backend->Flush();
  }
  // Every state is read and written.
  Report(state, static_cast<double>(2 * num_segments * kStateBytes));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(num_tokens) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(BM_Kda, decode, false)->Arg(1)->Arg(16)->UseRealTime();
BENCHMARK_CAPTURE(BM_Kda, prefill, true)->Arg(256)->UseRealTime();

// A quarter of K3's heads, one token of each sequence at a context of 4096.
void BM_MlaDecode(benchmark::State& state) {
  constexpr size_t kContext = 4096;
  constexpr size_t kHeads = 24;
  constexpr size_t kRank = 512;
  constexpr size_t kNope = 128;
  constexpr size_t kRope = 64;
  constexpr size_t kV = 128;
  const size_t num_sequences = static_cast<size_t>(state.range(0));
  const auto backend = Cpu();
  MlaArgs args;
  args.num_heads = kHeads;
  args.rank = kRank;
  args.nope_dim = kNope;
  args.rope_dim = kRope;
  args.v_dim = kV;
  args.norm_eps = 1e-6f;
  args.q = MakeView(*backend, num_sequences, kHeads * (kNope + kRope));
  args.kv_a = MakeView(*backend, num_sequences, kRank + kRope);
  args.gate = MakeView(*backend, num_sequences, kHeads * kV);
  args.out = MakeView(*backend, num_sequences, kHeads * kV);
  args.kv_a_norm = AddWeight(*backend, DType::kF32, 1, kRank);
  args.kv_b = AddWeight(*backend, DType::kBf16, kHeads * (kNope + kV), kRank);
  std::vector<Segment> segments;
  for (size_t s = 0; s < num_sequences; ++s) segments.push_back({s, 1, kContext - 1, false});
  args.segments = segments;
  constexpr size_t kCacheBytes = kContext * (kRank + kRope) * sizeof(float);
  std::vector<std::vector<BufferId>> blocks;
  std::vector<std::span<const BufferId>> caches;
  while (caches.size() < num_sequences || caches.size() * kCacheBytes < kColdBytes) {
    std::vector<BufferId>& sequence = blocks.emplace_back();
    for (size_t b = 0; b < kContext / kCacheBlockTokens; ++b) {
      sequence.push_back(MakeView(*backend, kCacheBlockTokens, kRank + kRope).buffer);
    }
    caches.emplace_back(sequence);
  }
  size_t first = 0;
  for (auto _ : state) {
    if (first + num_sequences > caches.size()) first = 0;
    args.caches = std::span(caches).subspan(first, num_sequences);
    first += num_sequences;
    backend->Mla(args);
    backend->Flush();
  }
  // Each cache once, though every head needs it, and kv_b.
  const size_t kv_b_bytes = kHeads * (kNope + kV) * kRank * 2;
  Report(state, static_cast<double>(num_sequences * kCacheBytes + kv_b_bytes));
}
BENCHMARK(BM_MlaDecode)->Arg(1)->Arg(4)->UseRealTime();

void BM_AttnRes(benchmark::State& state) {
  constexpr size_t kDim = 7168;
  constexpr size_t kBank = 8;
  const size_t num_tokens = static_cast<size_t>(state.range(0));
  const auto backend = Cpu();
  AttnResArgs args;
  args.prefix = MakeView(*backend, num_tokens, kDim);
  args.bank = MakeView(*backend, kBank * num_tokens, kDim).Rows(0, num_tokens);
  args.num_bank = kBank;
  args.bank_stride = num_tokens * kDim;
  args.norm = AddWeight(*backend, DType::kF32, 1, kDim);
  args.proj = AddWeight(*backend, DType::kF32, 1, kDim);
  args.eps = 1e-5f;
  args.out = MakeView(*backend, num_tokens, kDim);
  for (auto _ : state) {
    backend->AttnRes(args);
    backend->Flush();
  }
  Report(state, static_cast<double>((kBank + 1) * num_tokens * kDim * sizeof(float)));
}
BENCHMARK(BM_AttnRes)->Arg(1)->Arg(16)->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  constexpr size_t kDim = 7168;
  const size_t num_tokens = static_cast<size_t>(state.range(0));
  const auto backend = Cpu();
  const View x = MakeView(*backend, num_tokens, kDim);
  const View y = MakeView(*backend, num_tokens, kDim);
  const WeightId weight = AddWeight(*backend, DType::kF32, 1, kDim);
  for (auto _ : state) {
    backend->RmsNorm(x, weight, 1e-5f, y);
    backend->Flush();
  }
  Report(state, static_cast<double>(num_tokens * kDim * sizeof(float)));
}
BENCHMARK(BM_RmsNorm)->Arg(1)->Arg(16)->UseRealTime();

}  // namespace
}  // namespace yoke::kernels

BENCHMARK_MAIN();
