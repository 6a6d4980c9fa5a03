// The op interface between model architectures and compute. Ops are coarse, take opaque handles and
// are only enqueued: nothing has run until Flush(), Read() or Write() returns. Two implementations:
// cpu_backend.h (Highway, f32) and reference_backend.h (plain double precision); a GPU would be a
// third. Formulas: Kimi K3 as released; see docs/kimi-k3.md.
//
// Bitwise rule, which every implementation keeps: what an op computes for one token does not depend
// on which other tokens share the step, on how many threads run, or on how a prompt was cut into
// steps (cuts fall on multiples of kKdaSubChunk). So each output has one fixed summation order.
//
// Threads: one thread enqueues and flushes. Spans and pointers in arguments must stay valid until
// the flush.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "tensor/host_matrix.h"

namespace yoke::kernels {

// Prefill runs KDA in sub-chunks [16 i, 16 i + 16) of absolute positions.
constexpr size_t kKdaSubChunk = 16;
// Positions in one block of the latent cache.
constexpr size_t kCacheBlockTokens = 256;
constexpr size_t kKdaConvTaps = 4;

struct BufferId {
  uint32_t index = UINT32_MAX;
  bool valid() const { return index != UINT32_MAX; }
};
struct WeightId {
  uint32_t index = UINT32_MAX;
  bool valid() const { return index != UINT32_MAX; }
};

// Activations [rows, cols] inside a buffer. `offset` and `stride` (elements between row starts) are
// in elements. Does not own.
struct View {
  BufferId buffer;
  size_t offset = 0;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  View Rows(size_t first, size_t count) const {
    return {buffer, offset + first * stride, count, cols, stride};
  }
  View Cols(size_t first, size_t count) const {
    return {buffer, offset + first, rows, count, stride};
  }
};

// y = x W^T. x: [num_tokens, W.cols]; y: [num_tokens, W.rows].
struct Projection {
  WeightId weight;
  View y;
};
constexpr size_t kProjectionsMax = 8;

// Consecutive rows of the step that belong to one sequence.
struct Segment {
  size_t first_row = 0;
  size_t num_rows = 0;
  size_t position = 0;   // of the first row in its sequence
  bool prefill = false;  // chunked form, else recurrent (then num_rows == 1)
};

// KDA from the raw projections to the gated, normalised head outputs: short convolution, SiLU, L2
// norm, safe gate, delta rule, output norm and gate. `heads` are this rank's.
struct KdaArgs {
  size_t num_heads = 0;
  size_t head_dim = 0;
  float gate_lower_bound = 0;  // g = lower_bound * sigmoid(exp(A_log) * (f + dt_bias))
  float norm_eps = 0;          // of o_norm
  float l2_eps = 0;            // x / sqrt(sum x^2 + l2_eps)
  View q, k, v;                // raw projections: [num_tokens, num_heads * head_dim]
  View forget;                 // f_b(f_a x): [num_tokens, num_heads * head_dim]
  View beta;                   // b_proj x, before the sigmoid: [num_tokens, num_heads]
  View gate;                   // g_proj x, before the sigmoid: [num_tokens, num_heads * head_dim]
  WeightId q_conv, k_conv, v_conv;  // f32 [num_heads * head_dim, 4]; tap 3 is the newest
  WeightId a_log;                   // f32 [1, num_heads]
  WeightId dt_bias;                 // f32 [1, num_heads * head_dim]
  WeightId o_norm;                  // f32 [1, head_dim]
  std::span<const Segment> segments;
  // One per segment; read and updated. Zero at position 0 (the caller's buffers start zeroed).
  //   conv:  [9, num_heads * head_dim]: raw rows of q at positions p-3, p-2, p-1, then of k, of v
  //   delta: [num_heads, head_dim (k), head_dim (v)] as one row each head: [num_heads, d * d]
  std::span<const View> conv_states;
  std::span<const View> delta_states;
  View out;  // [num_tokens, num_heads * head_dim]
};

// Gated MLA without positions, from the raw projections to the gated head outputs. Appends the
// step's rows to the cache first, then attends causally over the cache, absorbed form.
struct MlaArgs {
  size_t num_heads = 0;
  size_t rank = 0;      // kv_lora_rank
  size_t nope_dim = 0;  // qk_nope_head_dim
  size_t rope_dim = 0;  // qk_rope_head_dim, not rotated
  size_t v_dim = 0;
  float norm_eps = 0;  // of kv_a_norm
  View q;              // [num_tokens, num_heads * (nope_dim + rope_dim)]
  View kv_a;           // kv_a_proj_with_mqa x: [num_tokens, rank + rope_dim], not yet normed
  View gate;           // g_proj x, before the sigmoid: [num_tokens, num_heads * v_dim]
  WeightId kv_a_norm;  // f32 [1, rank]
  WeightId kv_b;       // [num_heads * (nope_dim + v_dim), rank]: per head K-nope rows, then V rows
  std::span<const Segment> segments;
  // One per segment: blocks of kCacheBlockTokens rows [rank + rope_dim], enough for the last
  // position of the segment. Row: normed latent | k_pe.
  std::span<const std::span<const BufferId>> caches;
  View out;  // [num_tokens, num_heads * v_dim]
};

// Chooses experts: s = sigmoid(logits); the top_k largest s + bias (ties: lower index first);
// weight = s / (sum of chosen s + 1e-20 if renormalize) * scale. Slots are in order of choice.
struct RouteArgs {
  size_t top_k = 0;
  bool renormalize = true;
  float scale = 1;
  View logits;      // [num_tokens, num_experts]
  WeightId bias;    // f32 [1, num_experts]
  View expert_ids;  // out: [num_tokens, top_k], whole numbers
  View weights;     // out: [num_tokens, top_k]
};

// Routed experts: y_t = sum over slots, in slot order, of weight * w2_e SiTU(w1_e z_t, w3_e z_t).
// Expert matrices are stacked by rows. With w2 sliced along its columns, y is this rank's part.
struct MoeArgs {
  size_t num_experts = 0;
  float situ_beta = 0;
  float situ_linear_beta = 0;
  View z;           // [num_tokens, latent_dim]
  View expert_ids;  // [num_tokens, top_k]
  View weights;     // [num_tokens, top_k]
  WeightId w1, w3;  // [num_experts * inner, latent_dim]
  WeightId w2;      // [num_experts * latent_dim, w2_cols]
  // Activations fill columns [inner_offset, inner_offset + inner) of w2's w2_cols; the other
  // columns (blocks shared with a neighbour rank) meet zeros.
  size_t inner_offset = 0;
  View y;  // [num_tokens, latent_dim], overwritten
};

// Block attention residual: rows V = bank 0 .. num_bank-1, then the live prefix;
// s_i = sum_d V_i[d] rsqrt(mean V_i^2 + eps) norm[d] proj[d]; out = sum_i softmax(s)_i V_i.
struct AttnResArgs {
  View prefix;  // [num_tokens, model_dim]
  View bank;    // first bank's rows [num_tokens, model_dim]
  size_t num_bank = 0;
  size_t bank_stride = 0;  // elements from one bank's rows to the next bank's
  WeightId norm, proj;     // f32 [1, model_dim]
  float eps = 0;
  View out;  // [num_tokens, model_dim]; not prefix
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;

  // Memory. Buffers are zeroed floats. Free is deferred until enqueued ops have run.
  virtual BufferId Allocate(size_t num_elements) = 0;
  virtual void Free(BufferId buffer) = 0;
  virtual WeightId AddWeight(HostMatrix matrix) = 0;

  // Waits for every enqueued op.
  virtual void Flush() = 0;
  // Flush, then copy out or in. values: [view.rows, view.cols] dense.
  virtual void Read(const View& view, std::span<float> values) = 0;
  virtual void Write(const View& view, std::span<const float> values) = 0;

  // out[i] = table[tokens[i] - first_row], or zeros where this slice does not hold the token.
  virtual void Embed(WeightId table, size_t first_row, std::span<const int32_t> tokens,
                     const View& out) = 0;
  // y = x / sqrt(mean(x^2) + eps) * weight; y may be x. weight: f32 [1, cols].
  virtual void RmsNorm(const View& x, WeightId weight, float eps, const View& y) = 0;
  // Several products of the same x, at most kProjectionsMax.
  virtual void Linear(const View& x, std::initializer_list<Projection> projections) = 0;
  // out = beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta)
  virtual void Situ(const View& gate, const View& up, float beta, float linear_beta,
                    const View& out) = 0;
  virtual void Copy(const View& x, const View& y) = 0;
  // y += x
  virtual void Add(const View& x, const View& y) = 0;
  virtual void AttnRes(const AttnResArgs& args) = 0;
  virtual void Kda(const KdaArgs& args) = 0;
  virtual void Mla(const MlaArgs& args) = 0;
  virtual void Route(const RouteArgs& args) = 0;
  virtual void Moe(const MoeArgs& args) = 0;

  // Weight bytes that the ops so far have read, for the report: a matrix counts once an op, an
  // expert once an op that uses it.
  virtual uint64_t WeightBytesRead() const = 0;
};

}  // namespace yoke::kernels
