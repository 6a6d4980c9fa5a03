// Products of activations with weights. Few tokens: weights stream through registers, four rows at
// a time. More tokens: sixteen rows are unpacked into a panel in the first-level cache, which all
// tokens then use. Both add up the same partial sums in the same order.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu_ops.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include <hwy/cache_control.h>

#include "kernels/decode-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kTileRows = 4;
// Tokens of one register tile.
constexpr size_t kTileTokens = kManyRegisters ? 4 : 2;
// Up to so many tokens, their sums of kTileRows rows stay in registers.
constexpr size_t kFewTokens = kManyRegisters && kSlices == 1 ? 4 : 1;

// y[r] = the sum of row r's partial sums, for r < num_rows <= kTileRows.
HWY_INLINE void StoreSums(const FloatVec (&rows)[kTileRows], size_t num_rows, float* y) {
  const hn::Full128<float> d4;
  if (num_rows == kTileRows) {
    hn::StoreU(SumOfLanes4(rows), d4, y);
    return;
  }
  alignas(16) float sums[kTileRows];
  hn::Store(SumOfLanes4(rows), d4, sums);
  std::copy_n(sums, num_rows, y);
}

HWY_INLINE void AddBlock(const FloatVec (&w)[kBlockVectors], const FloatVec (&x)[kBlockVectors],
                         FloatVec (&sums)[kSlices]) {
  for (size_t i = 0; i < kBlockVectors; ++i) {
    sums[i % kSlices] = hn::MulAdd(w[i], x[i], sums[i % kSlices]);
  }
}

HWY_INLINE void LoadBlock(const float* x, FloatVec (&out)[kBlockVectors]) {
  for (size_t i = 0; i < kBlockVectors; ++i) out[i] = hn::LoadU(FloatTag(), x + i * kLanes);
}

constexpr size_t kLineBytes = 64;  // of the caches

// Rows of packed formats are so short that the hardware does not get far ahead: asking for the next
// rows takes cold MXFP4 from 5.9 to 9.9 GB/s on one core of a Xeon (Sapphire Rapids), Q8_0 from 8.1
// to 11.3, BF16 from 12 to 13.2; F32 loses.
template <DType kType>
constexpr bool kPrefetch = kType != DType::kF32;

// kScaleBlocks blocks of a row.
HWY_INLINE void PrefetchRow(const std::byte* row, size_t first_block, size_t block_bytes) {
  for (size_t i = 0; i < kScaleBlocks * block_bytes; i += kLineBytes) {
    hwy::Prefetch(row + first_block * block_bytes + i);
  }
}

// y[t][r] = w[row + r] x[t] for r < kRows, t < kTokens. `ahead`: the kRows rows after these come
// next.
template <DType kType, size_t kRows, size_t kTokens>
void FewTokensRows(const Weight& w, size_t row, bool ahead, const float* const* x,
                   float* const* y) {
  const FloatTag d;
  FloatVec sums[kTokens][kRows][kSlices];
  const std::byte* data[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t t = 0; t < kTokens; ++t) {
      for (FloatVec& sum : sums[t][r]) sum = hn::Zero(d);
    }
    data[r] = w.data + (row + r) * w.data_stride;
  }
  const size_t num_blocks = w.cols / kBlockCols;
  FloatVec x_block[kTokens][kBlockVectors];
  FloatVec w_block[kBlockVectors];
  RowScales<kType> scales[kRows];
  for (size_t first = 0; first < num_blocks; first += kScaleBlocks) {
    const size_t count = std::min(kScaleBlocks, num_blocks - first);
    for (size_t r = 0; r < kRows; ++r) {
      const size_t offset = first * BlockScaleBytes(kType);
      scales[r].Load(w.scales + (row + r) * w.scale_stride + offset, count);
      if (kPrefetch<kType> && ahead)
        PrefetchRow(data[r] + kRows * w.data_stride, first, BlockBytes(kType));
    }
    for (size_t b = 0; b < count; ++b) {
      for (size_t t = 0; t < kTokens; ++t) LoadBlock(x[t] + (first + b) * kBlockCols, x_block[t]);
      for (size_t r = 0; r < kRows; ++r) {
        DecodeBlock<kType>(data[r] + (first + b) * BlockBytes(kType), scales[r][b], w_block);
        for (size_t t = 0; t < kTokens; ++t) AddBlock(w_block, x_block[t], sums[t][r]);
      }
    }
  }
  if (const size_t rest = w.cols % kBlockCols; rest != 0) {
    for (size_t t = 0; t < kTokens; ++t) LoadBlock(x[t] + num_blocks * kBlockCols, x_block[t]);
    for (size_t r = 0; r < kRows; ++r) {
      DecodePartBlock<kType>(data[r] + num_blocks * BlockBytes(kType), rest, w_block);
      for (size_t t = 0; t < kTokens; ++t) AddBlock(w_block, x_block[t], sums[t][r]);
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    FloatVec rows[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) {
      rows[r] = r < kRows ? AddSlices(sums[t][r % kRows]) : hn::Zero(d);
    }
    StoreSums(rows, kRows, y[t]);
  }
}

// All rows of args, for tokens [first_token, first_token + kTokens).
template <DType kType, size_t kTokens>
void FewTokens(const MatMulArgs& args, size_t first_token) {
  const float* x[kTokens];
  for (size_t t = 0; t < kTokens; ++t) x[t] = args.x.Row(first_token + t);
  float* y[kTokens];
  const size_t end = args.first_row + args.num_rows;
  for (size_t row = args.first_row; row < end;) {
    for (size_t t = 0; t < kTokens; ++t) {
      y[t] = args.y.Row(first_token + t) + (row - args.first_row);
    }
    if (end - row >= kTileRows) {
      const bool ahead = row + 2 * kTileRows <= std::max(end, args.next_end);
      FewTokensRows<kType, kTileRows, kTokens>(args.w, row, ahead, x, y);
      row += kTileRows;
    } else {
      FewTokensRows<kType, 1, kTokens>(args.w, row, false, x, y);
      ++row;
    }
  }
}

template <DType kType>
void AtMostFewTokens(const MatMulArgs& args) {
  if constexpr (kFewTokens == 4) {
    switch (args.num_tokens) {
      case 4:
        return FewTokens<kType, 4>(args, 0);
      case 3:
        return FewTokens<kType, 3>(args, 0);
      case 2:
        return FewTokens<kType, 2>(args, 0);
      default:
        break;
    }
  }
  FewTokens<kType, 1>(args, 0);
}

// Columns [first_col, first_col + num_cols) of a row as floats, up to a whole block with zeros.
// first_col is a multiple of kBlockCols * kScaleBlocks or of kPanelCols.
template <DType kType>
void DecodeCols(const Weight& w, size_t row, size_t first_col, size_t num_cols, float* out) {
  const FloatTag d;
  FloatVec block[kBlockVectors];
  const size_t first_block = first_col / kBlockCols;
  const std::byte* data = w.data + row * w.data_stride + first_block * BlockBytes(kType);
  const std::byte* scale_row =
      w.scales + row * w.scale_stride + first_block * BlockScaleBytes(kType);
  RowScales<kType> scales;
  const size_t num_blocks = num_cols / kBlockCols;
  for (size_t b = 0; b < num_blocks; ++b) {
    if (b % kScaleBlocks == 0) {
      scales.Load(scale_row + b * BlockScaleBytes(kType), std::min(kScaleBlocks, num_blocks - b));
    }
    DecodeBlock<kType>(data + b * BlockBytes(kType), scales[b % kScaleBlocks], block);
    for (size_t i = 0; i < kBlockVectors; ++i) {
      hn::StoreU(block[i], d, out + b * kBlockCols + i * kLanes);
    }
  }
  if (const size_t rest = num_cols % kBlockCols; rest != 0) {
    DecodePartBlock<kType>(data + num_blocks * BlockBytes(kType), rest, block);
    for (size_t i = 0; i < kBlockVectors; ++i) {
      hn::StoreU(block[i], d, out + num_blocks * kBlockCols + i * kLanes);
    }
  }
}

void DecodeColsOf(const Weight& w, size_t row, size_t first_col, size_t num_cols, float* out) {
  switch (w.dtype) {
    case DType::kF32:
      return DecodeCols<DType::kF32>(w, row, first_col, num_cols, out);
    case DType::kBf16:
      return DecodeCols<DType::kBf16>(w, row, first_col, num_cols, out);
    case DType::kQ8_0:
      return DecodeCols<DType::kQ8_0>(w, row, first_col, num_cols, out);
    case DType::kMxfp4:
      return DecodeCols<DType::kMxfp4>(w, row, first_col, num_cols, out);
  }
}

// Rows of weights as floats, in a panel or where they are stored.
struct FloatRows {
  const float* data = nullptr;
  size_t stride = 0;
};

// Adds kTileRows rows of w times kTokens rows of x to their partial sums.
// sums: [kTokens, kRowGroup, kPartialSums]
template <size_t kTokens>
HWY_INLINE void AddTile(const FloatRows& w, size_t num_cols, const float* const* x, float* sums) {
  const FloatTag d;
  for (size_t s = 0; s < kSlices; ++s) {
    FloatVec acc[kTokens][kTileRows];
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t r = 0; r < kTileRows; ++r) {
        acc[t][r] = hn::Load(d, sums + (t * kRowGroup + r) * kPartialSums + s * kLanes);
      }
    }
    for (size_t c = s * kLanes; c < num_cols; c += kPartialSums) {
      FloatVec w_v[kTileRows];
      for (size_t r = 0; r < kTileRows; ++r) w_v[r] = hn::LoadU(d, w.data + r * w.stride + c);
      for (size_t t = 0; t < kTokens; ++t) {
        const FloatVec x_v = hn::LoadU(d, x[t] + c);
        for (size_t r = 0; r < kTileRows; ++r) acc[t][r] = hn::MulAdd(w_v[r], x_v, acc[t][r]);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t r = 0; r < kTileRows; ++r) {
        hn::Store(acc[t][r], d, sums + (t * kRowGroup + r) * kPartialSums + s * kLanes);
      }
    }
  }
}

// Some rows and tokens of MatMulArgs, counted from the first ones there.
struct Part {
  size_t first_row, num_rows;      // at most kRowGroup
  size_t first_token, num_tokens;  // at most kMatMulTokens
};

// The part's rows w times its tokens, over num_cols columns from first_col on.
// Partial sums: args.scratch [num_tokens, kRowGroup, kPartialSums].
void AddRows(const MatMulArgs& args, const Part& part, const FloatRows& w, size_t first_col,
             size_t num_cols) {
  for (size_t t = 0; t < part.num_tokens;) {
    const size_t count = part.num_tokens - t >= kTileTokens ? kTileTokens : 1;
    const float* x[kTileTokens];
    for (size_t i = 0; i < count; ++i) x[i] = args.x.Row(part.first_token + t + i) + first_col;
    for (size_t r = 0; r < part.num_rows; r += kTileRows) {
      float* sums = args.scratch + (t * kRowGroup + r) * kPartialSums;
      const FloatRows tile{w.data + r * w.stride, w.stride};
      if (count == kTileTokens) {
        AddTile<kTileTokens>(tile, num_cols, x, sums);
      } else {
        AddTile<1>(tile, num_cols, x, sums);
      }
    }
    t += count;
  }
}

// Columns [first_col, first_col + num_cols) of num_rows rows, at most kRowGroup, as floats; zeros
// behind them up to a whole block. More rows, which do not matter, up to a multiple of kTileRows.
FloatRows UnpackPanel(const Weight& w, size_t first_row, size_t num_rows, size_t first_col,
                      size_t num_cols, float* panel) {
  if (w.dtype == DType::kF32 && num_rows % kTileRows == 0 && num_cols % kBlockCols == 0) {
    return {w.f32() + first_row * w.cols + first_col, w.cols};
  }
  for (size_t r = 0; r < num_rows; ++r) {
    DecodeColsOf(w, first_row + r, first_col, num_cols, panel + r * kPanelCols);
  }
  return {panel, kPanelCols};
}

void ManyTokens(const MatMulArgs& args, const Part& part) {
  const FloatTag d;
  float* panel = args.scratch + kMatMulTokens * kRowGroup * kPartialSums;
  std::memset(args.scratch, 0, part.num_tokens * kRowGroup * kPartialSums * sizeof(float));
  for (size_t c = 0; c < args.w.cols; c += kPanelCols) {
    const size_t num_cols = std::min(kPanelCols, args.w.cols - c);
    const size_t row = args.first_row + part.first_row;
    const FloatRows w = UnpackPanel(args.w, row, part.num_rows, c, num_cols, panel);
    AddRows(args, part, w, c, RoundUp(num_cols, kBlockCols));
  }
  for (size_t t = 0; t < part.num_tokens; ++t) {
    float* y = args.y.Row(part.first_token + t) + part.first_row;
    for (size_t r = 0; r < part.num_rows; r += kTileRows) {
      FloatVec rows[kTileRows];
      for (size_t i = 0; i < kTileRows; ++i) {
        const float* sums = args.scratch + (t * kRowGroup + r + i) * kPartialSums;
        FloatVec partial[kSlices];
        for (size_t s = 0; s < kSlices; ++s) partial[s] = hn::Load(d, sums + s * kLanes);
        rows[i] = AddSlices(partial);
      }
      StoreSums(rows, std::min(kTileRows, part.num_rows - r), y + r);
    }
  }
}

void MatMulRowsImpl(const MatMulArgs& args) {
  if (args.num_tokens <= kFewTokens) {
    switch (args.w.dtype) {
      case DType::kF32:
        return AtMostFewTokens<DType::kF32>(args);
      case DType::kBf16:
        return AtMostFewTokens<DType::kBf16>(args);
      case DType::kQ8_0:
        return AtMostFewTokens<DType::kQ8_0>(args);
      case DType::kMxfp4:
        return AtMostFewTokens<DType::kMxfp4>(args);
    }
  }
  for (size_t r = 0; r < args.num_rows; r += kRowGroup) {
    const size_t num_rows = std::min(kRowGroup, args.num_rows - r);
    for (size_t t = 0; t < args.num_tokens; t += kMatMulTokens) {
      ManyTokens(args, {r, num_rows, t, std::min(kMatMulTokens, args.num_tokens - t)});
    }
  }
}

void DecodeRowsImpl(const Weight& w, size_t first_row, size_t num_rows, float* out,
                    size_t out_stride) {
  alignas(64) float part[kPanelCols];
  for (size_t r = 0; r < num_rows; ++r) {
    for (size_t c = 0; c < w.cols; c += kPanelCols) {
      const size_t num_cols = std::min(kPanelCols, w.cols - c);
      DecodeColsOf(w, first_row + r, c, num_cols, part);
      std::memcpy(out + r * out_stride + c, part, num_cols * sizeof(float));
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace yoke::kernels::cpu {

HWY_EXPORT(MatMulRowsImpl);
HWY_EXPORT(DecodeRowsImpl);

void MatMulRows(const MatMulArgs& args) {
  HWY_DYNAMIC_DISPATCH(MatMulRowsImpl)(args);
}

void DecodeRows(const Weight& w, size_t first_row, size_t num_rows, float* out, size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DecodeRowsImpl)(w, first_row, num_rows, out, out_stride);
}

size_t RowsOfUnit(size_t num_rows, size_t num_threads) {
  constexpr size_t kUnitsOfThread = 8;  // enough for an even load
  constexpr size_t kGroupsMax = 4;
  const size_t num_groups = num_rows / (kRowGroup * num_threads * kUnitsOfThread);
  return kRowGroup * std::clamp<size_t>(num_groups, 1, kGroupsMax);
}

bool WantsEvenOdd(DType dtype) {
  return dtype == DType::kMxfp4;
}

void PackRow(const float* x, size_t cols, bool even_odd, float* out) {
  const size_t padded = RoundUp(cols, kBlockCols);
  if (!even_odd) {
    std::memcpy(out, x, cols * sizeof(float));
    std::memset(out + cols, 0, (padded - cols) * sizeof(float));
    return;
  }
  YOKE_DCHECK(cols == padded);
  for (size_t c = 0; c < cols; c += kBlockCols) {
    for (size_t i = 0; i < kBlockCols / 2; ++i) {
      out[c + i] = x[c + 2 * i];
      out[c + kBlockCols / 2 + i] = x[c + 2 * i + 1];
    }
  }
}

void Run(const LinearTask& task, size_t phase, const Worker& worker) {
  const size_t padded = RoundUp(task.x.cols, kBlockCols);
  float* plain = worker.shared();
  float* even_odd = plain + task.x.rows * padded;
  size_t unit = 0;
  if (phase + 1 < task.num_phases()) {
    while (worker.Next(task.x.rows, unit)) {
      if (task.pack_plain) PackRow(task.x.Row(unit), task.x.cols, false, plain + unit * padded);
      if (task.pack_even_odd) {
        PackRow(task.x.Row(unit), task.x.cols, true, even_odd + unit * padded);
      }
    }
    return;
  }
  size_t num_units = 0;
  for (size_t p = 0; p < task.num_projections; ++p) {
    num_units += CeilDiv(task.weights[p].rows, task.unit_rows);
  }
  while (worker.Next(num_units, unit)) {
    size_t p = 0;
    for (; unit >= CeilDiv(task.weights[p].rows, task.unit_rows); ++p) {
      unit -= CeilDiv(task.weights[p].rows, task.unit_rows);
    }
    const Weight& w = task.weights[p];
    PickedRows x{task.x.data, task.x.stride, nullptr};
    if (task.pack_plain) x = {plain, padded, nullptr};
    if (WantsEvenOdd(w.dtype)) x = {even_odd, padded, nullptr};
    const size_t first_row = unit * task.unit_rows;
    MatMulRows({.w = w,
                .first_row = first_row,
                .num_rows = std::min(task.unit_rows, w.rows - first_row),
                .x = x,
                .num_tokens = task.x.rows,
                .y = {task.y[p].data + first_row, task.y[p].stride, nullptr},
                .scratch = worker.scratch()});
  }
}

}  // namespace yoke::kernels::cpu
#endif  // HWY_ONCE
