// Kimi Delta Attention, one head of one segment at a time, in sub-chunks of kKdaSubChunk tokens.
// One token is a sub-chunk too, for which the chunked form is the recurrence itself.
//
// With a_i the decay of token i, E_ij = a_{j+1} ... a_i and G_i = a_0 ... a_i, each per key
// channel:
//   A_ij = beta_i k_i . (E_ij k_j)          for j < i
//   P_ij = q_i . (E_ij k_j)                 for j <= i
//   V'_i = beta_i (v_i - S^T (G_i k_i)) - sum_{j<i} A_ij V'_j
//   o_i  = S^T (G_i q_i) + sum_{j<=i} P_ij V'_j
//   S   <- diag(G_last) S + sum_i (E_last,i k_i) V'_i^T
// All E and G are products of decays, which lie in (0, 1]: nothing can overflow.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu_ops.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "kernels/simd-inl.h"

#ifndef YOKE_KERNELS_KDA_SCRATCH_
#define YOKE_KERNELS_KDA_SCRATCH_
namespace yoke::kernels::cpu {
namespace {

constexpr size_t kHistory = kKdaConvTaps - 1;  // raw rows that the convolution looks back
constexpr size_t kChunk = kKdaSubChunk;

// One thread's memory for one head. `width` is head_dim with padding; what lies in the padding of q
// and k is zero. Without memory only num_floats means something.
struct KdaScratch {
  KdaScratch(size_t w, float* memory) : width(w) {
    const auto take = [&](size_t count) {
      float* part = memory != nullptr ? memory + num_floats : nullptr;
      num_floats += RoundUp(count, 16);
      return part;
    };
    for (size_t i = 0; i < 3; ++i) {
      raw[i] = take((kHistory + kChunk) * width);
      taps[i] = take(kKdaConvTaps * width);
      conv[i] = take(kChunk * width);
    }
    for (float** rows : {&decay, &k_decayed, &from_state, &values}) *rows = take(kChunk * width);
    in_state = take(2 * kChunk * width);
    total_decay = take(width);
    state = take(width * width);
    for (float** square : {&a, &p}) *square = take(kChunk * kChunk);
    beta = take(kChunk);
  }

  size_t num_floats = 0;
  size_t width;
  float* raw[3];       // of q, k, v: [kHistory + kChunk, width], before the convolution
  float* taps[3];      // [4, width]
  float* conv[3];      // q, k, v: [kChunk, width]
  float* decay;        // a: [kChunk, width]
  float* k_decayed;    // E_ij k_j for the present i: [kChunk, width]
  float* in_state;     // G_i q_i and G_i k_i, alternating: [2 * kChunk, width]
  float* from_state;   // S^T (G_i q_i), then o: [kChunk, width]
  float* values;       // S^T (G_i k_i), then V': [kChunk, width]
  float* total_decay;  // G_last: [width]
  float* state;        // S with padded rows, where head_dim needs padding
  float* a;            // A: [kChunk, kChunk]
  float* p;            // P
  float* beta;         // [kChunk]
};

}  // namespace
}  // namespace yoke::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// One head of one segment.
struct Head {
  const KdaTask& task;
  const KdaScratch& s;
  size_t idx;    // of the head
  size_t dim;    // head_dim
  float* state;  // [dim, state_stride]
  size_t state_stride;
};

void LoadPadded(const float* from, size_t dim, size_t width, float* to) {
  std::memcpy(to, from, dim * sizeof(float));
  std::memset(to + dim, 0, (width - dim) * sizeof(float));
}

// The rows of scratch before the chunk's own: the last kHistory raw rows.
void LoadHistory(const Head& head, const Rows& conv_state) {
  const KdaScratch& s = head.s;
  const float* weights[3] = {head.task.q_conv, head.task.k_conv, head.task.v_conv};
  const size_t first_col = head.idx * head.dim;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t r = 0; r < kHistory; ++r) {
      LoadPadded(conv_state.Row(i * kHistory + r) + first_col, head.dim, s.width,
                 s.raw[i] + r * s.width);
    }
    std::memset(s.taps[i], 0, kKdaConvTaps * s.width * sizeof(float));
    const float* w = weights[i] + first_col * kKdaConvTaps;
    for (size_t c = 0; c < head.dim; ++c) {
      for (size_t t = 0; t < kKdaConvTaps; ++t)
        s.taps[i][t * s.width + c] = w[c * kKdaConvTaps + t];
    }
  }
}

void StoreHistory(const Head& head, const Rows& conv_state) {
  const KdaScratch& s = head.s;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t r = 0; r < kHistory; ++r) {
      std::memcpy(conv_state.Row(i * kHistory + r) + head.idx * head.dim, s.raw[i] + r * s.width,
                  head.dim * sizeof(float));
    }
  }
}

// q, k, v of n tokens after convolution and SiLU; moves the history on.
void Convolve(const Head& head, size_t row, size_t n) {
  const FloatTag d;
  const KdaScratch& s = head.s;
  const Rows* inputs[3] = {&head.task.q, &head.task.k, &head.task.v};
  for (size_t i = 0; i < 3; ++i) {
    float* raw = s.raw[i];
    for (size_t t = 0; t < n; ++t) {
      LoadPadded(inputs[i]->Row(row + t) + head.idx * head.dim, head.dim, s.width,
                 raw + (kHistory + t) * s.width);
    }
    for (size_t t = 0; t < n; ++t) {
      for (size_t c = 0; c < s.width; c += kLanes) {
        FloatVec sum = hn::Zero(d);
        for (size_t tap = 0; tap < kKdaConvTaps; ++tap) {
          const FloatVec w = hn::Load(d, s.taps[i] + tap * s.width + c);
          sum = hn::MulAdd(w, hn::Load(d, raw + (t + tap) * s.width + c), sum);
        }
        hn::Store(Silu(d, sum), d, s.conv[i] + t * s.width + c);
      }
    }
    std::memmove(raw, raw + n * s.width, kHistory * s.width * sizeof(float));
  }
}

// L2 norm of q and k, decays and betas of n tokens.
void NormAndGate(const Head& head, size_t row, size_t n) {
  const FloatTag d;
  const KdaScratch& s = head.s;
  const KdaArgs& args = head.task.args;
  const float q_scale = 1 / std::sqrt(static_cast<float>(head.dim));
  const FloatVec rate = hn::Set(d, std::exp(head.task.a_log[head.idx]));
  const FloatVec bound = hn::Set(d, args.gate_lower_bound);
  float* dt_bias = s.total_decay;  // not in use yet
  LoadPadded(head.task.dt_bias + head.idx * head.dim, head.dim, s.width, dt_bias);
  for (size_t t = 0; t < n; ++t) {
    for (size_t i = 0; i < 2; ++i) {
      float* x = s.conv[i] + t * s.width;
      const float norm = std::sqrt(Dot(x, x, s.width) + args.l2_eps);
      const FloatVec scale = hn::Set(d, (i == 0 ? q_scale : 1) / norm);
      for (size_t c = 0; c < s.width; c += kLanes) {
        hn::Store(hn::Mul(hn::Load(d, x + c), scale), d, x + c);
      }
    }
    float* decay = s.decay + t * s.width;
    LoadPadded(head.task.forget.Row(row + t) + head.idx * head.dim, head.dim, s.width, decay);
    for (size_t c = 0; c < s.width; c += kLanes) {
      const FloatVec z = hn::Add(hn::Load(d, decay + c), hn::Load(d, dt_bias + c));
      const FloatVec g = hn::Mul(bound, Sigmoid(d, hn::Mul(rate, z)));
      hn::Store(hn::Exp(d, g), d, decay + c);
    }
    const hn::CappedTag<float, 1> one;
    s.beta[t] = hn::GetLane(Sigmoid(one, hn::Set(one, head.task.beta.Row(row + t)[head.idx])));
  }
}

// A, P, the rows that meet the state, and what the last token leaves of each key.
void PrepareChunk(const KdaScratch& s, size_t n) {
  const FloatTag d;
  const float* q = s.conv[0];
  const float* k = s.conv[1];
  for (size_t c = 0; c < s.width; c += kLanes) hn::Store(hn::Set(d, 1), d, s.total_decay + c);
  for (size_t i = 0; i < n; ++i) {
    const float* decay = s.decay + i * s.width;
    const float* q_i = q + i * s.width;
    const float* k_i = k + i * s.width;
    for (size_t c = 0; c < s.width; c += kLanes) {
      const FloatVec a = hn::Load(d, decay + c);
      const FloatVec total = hn::Mul(hn::Load(d, s.total_decay + c), a);
      hn::Store(total, d, s.total_decay + c);
      hn::Store(hn::Mul(total, hn::Load(d, q_i + c)), d, s.in_state + 2 * i * s.width + c);
      hn::Store(hn::Mul(total, hn::Load(d, k_i + c)), d, s.in_state + (2 * i + 1) * s.width + c);
      for (size_t j = 0; j < i; ++j) {
        float* k_j = s.k_decayed + j * s.width + c;
        hn::Store(hn::Mul(hn::Load(d, k_j), a), d, k_j);
      }
    }
    std::memcpy(s.k_decayed + i * s.width, k_i, s.width * sizeof(float));
    for (size_t j = 0; j <= i; ++j) {
      const float* k_j = s.k_decayed + j * s.width;
      s.p[i * kChunk + j] = Dot(q_i, k_j, s.width);
      if (j < i) s.a[i * kChunk + j] = s.beta[i] * Dot(k_i, k_j, s.width);
    }
  }
}

// S^T x for kRows rows of in_state, from row `first` on, in columns [col, col + kVectors * kLanes).
// Even rows go to from_state, odd ones to values.
template <size_t kRows, size_t kVectors>
HWY_INLINE void StateProducts(const Head& head, size_t first, size_t col) {
  const FloatTag d;
  const KdaScratch& s = head.s;
  FloatVec sums[kRows][kVectors];
  for (auto& row : sums) {
    for (FloatVec& sum : row) sum = hn::Zero(d);
  }
  const float* x = s.in_state + first * s.width;
  for (size_t k = 0; k < head.dim; ++k) {
    const float* state = head.state + k * head.state_stride + col;
    FloatVec s_v[kVectors];
    for (size_t v = 0; v < kVectors; ++v) s_v[v] = hn::LoadU(d, state + v * kLanes);
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVec x_v = hn::Set(d, x[r * s.width + k]);
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(s_v[v], x_v, sums[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* out = (r % 2 == 0 ? s.from_state : s.values) + (first + r) / 2 * s.width + col;
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[r][v], d, out + v * kLanes);
  }
}

template <size_t kVectors>
HWY_INLINE void StateProductsOf(const Head& head, size_t n, size_t col) {
  size_t row = 0;
  for (; row + 4 <= 2 * n; row += 4) StateProducts<4, kVectors>(head, row, col);
  for (; row < 2 * n; row += 2) StateProducts<2, kVectors>(head, row, col);
}

// V' and o from S^T (G k) and S^T (G q).
void Solve(const KdaScratch& s, size_t n) {
  const FloatTag d;
  const float* v = s.conv[2];
  for (size_t i = 0; i < n; ++i) {
    const FloatVec beta = hn::Set(d, s.beta[i]);
    for (size_t c = 0; c < s.width; c += kLanes) {
      const FloatVec rest =
          hn::Sub(hn::Load(d, v + i * s.width + c), hn::Load(d, s.values + i * s.width + c));
      FloatVec value = hn::Mul(beta, rest);
      FloatVec out = hn::Load(d, s.from_state + i * s.width + c);
      for (size_t j = 0; j < i; ++j) {
        const FloatVec value_j = hn::Load(d, s.values + j * s.width + c);
        value = hn::NegMulAdd(hn::Set(d, s.a[i * kChunk + j]), value_j, value);
        out = hn::MulAdd(hn::Set(d, s.p[i * kChunk + j]), value_j, out);
      }
      hn::Store(value, d, s.values + i * s.width + c);
      out = hn::MulAdd(hn::Set(d, s.p[i * kChunk + i]), value, out);
      hn::Store(out, d, s.from_state + i * s.width + c);
    }
  }
}

// S <- diag(G_last) S + sum_i (E_last,i k_i) V'_i^T, for kRows rows and kVectors vectors of S.
template <size_t kRows, size_t kVectors>
HWY_INLINE void UpdateTile(const Head& head, size_t n, size_t row, size_t col) {
  const FloatTag d;
  const KdaScratch& s = head.s;
  FloatVec sums[kRows][kVectors];
  float* state = head.state + row * head.state_stride + col;
  for (size_t r = 0; r < kRows; ++r) {
    const FloatVec decay = hn::Set(d, s.total_decay[row + r]);
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Mul(decay, hn::LoadU(d, state + r * head.state_stride + v * kLanes));
    }
  }
  for (size_t i = 0; i < n; ++i) {
    FloatVec value[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      value[v] = hn::Load(d, s.values + i * s.width + col + v * kLanes);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVec k = hn::Set(d, s.k_decayed[i * s.width + row + r]);
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(k, value[v], sums[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, state + r * head.state_stride + v * kLanes);
    }
  }
}

template <size_t kVectors>
HWY_INLINE void UpdateState(const Head& head, size_t n, size_t col) {
  size_t row = 0;
  for (; row + 4 <= head.dim; row += 4) UpdateTile<4, kVectors>(head, n, row, col);
  for (; row < head.dim; ++row) UpdateTile<1, kVectors>(head, n, row, col);
}

// out = RMSNorm(o) * o_norm * sigmoid(gate)
void StoreOutput(const Head& head, size_t row, size_t n) {
  const KdaScratch& s = head.s;
  for (size_t t = 0; t < n; ++t) {
    const float* o = s.from_state + t * s.width;
    const float mean = Dot(o, o, head.dim) / static_cast<float>(head.dim);
    const float scale = 1 / std::sqrt(mean + head.task.args.norm_eps);
    const float* gate = head.task.gate.Row(row + t) + head.idx * head.dim;
    float* out = head.task.out.Row(row + t) + head.idx * head.dim;
    ForEachVector(head.dim, [&](auto d, size_t c) HWY_ATTR {
      const auto normed = hn::Mul(hn::Mul(hn::LoadU(d, o + c), hn::Set(d, scale)),
                                  hn::LoadU(d, head.task.o_norm + c));
      hn::StoreU(hn::Mul(normed, Sigmoid(d, hn::LoadU(d, gate + c))), d, out + c);
    });
  }
}

void RunChunk(const Head& head, size_t row, size_t n) {
  Convolve(head, row, n);
  NormAndGate(head, row, n);
  PrepareChunk(head.s, n);
  const size_t width = head.s.width;
  size_t col = 0;
  for (; col + 2 * kLanes <= width; col += 2 * kLanes) StateProductsOf<2>(head, n, col);
  if (col < width) StateProductsOf<1>(head, n, col);
  Solve(head.s, n);
  col = 0;
  for (; col + 2 * kLanes <= width; col += 2 * kLanes) UpdateState<2>(head, n, col);
  if (col < width) UpdateState<1>(head, n, col);
  StoreOutput(head, row, n);
}

Rows StateRows(const KdaTask& task, const View& view) {
  return {task.buffers->Data(view.buffer) + view.offset, view.rows, view.cols, view.stride};
}

void KdaPhase(const KdaTask& task, const Worker& worker) {
  const size_t dim = task.args.head_dim;
  const size_t width = RoundUp(dim, kLanes);
  const KdaScratch scratch(width, worker.scratch());
  const size_t num_heads = task.args.num_heads;
  size_t unit = 0;
  while (worker.Next(task.args.segments.size() * num_heads, unit)) {
    const size_t segment_idx = unit / num_heads;
    const size_t head_idx = unit % num_heads;
    const Segment& segment = task.args.segments[segment_idx];
    const Rows conv_state = StateRows(task, task.args.conv_states[segment_idx]);
    float* stored = StateRows(task, task.args.delta_states[segment_idx]).Row(head_idx);
    Head head{task, scratch, head_idx, dim, stored, dim};
    if (width != dim) {
      head.state = scratch.state;
      head.state_stride = width;
      for (size_t k = 0; k < dim; ++k) {
        LoadPadded(stored + k * dim, dim, width, head.state + k * width);
      }
    }
    LoadHistory(head, conv_state);
    for (size_t t = 0; t < segment.num_rows; t += kChunk) {
      RunChunk(head, segment.first_row + t, std::min(kChunk, segment.num_rows - t));
    }
    StoreHistory(head, conv_state);
    if (width != dim) {
      for (size_t k = 0; k < dim; ++k) {
        std::memcpy(stored + k * dim, head.state + k * width, dim * sizeof(float));
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace yoke::kernels::cpu {

HWY_EXPORT(KdaPhase);

size_t KdaTask::ScratchFloats() const {
  return KdaScratch(RoundUp(args.head_dim, 16), nullptr).num_floats;
}

void Run(const KdaTask& task, size_t, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(KdaPhase)(task, worker);
}

}  // namespace yoke::kernels::cpu
#endif  // HWY_ONCE
