// Gated multi-head latent attention, absorbed: queries are taken into the latent space, so that all
// heads share one cached row per position.
//
// Phases: append the step's rows to the caches; attend, up to MlaTask::kQueries queries (heads
// times tokens of one segment) at a time. The softmax is carried along in groups of kPositions
// absolute positions, so that a token meets the same sums whichever tokens share its tile.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu_ops.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "kernels/simd-inl.h"

#ifndef YOKE_KERNELS_MLA_SCRATCH_
#define YOKE_KERNELS_MLA_SCRATCH_
namespace yoke::kernels::cpu {
namespace {

static_assert(kCacheBlockTokens % MlaTask::kPositions == 0);
constexpr size_t kKeyRows = 16;  // rows of kv_b that are unpacked together

// One thread's memory for one tile. Without memory only num_floats means something.
struct MlaScratch {
  MlaScratch(const MlaArgs& args, float* memory)
      : query_stride(RoundUp(args.rank + args.rope_dim, kBlockCols)),
        latent_stride(RoundUp(args.rank, kBlockCols)),
        value_stride(RoundUp(args.v_dim, kBlockCols)) {
    const auto take = [&](size_t count) {
      float* part = memory != nullptr ? memory + num_floats : nullptr;
      num_floats += RoundUp(count, kBlockCols);
      return part;
    };
    query = take(MlaTask::kQueries * query_stride);
    latent = take(MlaTask::kQueries * latent_stride);
    value = take(MlaTask::kQueries * value_stride);
    probs = take(MlaTask::kQueries * MlaTask::kPositions);
    keys = take(kKeyRows * latent_stride);
    matmul = take(kMatMulScratch);
  }

  size_t num_floats = 0;
  size_t query_stride, latent_stride, value_stride;
  float* query;   // [kQueries, query_stride]: W_UK^T q_nope | q_pe, zeros behind
  float* latent;  // [kQueries, latent_stride]: sum of p_t row_t, zeros behind
  float* value;   // [kQueries, value_stride]: W_UV latent
  float* probs;   // [kQueries, kPositions]: scores, then e^(score - max)
  float* keys;    // [kKeyRows, latent_stride]
  float* matmul;
};

}  // namespace
}  // namespace yoke::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

void Append(const MlaTask& task, const Worker& worker) {
  const MlaArgs& args = task.args;
  const size_t row_floats = args.rank + args.rope_dim;
  size_t row = 0;
  while (worker.Next(task.kv_a.rows, row)) {
    size_t s = 0;
    while (s < args.segments.size() &&
           row - args.segments[s].first_row >= args.segments[s].num_rows) {
      ++s;
    }
    if (s == args.segments.size()) continue;  // a row of no segment
    const size_t position = args.segments[s].position + row - args.segments[s].first_row;
    float* block = task.buffers->Data(args.caches[s][position / kCacheBlockTokens]);
    float* cached = block + position % kCacheBlockTokens * row_floats;
    const float* x = task.kv_a.Row(row);
    const float mean = Dot(x, x, args.rank) / static_cast<float>(args.rank);
    ScaleRow(x, 1 / std::sqrt(mean + args.norm_eps), task.kv_a_norm, args.rank, cached);
    std::memcpy(cached + args.rank, x + args.rank, args.rope_dim * sizeof(float));
  }
}

// Some heads, and tokens [first_row, first_row + num_tokens) of one segment. Query i is of head
// first_head + i / num_tokens and token i % num_tokens.
struct Tile {
  const MlaTask& task;
  const MlaScratch& s;
  size_t first_head = 0;
  size_t num_heads = 0;
  size_t segment = 0;
  size_t first_row = 0;
  size_t num_tokens = 0;
  size_t position = 0;  // of the first token
  float max[MlaTask::kQueries] = {};
  float sum[MlaTask::kQueries] = {};  // of e^(score - max)

  size_t NumQueries() const { return num_heads * num_tokens; }
};

// out[q][c] += sum_r coef[q][r] rows[r][c], r ascending.
struct AddRowsArgs {
  const float* rows;  // [num_rows, num_cols]
  size_t row_stride, num_rows, num_cols;
  const float* coef;  // [num_queries, num_rows]
  size_t coef_stride, num_queries;
  float* out;  // [num_queries, num_cols]
  size_t out_stride;
};

// For kQueries queries from `query` on and kVectors vectors of columns from `col` on.
template <size_t kQueries, size_t kVectors, class D>
HWY_INLINE void AddRowsTile(D d, const AddRowsArgs& args, size_t query, size_t col) {
  const float* coef = args.coef + query * args.coef_stride;
  float* out = args.out + query * args.out_stride + col;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sums[kQueries][kVectors];
  for (size_t q = 0; q < kQueries; ++q) {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[q][v] = hn::LoadU(d, out + q * args.out_stride + v * lanes);
    }
  }
  for (size_t r = 0; r < args.num_rows; ++r) {
    hn::Vec<D> row[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      row[v] = hn::LoadU(d, args.rows + r * args.row_stride + col + v * lanes);
    }
    for (size_t q = 0; q < kQueries; ++q) {
      const auto factor = hn::Set(d, coef[q * args.coef_stride + r]);
      for (size_t v = 0; v < kVectors; ++v) sums[q][v] = hn::MulAdd(factor, row[v], sums[q][v]);
    }
  }
  for (size_t q = 0; q < kQueries; ++q) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[q][v], d, out + q * args.out_stride + v * lanes);
    }
  }
}

// For all queries: the rows stay in the first-level cache meanwhile.
template <size_t kVectors, class D>
HWY_INLINE void AddRowsCols(D d, const AddRowsArgs& args, size_t col) {
  size_t query = 0;
  for (; query + 4 <= args.num_queries; query += 4) AddRowsTile<4, kVectors>(d, args, query, col);
  for (; query < args.num_queries; ++query) AddRowsTile<1, kVectors>(d, args, query, col);
}

void AddRows(const AddRowsArgs& args) {
  constexpr size_t kVectors = kManyRegisters ? 4 : 2;
  size_t col = 0;
  for (; col + kVectors * kLanes <= args.num_cols; col += kVectors * kLanes) {
    AddRowsCols<kVectors>(FloatTag(), args, col);
  }
  for (; col + kLanes <= args.num_cols; col += kLanes) AddRowsCols<1>(FloatTag(), args, col);
  for (; col < args.num_cols; ++col) AddRowsCols<1>(OneFloatTag(), args, col);
}

// query = W_UK^T q_nope | q_pe, scaled, for all tokens of the tile and its head number h.
void AbsorbQueries(const Tile& tile, size_t h) {
  const MlaArgs& args = tile.task.args;
  const MlaScratch& s = tile.s;
  const size_t head = tile.first_head + h;
  const size_t q_dim = args.nope_dim + args.rope_dim;
  float* queries = s.query + h * tile.num_tokens * s.query_stride;
  std::memset(queries, 0, tile.num_tokens * s.query_stride * sizeof(float));
  const float* q = tile.task.q.Row(tile.first_row) + head * q_dim;
  const size_t first_key = head * (args.nope_dim + args.v_dim);
  for (size_t r = 0; r < args.nope_dim; r += kKeyRows) {
    const size_t num_rows = std::min(kKeyRows, args.nope_dim - r);
    DecodeRows(tile.task.kv_b, first_key + r, num_rows, s.keys, s.latent_stride);
    AddRows({.rows = s.keys,
             .row_stride = s.latent_stride,
             .num_rows = num_rows,
             .num_cols = args.rank,
             .coef = q + r,
             .coef_stride = tile.task.q.stride,
             .num_queries = tile.num_tokens,
             .out = queries,
             .out_stride = s.query_stride});
  }
  const float scale = 1 / std::sqrt(static_cast<float>(q_dim));
  for (size_t t = 0; t < tile.num_tokens; ++t) {
    float* query = queries + t * s.query_stride;
    std::memcpy(query + args.rank, q + t * tile.task.q.stride + args.nope_dim,
                args.rope_dim * sizeof(float));
    ForEachVector(args.rank + args.rope_dim, [&](auto d, size_t c) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, query + c), hn::Set(d, scale)), d, query + c);
    });
  }
}

// Scores of one query become e^(score - max); what was summed so far is scaled to the new maximum.
// num_seen of the num_positions are not in its future.
void UpdateSoftmax(Tile& tile, size_t query, size_t num_seen, size_t num_positions) {
  const MlaScratch& s = tile.s;
  float* probs = s.probs + query * MlaTask::kPositions;
  if (num_seen > 0) {
    const float old_max = tile.max[query];
    for (size_t i = 0; i < num_seen; ++i) tile.max[query] = std::max(tile.max[query], probs[i]);
    const float max = tile.max[query];
    if (max != old_max) {
      const OneFloatTag one;
      const float scale = hn::GetLane(hn::Exp(one, hn::Set(one, old_max - max)));
      tile.sum[query] *= scale;
      float* latent = s.latent + query * s.latent_stride;
      ForEachVector(tile.task.args.rank, [&](auto d, size_t c) HWY_ATTR {
        hn::StoreU(hn::Mul(hn::LoadU(d, latent + c), hn::Set(d, scale)), d, latent + c);
      });
    }
    ForEachVector(num_seen, [&](auto d, size_t i) HWY_ATTR {
      const auto score = hn::Sub(hn::LoadU(d, probs + i), hn::Set(d, max));
      hn::StoreU(hn::Exp(d, score), d, probs + i);
    });
    for (size_t i = 0; i < num_seen; ++i) tile.sum[query] += probs[i];
  }
  std::fill(probs + num_seen, probs + num_positions, 0.0F);
}

// latent = sum over the positions a query may see of softmax weight (not yet divided) * cached row.
void AttendTile(Tile& tile) {
  const MlaArgs& args = tile.task.args;
  const MlaScratch& s = tile.s;
  const size_t row_floats = args.rank + args.rope_dim;
  const size_t num_queries = tile.NumQueries();
  std::memset(s.latent, 0, num_queries * s.latent_stride * sizeof(float));
  std::fill_n(tile.max, num_queries, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, num_queries, 0.0F);
  const size_t end = tile.position + tile.num_tokens;
  for (size_t first = 0; first < end; first += MlaTask::kPositions) {
    const size_t count = std::min(MlaTask::kPositions, end - first);
    const float* block =
        tile.task.buffers->Data(args.caches[tile.segment][first / kCacheBlockTokens]);
    const float* rows = block + first % kCacheBlockTokens * row_floats;
    const Weight cached{.dtype = DType::kF32,
                        .rows = count,
                        .cols = row_floats,
                        .data = reinterpret_cast<const std::byte*>(rows),
                        .scales = nullptr,
                        .data_stride = row_floats * sizeof(float),
                        .scale_stride = 0};
    MatMulRows({.w = cached,
                .first_row = 0,
                .num_rows = count,
                .x = {s.query, s.query_stride, nullptr},
                .num_tokens = num_queries,
                .y = {s.probs, MlaTask::kPositions, nullptr},
                .scratch = s.matmul});
    for (size_t i = 0; i < num_queries; ++i) {
      const size_t seen_end = tile.position + i % tile.num_tokens + 1;
      UpdateSoftmax(tile, i, seen_end > first ? std::min(count, seen_end - first) : 0, count);
    }
    AddRows({.rows = rows,
             .row_stride = row_floats,
             .num_rows = count,
             .num_cols = args.rank,
             .coef = s.probs,
             .coef_stride = MlaTask::kPositions,
             .num_queries = num_queries,
             .out = s.latent,
             .out_stride = s.latent_stride});
  }
}

// out = (W_UV latent / sum) * sigmoid(gate), for all tokens of the tile and its head number h.
void StoreValues(const Tile& tile, size_t h) {
  const MlaArgs& args = tile.task.args;
  const MlaScratch& s = tile.s;
  const size_t head = tile.first_head + h;
  const size_t first_query = h * tile.num_tokens;
  MatMulRows({.w = tile.task.kv_b,
              .first_row = head * (args.nope_dim + args.v_dim) + args.nope_dim,
              .num_rows = args.v_dim,
              .x = {s.latent + first_query * s.latent_stride, s.latent_stride, nullptr},
              .num_tokens = tile.num_tokens,
              .y = {s.value, s.value_stride, nullptr},
              .scratch = s.matmul});
  for (size_t t = 0; t < tile.num_tokens; ++t) {
    const float* value = s.value + t * s.value_stride;
    const float* gate = tile.task.gate.Row(tile.first_row + t) + head * args.v_dim;
    float* out = tile.task.out.Row(tile.first_row + t) + head * args.v_dim;
    const float scale = 1 / tile.sum[first_query + t];
    ForEachVector(args.v_dim, [&](auto d, size_t c) HWY_ATTR {
      const auto v = hn::Mul(hn::LoadU(d, value + c), hn::Set(d, scale));
      hn::StoreU(hn::Mul(v, Sigmoid(d, hn::LoadU(d, gate + c))), d, out + c);
    });
  }
}

void Attend(const MlaTask& task, const Worker& worker) {
  const MlaArgs& args = task.args;
  const MlaScratch scratch(args, worker.scratch());
  size_t unit = 0;
  while (worker.Next(task.num_units, unit)) {
    size_t segment_idx = 0;
    for (; unit >= task.NumTiles(args.segments[segment_idx]); ++segment_idx) {
      unit -= task.NumTiles(args.segments[segment_idx]);
    }
    const Segment& segment = args.segments[segment_idx];
    const size_t heads = task.HeadsOfTile(segment);
    const size_t num_groups = CeilDiv(args.num_heads, heads);
    const size_t first_token = unit / num_groups * MlaTask::kQueries;
    Tile tile{.task = task, .s = scratch, .first_head = unit % num_groups * heads};
    tile.num_heads = std::min(heads, args.num_heads - tile.first_head);
    tile.segment = segment_idx;
    tile.first_row = segment.first_row + first_token;
    tile.num_tokens = std::min(MlaTask::kQueries, segment.num_rows - first_token);
    tile.position = segment.position + first_token;
    for (size_t h = 0; h < tile.num_heads; ++h) AbsorbQueries(tile, h);
    AttendTile(tile);
    for (size_t h = 0; h < tile.num_heads; ++h) StoreValues(tile, h);
  }
}

void MlaPhase(const MlaTask& task, size_t phase, const Worker& worker) {
  if (phase == 0) {
    Append(task, worker);
  } else {
    Attend(task, worker);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace yoke::kernels::cpu {

HWY_EXPORT(MlaPhase);

size_t MlaTask::HeadsOfTile(const Segment& segment) const {
  return std::clamp<size_t>(kQueries / std::max<size_t>(segment.num_rows, 1), 1, heads_max);
}

size_t MlaTask::NumTiles(const Segment& segment) const {
  return CeilDiv(segment.num_rows, kQueries) * CeilDiv(args.num_heads, HeadsOfTile(segment));
}

size_t MlaTask::ScratchFloats() const {
  return MlaScratch(args, nullptr).num_floats;
}

void Run(const MlaTask& task, size_t phase, const Worker& worker) {
  HWY_DYNAMIC_DISPATCH(MlaPhase)(task, phase, worker);
}

}  // namespace yoke::kernels::cpu
#endif  // HWY_ONCE
