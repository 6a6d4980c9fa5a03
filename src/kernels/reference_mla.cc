// Gated MLA in the expanded form: K and V of every head and cached position are made from kv_b.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference_attention.h"

namespace yoke::kernels::reference {
namespace {

struct Tensors {
  Rows q, kv_a, gate, out;
  const Weight &kv_a_norm, &kv_b;
};

// The cached rows of one sequence: normed latent | k_pe, by position.
class Cache {
 public:
  Cache(Memory& memory, std::span<const BufferId> blocks, size_t row_dim) {
    for (const BufferId block : blocks) {
      blocks_.push_back(memory.At({block, 0, kCacheBlockTokens, row_dim, row_dim}));
    }
  }
  double& operator()(size_t position, size_t col) const {
    YOKE_CHECK(position / kCacheBlockTokens < blocks_.size());
    return blocks_[position / kCacheBlockTokens](position % kCacheBlockTokens, col);
  }

 private:
  std::vector<Rows> blocks_;
};

void Append(const Tensors& t, const MlaArgs& args, size_t row, const Cache& cache,
            size_t position) {
  double mean_sq = 0;
  for (size_t c = 0; c < args.rank; ++c) {
    mean_sq += t.kv_a(row, c) * t.kv_a(row, c) / static_cast<double>(args.rank);
  }
  const double scale = 1 / std::sqrt(mean_sq + static_cast<double>(args.norm_eps));
  for (size_t c = 0; c < args.rank; ++c) {
    cache(position, c) = t.kv_a(row, c) * scale * t.kv_a_norm(0, c);
  }
  for (size_t c = args.rank; c < args.rank + args.rope_dim; ++c) {
    cache(position, c) = t.kv_a(row, c);
  }
}

// Rows [first, first + dim) of kv_b times the latent of each position: [num_positions, dim].
std::vector<double> Expand(const Tensors& t, const MlaArgs& args, const Cache& cache, size_t first,
                           size_t dim, size_t num_positions) {
  std::vector<double> expanded(num_positions * dim);
  for (size_t position = 0; position < num_positions; ++position) {
    for (size_t r = 0; r < dim; ++r) {
      double sum = 0;
      for (size_t c = 0; c < args.rank; ++c) sum += t.kv_b(first + r, c) * cache(position, c);
      expanded[position * dim + r] = sum;
    }
  }
  return expanded;
}

// Turns scores into softmax weights.
void Softmax(std::vector<double>& scores) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (double& score : scores) score /= sum;
}

// One head of one segment: every row attends over positions up to its own.
void AttendHead(const Tensors& t, const MlaArgs& args, const Segment& segment, const Cache& cache,
                size_t head) {
  const size_t nope = args.nope_dim;
  const size_t kv_b_row = head * (nope + args.v_dim);
  const size_t num_positions = segment.position + segment.num_rows;
  const std::vector<double> keys = Expand(t, args, cache, kv_b_row, nope, num_positions);
  const std::vector<double> values =
      Expand(t, args, cache, kv_b_row + nope, args.v_dim, num_positions);
  const size_t q_col = head * (nope + args.rope_dim);
  for (size_t i = 0; i < segment.num_rows; ++i) {
    const size_t row = segment.first_row + i;
    std::vector<double> weights(segment.position + i + 1);
    for (size_t position = 0; position < weights.size(); ++position) {
      double dot = 0;
      for (size_t c = 0; c < nope; ++c) dot += t.q(row, q_col + c) * keys[position * nope + c];
      for (size_t c = 0; c < args.rope_dim; ++c) {
        dot += t.q(row, q_col + nope + c) * cache(position, args.rank + c);
      }
      weights[position] = dot / std::sqrt(static_cast<double>(nope + args.rope_dim));
    }
    Softmax(weights);
    for (size_t c = 0; c < args.v_dim; ++c) {
      double sum = 0;
      for (size_t position = 0; position < weights.size(); ++position) {
        sum += weights[position] * values[position * args.v_dim + c];
      }
      const size_t out_col = head * args.v_dim + c;
      t.out(row, out_col) = sum * Sigmoid(t.gate(row, out_col));
    }
  }
}

}  // namespace

void Mla(Memory& memory, const MlaArgs& args) {
  const size_t num_tokens = args.q.rows;
  const size_t row_dim = args.rank + args.rope_dim;
  const Tensors t{
      .q = memory.At(args.q, num_tokens, args.num_heads * (args.nope_dim + args.rope_dim)),
      .kv_a = memory.At(args.kv_a, num_tokens, row_dim),
      .gate = memory.At(args.gate, num_tokens, args.num_heads * args.v_dim),
      .out = memory.At(args.out, num_tokens, args.num_heads * args.v_dim),
      .kv_a_norm = memory.Use(args.kv_a_norm, 1, args.rank),
      .kv_b = memory.Use(args.kv_b, args.num_heads * (args.nope_dim + args.v_dim), args.rank)};
  YOKE_CHECK(args.caches.size() == args.segments.size());
  for (size_t s = 0; s < args.segments.size(); ++s) {
    const Segment& segment = args.segments[s];
    YOKE_CHECK(segment.prefill || segment.num_rows == 1);
    const Cache cache(memory, args.caches[s], row_dim);
    for (size_t i = 0; i < segment.num_rows; ++i) {
      Append(t, args, segment.first_row + i, cache, segment.position + i);
    }
    for (size_t head = 0; head < args.num_heads; ++head) {
      AttendHead(t, args, segment, cache, head);
    }
  }
}

}  // namespace yoke::kernels::reference
