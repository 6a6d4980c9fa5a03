// RMS norm and block attention residuals.
#include <algorithm>
#include <cmath>

#include "kernels/cpu_ops.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

void RmsNormPhase(const RmsNormTask& task, const Worker& worker) {
  const size_t dim = task.x.cols;
  size_t row = 0;
  while (worker.Next(task.x.rows, row)) {
    const float* x = task.x.Row(row);
    const float mean = Dot(x, x, dim) / static_cast<float>(dim);
    ScaleRow(x, 1 / std::sqrt(mean + task.eps), task.weight, dim, task.y.Row(row));
  }
}

// Row i of the mix: the bank's rows, then the live prefix.
const float* MixRow(const AttnResTask& task, size_t token, size_t i) {
  if (i == task.num_bank) return task.prefix.Row(token);
  return task.bank + i * task.bank_stride + token * task.bank_row_stride;
}

// Partial sums of squares and of products with the query norm * proj, over one part of the columns.
void AttnResSums(const AttnResTask& task, const Worker& worker) {
  const size_t num_parts = task.NumParts();
  size_t unit = 0;
  while (worker.Next(task.prefix.rows * num_parts, unit)) {
    const size_t first = unit % num_parts * AttnResTask::kCols;
    const size_t cols = std::min(AttnResTask::kCols, task.prefix.cols - first);
    alignas(64) float query[AttnResTask::kCols];
    ForEachVector(cols, [&](auto tag, size_t c) HWY_ATTR {
      const auto norm = hn::LoadU(tag, task.norm + first + c);
      hn::StoreU(hn::Mul(norm, hn::LoadU(tag, task.proj + first + c)), tag, query + c);
    });
    float* out = worker.shared() + unit * (task.num_bank + 1) * 2;
    for (size_t i = 0; i <= task.num_bank; ++i) {
      const float* v = MixRow(task, unit / num_parts, i) + first;
      out[2 * i] = Dot(v, v, cols);
      out[2 * i + 1] = Dot(v, query, cols);
    }
  }
}

// alpha: [num_bank + 1], the softmax of the scores.
void AttnResWeights(const AttnResTask& task, const float* sums, float* alpha) {
  const size_t num_rows = task.num_bank + 1;
  double max = -HUGE_VAL;
  double scores[AttnResTask::kBankMax + 1];
  for (size_t i = 0; i < num_rows; ++i) {
    double squares = 0;
    double product = 0;
    for (size_t part = 0; part < task.NumParts(); ++part) {
      squares += static_cast<double>(sums[(part * num_rows + i) * 2]);
      product += static_cast<double>(sums[(part * num_rows + i) * 2 + 1]);
    }
    const double mean = squares / static_cast<double>(task.prefix.cols);
    scores[i] = product / std::sqrt(mean + static_cast<double>(task.eps));
    max = std::max(max, scores[i]);
  }
  double total = 0;
  for (size_t i = 0; i < num_rows; ++i) total += (scores[i] = std::exp(scores[i] - max));
  for (size_t i = 0; i < num_rows; ++i) alpha[i] = static_cast<float>(scores[i] / total);
}

void AttnResMix(const AttnResTask& task, const Worker& worker) {
  const size_t num_parts = task.NumParts();
  const size_t num_rows = task.num_bank + 1;
  size_t unit = 0;
  while (worker.Next(task.prefix.rows * num_parts, unit)) {
    const size_t token = unit / num_parts;
    const size_t first = unit % num_parts * AttnResTask::kCols;
    const size_t cols = std::min(AttnResTask::kCols, task.prefix.cols - first);
    float alpha[AttnResTask::kBankMax + 1];
    AttnResWeights(task, worker.shared() + token * num_parts * num_rows * 2, alpha);
    float* out = task.out.Row(token) + first;
    const float* rows[AttnResTask::kBankMax + 1];
    for (size_t i = 0; i < num_rows; ++i) rows[i] = MixRow(task, token, i) + first;
    ForEachVector(cols, [&](auto tag, size_t c) HWY_ATTR {
      auto sum = hn::Zero(tag);
      for (size_t i = 0; i < num_rows; ++i) {
        sum = hn::MulAdd(hn::Set(tag, alpha[i]), hn::LoadU(tag, rows[i] + c), sum);
      }
      hn::StoreU(sum, tag, out + c);
    });
  }
}

void AttnResPhase(const AttnResTask& task, size_t phase, const Worker& worker) {
  if (phase == 0) {
    AttnResSums(task, worker);
  } else {
    AttnResMix(task, worker);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace yoke::kernels::cpu {

HWY_EXPORT(RmsNormPhase);
HWY_EXPORT(AttnResPhase);

void Run(const RmsNormTask& task, size_t, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(RmsNormPhase)(task, worker);
}

void Run(const AttnResTask& task, size_t phase, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(AttnResPhase)(task, phase, worker);
}

}  // namespace yoke::kernels::cpu
#endif  // HWY_ONCE
