// The routed experts of a step: tokens are grouped by expert, so that each chosen expert's weights
// are read once.
//
// Phases: group (thread 0) and pack z; w1, w3 and SiTU; w2; sum over slots.
// Shared memory, in floats (indices are uint32 in the same space), in this order:
//   packed z   [num_tokens, RoundUp(latent_dim, 32)]  twice: plain, even-odd
//   act        [num_pairs, RoundUp(w2.cols, 32)]      packed for w2
//   out        [num_pairs, latent_dim]
//   token_of   [num_pairs]      pairs are sorted by expert, then token
//   pair_of    [num_pairs]      the pair of (token, slot)
//   first_pair [num_experts + 1] of each expert
//   active     [num_experts]    experts that have pairs, ascending
//   num_active [1]
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu_ops.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "kernels/simd-inl.h"

#ifndef YOKE_KERNELS_MOE_SHARED_
#define YOKE_KERNELS_MOE_SHARED_
namespace yoke::kernels::cpu {
namespace {

// The parts of the shared memory. Without memory only num_floats means something.
struct MoeShared {
  MoeShared(const MoeTask& task, float* memory)
      : z_stride(RoundUp(task.z.cols, kBlockCols)),
        act_stride(RoundUp(task.w2.cols, kBlockCols)),
        out_stride(RoundUp(task.z.cols, kRowGroup)) {
    const auto take = [&](size_t count) {
      float* part = memory != nullptr ? memory + num_floats : nullptr;
      num_floats += RoundUp(count, kRowGroup);
      return part;
    };
    const auto take_indices = [&take](size_t count) {
      return reinterpret_cast<uint32_t*>(take(count));
    };
    z_plain = take(task.z.rows * z_stride);
    z_even_odd = take(task.z.rows * z_stride);
    act = take(task.NumPairs() * act_stride);
    out = take(task.NumPairs() * out_stride);
    token_of = take_indices(task.NumPairs());
    pair_of = take_indices(task.NumPairs());
    first_pair = take_indices(task.num_experts + 1);
    active = take_indices(task.num_experts);
    num_active = take_indices(1);
  }

  size_t num_floats = 0;
  size_t z_stride, act_stride, out_stride;
  float* z_plain;
  float* z_even_odd;
  float* act;
  float* out;
  uint32_t* token_of;
  uint32_t* pair_of;
  uint32_t* first_pair;
  uint32_t* active;
  uint32_t* num_active;
};

}  // namespace
}  // namespace yoke::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// Where column c of w2 lies in a packed row.
size_t PackedIndex(size_t c, bool even_odd) {
  if (!even_odd) return c;
  const size_t in_block = c % kBlockCols;
  return c - in_block + in_block % 2 * (kBlockCols / 2) + in_block / 2;
}

// One expert's pairs.
struct Pairs {
  size_t expert, first, count;
};

Pairs PairsOf(const MoeShared& shared, size_t active_idx) {
  const size_t expert = shared.active[active_idx];
  const size_t first = shared.first_pair[expert];
  return {expert, first, shared.first_pair[expert + 1] - first};
}

// act = SiTU(w1 z, w3 z) for rows [first, first + num_rows) of an expert, at most kRowGroup, and
// all its pairs. The thread goes on until row `end`.
void GateUpRows(const MoeTask& task, const Worker& worker, const Pairs& pairs, size_t first,
                size_t num_rows, size_t end) {
  const MoeShared shared(task, worker.shared());
  float* gate = worker.scratch();  // [pairs.count, kRowGroup]
  float* up = gate + task.NumPairs() * kRowGroup;
  float* scratch = up + task.NumPairs() * kRowGroup;
  const auto multiply = [&](const Weight& w, float* y) {
    float* z = WantsEvenOdd(w.dtype) ? shared.z_even_odd : shared.z_plain;
    MatMulRows({.w = w,
                .first_row = pairs.expert * task.inner + first,
                .num_rows = num_rows,
                .x = {z, shared.z_stride, shared.token_of + pairs.first},
                .num_tokens = pairs.count,
                .y = {y, kRowGroup, nullptr},
                .scratch = scratch,
                .next_end = pairs.expert * task.inner + end});
  };
  multiply(task.w1, gate);
  multiply(task.w3, up);
  const bool even_odd = WantsEvenOdd(task.w2.dtype);
  for (size_t p = 0; p < pairs.count; ++p) {
    float* act = shared.act + (pairs.first + p) * shared.act_stride;
    float* gate_row = gate + p * kRowGroup;
    const float* up_row = up + p * kRowGroup;
    ForEachVector(num_rows, [&](auto d, size_t r) HWY_ATTR {
      const auto g = hn::LoadU(d, gate_row + r);
      const auto u = hn::LoadU(d, up_row + r);
      hn::StoreU(Situ(d, g, u, task.situ_beta, task.situ_linear_beta), d, gate_row + r);
    });
    for (size_t r = 0; r < num_rows; ++r) {
      act[PackedIndex(task.inner_offset + first + r, even_odd)] = gate_row[r];
    }
  }
}

void GateUp(const MoeTask& task, const Worker& worker) {
  const MoeShared shared(task, worker.shared());
  const size_t num_parts = CeilDiv(task.inner, task.w1_unit_rows);
  size_t unit = 0;
  while (worker.Next(*shared.num_active * num_parts, unit)) {
    const size_t first = unit % num_parts * task.w1_unit_rows;
    const size_t end = std::min(task.inner, first + task.w1_unit_rows);
    const Pairs pairs = PairsOf(shared, unit / num_parts);
    for (size_t row = first; row < end; row += kRowGroup) {
      GateUpRows(task, worker, pairs, row, std::min(kRowGroup, end - row), end);
    }
  }
}

void Down(const MoeTask& task, const Worker& worker) {
  const MoeShared shared(task, worker.shared());
  const size_t num_parts = CeilDiv(task.z.cols, task.w2_unit_rows);
  size_t unit = 0;
  while (worker.Next(*shared.num_active * num_parts, unit)) {
    const size_t first = unit % num_parts * task.w2_unit_rows;
    const Pairs pairs = PairsOf(shared, unit / num_parts);
    float* act = shared.act + pairs.first * shared.act_stride;
    float* out = shared.out + pairs.first * shared.out_stride;
    MatMulRows({.w = task.w2,
                .first_row = pairs.expert * task.z.cols + first,
                .num_rows = std::min(task.w2_unit_rows, task.z.cols - first),
                .x = {act, shared.act_stride, nullptr},
                .num_tokens = pairs.count,
                .y = {out + first, shared.out_stride, nullptr},
                .scratch = worker.scratch()});
  }
}

void SumSlots(const MoeTask& task, const Worker& worker) {
  constexpr size_t kCols = 1024;  // of one unit
  const MoeShared shared(task, worker.shared());
  const size_t top_k = task.expert_ids.cols;
  const size_t num_parts = CeilDiv(task.z.cols, kCols);
  size_t unit = 0;
  while (worker.Next(task.z.rows * num_parts, unit)) {
    const size_t token = unit / num_parts;
    const size_t first = unit % num_parts * kCols;
    const float* weights = task.weights.Row(token);
    const uint32_t* pairs = shared.pair_of + token * top_k;
    float* y = task.y.Row(token) + first;
    ForEachVector(std::min(kCols, task.z.cols - first), [&](auto d, size_t c) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (size_t slot = 0; slot < top_k; ++slot) {
        const float* out = shared.out + pairs[slot] * shared.out_stride + first + c;
        sum = hn::MulAdd(hn::Set(d, weights[slot]), hn::LoadU(d, out), sum);
      }
      hn::StoreU(sum, d, y + c);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace yoke::kernels::cpu {

HWY_EXPORT(GateUp);
HWY_EXPORT(Down);
HWY_EXPORT(SumSlots);

namespace {

uint64_t ExpertBytes(const MoeTask& task) {
  const auto row_bytes = [](const Weight& w) { return w.data_stride + w.scale_stride; };
  return task.inner * (row_bytes(task.w1) + row_bytes(task.w3)) + task.z.cols * row_bytes(task.w2);
}

// Sorts the pairs (token, slot) by expert.
void GroupByExpert(const MoeTask& task, const MoeShared& shared) {
  const size_t top_k = task.expert_ids.cols;
  const auto expert_at = [&](size_t pair) {
    const float id = task.expert_ids.Row(pair / top_k)[pair % top_k];
    YOKE_CHECK(id >= 0 && id < static_cast<float>(task.num_experts));
    return static_cast<size_t>(id);
  };
  uint32_t* first = shared.first_pair;
  std::fill_n(first, task.num_experts + 1, 0);
  for (size_t i = 0; i < task.NumPairs(); ++i) ++first[expert_at(i) + 1];
  uint32_t num_active = 0;
  for (size_t e = 0; e < task.num_experts; ++e) {
    if (first[e + 1] > 0) shared.active[num_active++] = static_cast<uint32_t>(e);
    first[e + 1] += first[e];
  }
  for (size_t i = 0; i < task.NumPairs(); ++i) {
    const uint32_t pair = first[expert_at(i)]++;
    shared.token_of[pair] = static_cast<uint32_t>(i / top_k);
    shared.pair_of[i] = pair;
  }
  // Each entry has moved on to where the next expert begins.
  std::copy_backward(first, first + task.num_experts, first + task.num_experts + 1);
  first[0] = 0;
  *shared.num_active = num_active;
  *task.weight_bytes_read += num_active * ExpertBytes(task);
}

// Unit 0 groups; the others pack a row of z each and clear its rows of act where SiTU will not fill
// them.
void Prepare(const MoeTask& task, const Worker& worker) {
  const MoeShared shared(task, worker.shared());
  const size_t top_k = task.expert_ids.cols;
  size_t unit = 0;
  while (worker.Next(1 + task.z.rows, unit)) {
    if (unit == 0) {
      GroupByExpert(task, shared);
      continue;
    }
    const size_t row = unit - 1;
    for (const bool even_odd : {false, true}) {
      if (WantsEvenOdd(task.w1.dtype) != even_odd && WantsEvenOdd(task.w3.dtype) != even_odd) {
        continue;
      }
      float* z = even_odd ? shared.z_even_odd : shared.z_plain;
      PackRow(task.z.Row(row), task.z.cols, even_odd, z + row * shared.z_stride);
    }
    if (task.inner < shared.act_stride) {
      std::fill_n(shared.act + row * top_k * shared.act_stride, top_k * shared.act_stride, 0.0F);
    }
  }
}

}  // namespace

size_t MoeTask::SharedFloats() const {
  return MoeShared(*this, nullptr).num_floats;
}

size_t MoeTask::ScratchFloats() const {
  return 2 * NumPairs() * kRowGroup + kMatMulScratch;
}

void Run(const MoeTask& task, size_t phase, const Worker& worker) {
  switch (phase) {
    case 0:
      return Prepare(task, worker);
    case 1:
      return HWY_DYNAMIC_DISPATCH(GateUp)(task, worker);
    case 2:
      return HWY_DYNAMIC_DISPATCH(Down)(task, worker);
    default:
      return HWY_DYNAMIC_DISPATCH(SumSlots)(task, worker);
  }
}

}  // namespace yoke::kernels::cpu
#endif  // HWY_ONCE
