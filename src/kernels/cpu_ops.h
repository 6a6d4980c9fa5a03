// What the CPU backend enqueues: each op as a task of plain pointers, and the kernels that run it.
// A task has phases; a barrier lies between two phases. Within a phase every thread calls the
// kernel with the same task and takes units of work from its Worker. Internal to cpu_backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/thread_pool.h"
#include "tensor/dtype.h"

namespace yoke::kernels::cpu {

// Rows of one weight are worked on in groups of this many.
constexpr size_t kRowGroup = 16;
// Scratch that MatMulRows needs, in floats: 16 partial sums of each row and token that it works on
// at a time, and a panel of unpacked weights.
constexpr size_t kMatMulTokens = 64;
constexpr size_t kPanelCols = 256;
constexpr size_t kMatMulScratch = kRowGroup * (kMatMulTokens * 16 + kPanelCols);

constexpr size_t CeilDiv(size_t a, size_t b) {
  return (a + b - 1) / b;
}
constexpr size_t RoundUp(size_t a, size_t b) {
  return CeilDiv(a, b) * b;
}

// [rows, cols] of activations in memory. Does not own.
struct Rows {
  float* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  float* Row(size_t row) const { return data + row * stride; }
};

// A HostMatrix, without owning it.
struct Weight {
  DType dtype = DType::kF32;
  size_t rows = 0;
  size_t cols = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  size_t data_stride = 0;   // bytes from row to row
  size_t scale_stride = 0;  // likewise

  const float* f32() const { return reinterpret_cast<const float*>(data); }
};

// One thread's part in a phase.
class Worker {
 public:
  Worker(ThreadPool& pool, float* shared, float* scratch)
      : pool_(pool), shared_(shared), scratch_(scratch) {}

  // Sets unit to the next one that no thread has taken; false when there is none left.
  bool Next(size_t num_units, size_t& unit) const {
    unit = pool_.NextUnit();
    return unit < num_units;
  }
  // For results that pass from phase to phase of one task. The same for all threads.
  float* shared() const { return shared_; }
  // This thread's own, for one phase.
  float* scratch() const { return scratch_; }

 private:
  ThreadPool& pool_;
  float* shared_;
  float* scratch_;
};

// Rows picked from a matrix: the i-th is row index[i], or row i without an index.
struct PickedRows {
  float* data = nullptr;
  size_t stride = 0;
  const uint32_t* index = nullptr;

  float* Row(size_t i) const { return data + (index != nullptr ? index[i] : i) * stride; }
};

// The order in which a row of x must lie for products with a weight of this dtype: MXFP4 wants, in
// each block of 32, the even columns before the odd ones. Both are padded with zeros to
// RoundUp(cols, kBlockCols).
bool WantsEvenOdd(DType dtype);
// out: [RoundUp(cols, kBlockCols)]
void PackRow(const float* x, size_t cols, bool even_odd, float* out);

// y[t][r] = sum_c w[first_row + r][c] x[t][c] for r < num_rows. x rows are packed, except
// that whole blocks of a dtype without WantsEvenOdd may be read in place. The order of summation
// depends on nothing but w.cols. scratch: [kMatMulScratch].
struct MatMulArgs {
  Weight w;
  size_t first_row = 0;
  size_t num_rows = 0;
  PickedRows x;
  size_t num_tokens = 0;
  PickedRows y;
  float* scratch = nullptr;
  // This thread will go on with the rows after these, up to next_end: they may be prefetched.
  size_t next_end = 0;
};
void MatMulRows(const MatMulArgs& args);

// out[r][c] = w[first_row + r][c] as floats. out: [num_rows, out_stride].
void DecodeRows(const Weight& w, size_t first_row, size_t num_rows, float* out, size_t out_stride);

// How many rows make a unit of work, out of num_rows for all threads: a multiple of kRowGroup.
size_t RowsOfUnit(size_t num_rows, size_t num_threads);

struct LinearTask {
  Rows x;
  size_t unit_rows = kRowGroup;
  size_t num_projections = 0;
  Weight weights[kProjectionsMax] = {};
  Rows y[kProjectionsMax] = {};
  bool pack_plain = false;     // x's width is no multiple of a block
  bool pack_even_odd = false;  // a weight wants it
  size_t num_phases() const { return pack_plain || pack_even_odd ? 2 : 1; }
  size_t SharedFloats() const { return 2 * x.rows * RoundUp(x.cols, kBlockCols); }
};
void Run(const LinearTask& task, size_t phase, const Worker& worker);

struct EmbedTask {
  Weight table;
  size_t first_row = 0;
  const int32_t* tokens = nullptr;
  Rows out;
  size_t num_phases() const { return 1; }
};
void Run(const EmbedTask& task, size_t phase, const Worker& worker);

struct RmsNormTask {
  Rows x;
  const float* weight = nullptr;
  float eps = 0;
  Rows y;
  size_t num_phases() const { return 1; }
};
void Run(const RmsNormTask& task, size_t phase, const Worker& worker);

struct SituTask {
  Rows gate, up, out;
  float beta = 0;
  float linear_beta = 0;
  size_t num_phases() const { return 1; }
};
void Run(const SituTask& task, size_t phase, const Worker& worker);

// y = x, or y += x.
struct CopyTask {
  Rows x, y;
  bool add = false;
  size_t num_phases() const { return 1; }
};
void Run(const CopyTask& task, size_t phase, const Worker& worker);

struct AttnResTask {
  static constexpr size_t kCols = 1024;   // of one unit
  static constexpr size_t kBankMax = 64;  // K3 has 8
  Rows prefix;
  const float* bank = nullptr;
  size_t num_bank = 0;
  size_t bank_row_stride = 0;
  size_t bank_stride = 0;
  const float* norm = nullptr;
  const float* proj = nullptr;
  float eps = 0;
  Rows out;
  size_t num_phases() const { return 2; }
  size_t NumParts() const { return CeilDiv(prefix.cols, kCols); }
  // Partial (sum of squares, product with the query): [rows, NumParts, num_bank + 1, 2]
  size_t SharedFloats() const { return prefix.rows * NumParts() * (num_bank + 1) * 2; }
};
void Run(const AttnResTask& task, size_t phase, const Worker& worker);

// A View of per-segment state or a cache block, once its buffer is known.
class BufferTable {
 public:
  virtual ~BufferTable() = default;
  virtual float* Data(BufferId id) const = 0;
};

struct KdaTask {
  KdaArgs args;  // only sizes and spans are used from here
  Rows q, k, v, forget, beta, gate, out;
  const float* q_conv = nullptr;
  const float* k_conv = nullptr;
  const float* v_conv = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* o_norm = nullptr;
  const BufferTable* buffers = nullptr;
  size_t num_phases() const { return 1; }
  size_t ScratchFloats() const;
};
void Run(const KdaTask& task, size_t phase, const Worker& worker);

struct MlaTask {
  static constexpr size_t kQueries = 16;    // of one tile: heads times tokens
  static constexpr size_t kPositions = 64;  // between two updates of the softmax
  MlaArgs args;                             // only sizes and spans are used from here
  Rows q, kv_a, gate, out;
  const float* kv_a_norm = nullptr;
  Weight kv_b;
  // Heads of one tile share what they read of the cache; fewer keep more threads busy.
  size_t heads_max = 1;
  size_t num_units = 0;  // tiles of all segments
  const BufferTable* buffers = nullptr;
  size_t num_phases() const { return 2; }
  size_t HeadsOfTile(const Segment& segment) const;
  size_t NumTiles(const Segment& segment) const;
  size_t ScratchFloats() const;
};
void Run(const MlaTask& task, size_t phase, const Worker& worker);

struct RouteTask {
  size_t top_k = 0;
  bool renormalize = true;
  float scale = 1;
  Rows logits;
  const float* bias = nullptr;
  Rows expert_ids, weights;
  size_t num_phases() const { return 1; }
  size_t ScratchFloats() const { return 2 * RoundUp(logits.cols, 16); }
};
void Run(const RouteTask& task, size_t phase, const Worker& worker);

struct MoeTask {
  size_t num_experts = 0;
  size_t inner = 0;
  size_t inner_offset = 0;
  size_t w1_unit_rows = kRowGroup;  // of w3 too
  size_t w2_unit_rows = kRowGroup;
  float situ_beta = 0;
  float situ_linear_beta = 0;
  Rows z, expert_ids, weights, y;
  Weight w1, w3, w2;
  uint64_t* weight_bytes_read = nullptr;  // added to by one thread
  size_t num_phases() const { return 4; }
  size_t NumPairs() const { return expert_ids.rows * expert_ids.cols; }
  size_t SharedFloats() const;
  size_t ScratchFloats() const;
};
void Run(const MoeTask& task, size_t phase, const Worker& worker);

}  // namespace yoke::kernels::cpu
