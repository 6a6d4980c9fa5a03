// Kimi Delta Attention, one token at a time, prefill included (the recurrent form).
#include <cmath>
#include <vector>

#include "kernels/reference_attention.h"

namespace yoke::kernels::reference {
namespace {

constexpr size_t kConvRows = kKdaConvTaps - 1;  // raw rows of each of q, k, v in the state

// Everything an op call touches, resolved once.
struct Tensors {
  Rows q, k, v, forget, beta, gate, out;
  const Weight &q_conv, &k_conv, &v_conv, &a_log, &dt_bias, &o_norm;
};

// One token of one depthwise causal convolution with SiLU; moves the state on by one row.
// raw: row `row` of [num_tokens, channels]; state: rows first..first+2 of [9, channels].
std::vector<double> ShortConv(const Rows& raw, size_t row, const Weight& taps, const Rows& state,
                              size_t first) {
  std::vector<double> y(raw.cols);
  for (size_t c = 0; c < raw.cols; ++c) {
    double sum = taps(c, kConvRows) * raw(row, c);
    for (size_t j = 0; j < kConvRows; ++j) sum += taps(c, j) * state(first + j, c);
    y[c] = sum * Sigmoid(sum);
    for (size_t j = 0; j + 1 < kConvRows; ++j) state(first + j, c) = state(first + j + 1, c);
    state(first + kConvRows - 1, c) = raw(row, c);
  }
  return y;
}

// Scales each head's `head_dim` values to x / sqrt(sum x^2 + eps) * factor.
void NormalizeHeads(std::vector<double>& x, size_t head_dim, double eps, double factor) {
  for (size_t first = 0; first < x.size(); first += head_dim) {
    double sum_sq = eps;
    for (size_t c = 0; c < head_dim; ++c) sum_sq += x[first + c] * x[first + c];
    for (size_t c = 0; c < head_dim; ++c) x[first + c] *= factor / std::sqrt(sum_sq);
  }
}

// One step of the delta rule of one head. q, k: [dim] normalised; state: [dim (k), dim (v)].
// Returns o = S^T q of the updated state.
struct HeadInput {
  const double* q;
  const double* k;
  const double* v;
  std::vector<double> decay;  // [dim]
  double beta;
};
std::vector<double> DeltaRule(const HeadInput& in, size_t dim, double* state) {
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) state[i * dim + j] *= in.decay[i];
  }
  std::vector<double> u(in.v, in.v + dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) u[j] -= state[i * dim + j] * in.k[i];
  }
  std::vector<double> o(dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      state[i * dim + j] += in.beta * in.k[i] * u[j];
      o[j] += state[i * dim + j] * in.q[i];
    }
  }
  return o;
}

// RMSNorm of one head's output, then the output gate.
void WriteOutput(const Tensors& t, const KdaArgs& args, const std::vector<double>& o, size_t row,
                 size_t first) {
  double mean_sq = 0;
  for (const double value : o) mean_sq += value * value / static_cast<double>(args.head_dim);
  const double scale = 1 / std::sqrt(mean_sq + static_cast<double>(args.norm_eps));
  for (size_t c = 0; c < args.head_dim; ++c) {
    t.out(row, first + c) = o[c] * scale * t.o_norm(0, c) * Sigmoid(t.gate(row, first + c));
  }
}

void Token(const Tensors& t, const KdaArgs& args, size_t row, const Rows& conv, const Rows& delta) {
  const size_t dim = args.head_dim;
  std::vector<double> q = ShortConv(t.q, row, t.q_conv, conv, 0);
  std::vector<double> k = ShortConv(t.k, row, t.k_conv, conv, kConvRows);
  const std::vector<double> v = ShortConv(t.v, row, t.v_conv, conv, 2 * kConvRows);
  const double eps = static_cast<double>(args.l2_eps);
  NormalizeHeads(q, dim, eps, 1 / std::sqrt(static_cast<double>(dim)));
  NormalizeHeads(k, dim, eps, 1);
  for (size_t head = 0; head < args.num_heads; ++head) {
    const size_t first = head * dim;
    std::vector<double> decay(dim);
    for (size_t c = 0; c < dim; ++c) {
      const double z = t.forget(row, first + c) + t.dt_bias(0, first + c);
      const double gate = Sigmoid(std::exp(t.a_log(0, head)) * z);
      decay[c] = std::exp(static_cast<double>(args.gate_lower_bound) * gate);
    }
    const HeadInput in{&q[first], &k[first], &v[first], decay, Sigmoid(t.beta(row, head))};
    WriteOutput(t, args, DeltaRule(in, dim, &delta(head, 0)), row, first);
  }
}

}  // namespace

void Kda(Memory& memory, const KdaArgs& args) {
  const size_t num_tokens = args.q.rows;
  const size_t channels = args.num_heads * args.head_dim;
  const Tensors t{.q = memory.At(args.q, num_tokens, channels),
                  .k = memory.At(args.k, num_tokens, channels),
                  .v = memory.At(args.v, num_tokens, channels),
                  .forget = memory.At(args.forget, num_tokens, channels),
                  .beta = memory.At(args.beta, num_tokens, args.num_heads),
                  .gate = memory.At(args.gate, num_tokens, channels),
                  .out = memory.At(args.out, num_tokens, channels),
                  .q_conv = memory.Use(args.q_conv, channels, kKdaConvTaps),
                  .k_conv = memory.Use(args.k_conv, channels, kKdaConvTaps),
                  .v_conv = memory.Use(args.v_conv, channels, kKdaConvTaps),
                  .a_log = memory.Use(args.a_log, 1, args.num_heads),
                  .dt_bias = memory.Use(args.dt_bias, 1, channels),
                  .o_norm = memory.Use(args.o_norm, 1, args.head_dim)};
  YOKE_CHECK(args.conv_states.size() == args.segments.size());
  YOKE_CHECK(args.delta_states.size() == args.segments.size());
  for (size_t s = 0; s < args.segments.size(); ++s) {
    const Segment& segment = args.segments[s];
    YOKE_CHECK(segment.prefill || segment.num_rows == 1);
    const Rows conv = memory.At(args.conv_states[s], 3 * kConvRows, channels);
    const Rows delta =
        memory.At(args.delta_states[s], args.num_heads, args.head_dim * args.head_dim);
    for (size_t i = 0; i < segment.num_rows; ++i) {
      Token(t, args, segment.first_row + i, conv, delta);
    }
  }
}

}  // namespace yoke::kernels::reference
