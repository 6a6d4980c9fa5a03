// Embedding rows, SiTU, copies, sums, and the choice of experts.
#include <algorithm>
#include <cstring>

#include "kernels/cpu_ops.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kUnitCols = 2048;  // columns of one unit

// body(row, first_col, num_cols) for pieces of rows.
template <class Body>
void ForEachPiece(size_t rows, size_t cols, const Worker& worker, const Body& body) {
  const size_t pieces = CeilDiv(cols, kUnitCols);
  size_t unit = 0;
  while (worker.Next(rows * pieces, unit)) {
    const size_t first = unit % pieces * kUnitCols;
    body(unit / pieces, first, std::min(kUnitCols, cols - first));
  }
}

void SituPhase(const SituTask& task, const Worker& worker) {
  ForEachPiece(task.out.rows, task.out.cols, worker, [&](size_t row, size_t first, size_t cols) {
    const float* gate = task.gate.Row(row) + first;
    const float* up = task.up.Row(row) + first;
    float* out = task.out.Row(row) + first;
    ForEachVector(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto g = hn::LoadU(d, gate + c);
      const auto u = hn::LoadU(d, up + c);
      hn::StoreU(Situ(d, g, u, task.beta, task.linear_beta), d, out + c);
    });
  });
}

void CopyPhase(const CopyTask& task, const Worker& worker) {
  ForEachPiece(task.x.rows, task.x.cols, worker, [&](size_t row, size_t first, size_t cols) {
    const float* x = task.x.Row(row) + first;
    float* y = task.y.Row(row) + first;
    if (!task.add) {
      std::memmove(y, x, cols * sizeof(float));
      return;
    }
    ForEachVector(cols, [&](auto d, size_t c) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
    });
  });
}

void RouteRow(const RouteTask& task, size_t row, float* scratch) {
  const size_t num_experts = task.logits.cols;
  const float* logits = task.logits.Row(row);
  float* scores = scratch;
  float* biased = scratch + RoundUp(num_experts, kPartialSums);
  ForEachVector(num_experts, [&](auto d, size_t e) HWY_ATTR {
    const auto score = Sigmoid(d, hn::LoadU(d, logits + e));
    hn::StoreU(score, d, scores + e);
    hn::StoreU(hn::Add(score, hn::LoadU(d, task.bias + e)), d, biased + e);
  });
  // The chosen so far, best first. A later expert must be larger to pass an earlier one.
  float* ids = task.expert_ids.Row(row);
  float* weights = task.weights.Row(row);  // first the biased scores
  size_t num_chosen = 0;
  for (size_t e = 0; e < num_experts; ++e) {
    if (num_chosen == task.top_k && !(biased[e] > weights[num_chosen - 1])) continue;
    size_t slot = num_chosen < task.top_k ? num_chosen++ : num_chosen - 1;
    for (; slot > 0 && biased[e] > weights[slot - 1]; --slot) {
      weights[slot] = weights[slot - 1];
      ids[slot] = ids[slot - 1];
    }
    weights[slot] = biased[e];
    ids[slot] = static_cast<float>(e);
  }
  float sum = 0;
  for (size_t slot = 0; slot < num_chosen; ++slot) {
    weights[slot] = scores[static_cast<size_t>(ids[slot])];
    sum += weights[slot];
  }
  const float scale = task.renormalize ? task.scale / (sum + 1e-20F) : task.scale;
  for (size_t slot = 0; slot < num_chosen; ++slot) weights[slot] *= scale;
}

void RoutePhase(const RouteTask& task, const Worker& worker) {
  size_t row = 0;
  while (worker.Next(task.logits.rows, row)) RouteRow(task, row, worker.scratch());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace yoke::kernels::cpu {

HWY_EXPORT(SituPhase);
HWY_EXPORT(CopyPhase);
HWY_EXPORT(RoutePhase);

void Run(const EmbedTask& task, size_t, const Worker& worker) {
  size_t row = 0;
  while (worker.Next(task.out.rows, row)) {
    // Tokens below first_row wrap around to large numbers, which are no rows either.
    const size_t at = static_cast<size_t>(task.tokens[row]) - task.first_row;
    if (at < task.table.rows) {
      DecodeRows(task.table, at, 1, task.out.Row(row), task.out.stride);
    } else {
      std::fill_n(task.out.Row(row), task.out.cols, 0.0F);
    }
  }
}

void Run(const SituTask& task, size_t, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(SituPhase)(task, worker);
}

void Run(const CopyTask& task, size_t, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(CopyPhase)(task, worker);
}

void Run(const RouteTask& task, size_t, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(RoutePhase)(task, worker);
}

}  // namespace yoke::kernels::cpu
#endif  // HWY_ONCE
