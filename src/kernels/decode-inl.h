// Unpacks weights of every dtype to floats, a block of 32 columns at a time. Included once per SIMD
// target. MXFP4 comes out with the even columns of the block before the odd ones.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu_ops.h"
#include "tensor/host_matrix.h"

#ifndef YOKE_KERNELS_DECODE_TABLES_
#define YOKE_KERNELS_DECODE_TABLES_
namespace yoke::kernels::cpu {

// Half of each E8M0 scale: it meets e2m1 codes that are doubled to be whole numbers.
inline constexpr std::array<float, 256> kHalfE8m0 = [] {
  std::array<float, 256> table{};
  table[0] = 0x1p-128F;  // subnormal, as is the next
  for (size_t i = 1; i < table.size(); ++i) table[i] = 2 * table[i - 1];
  return table;
}();
inline constexpr std::array<int8_t, 16> kDoubledE2m1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                                        0, -1, -2, -3, -4, -6, -8, -12};

// Bytes of the codes and of the scales of one block of kBlockCols columns.
constexpr size_t BlockBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4 * kBlockCols;
    case DType::kBf16:
      return 2 * kBlockCols;
    case DType::kQ8_0:
      return kBlockCols;
    case DType::kMxfp4:
      return kBlockCols / 2;
  }
  return 0;
}
constexpr size_t BlockScaleBytes(DType dtype) {
  if (dtype == DType::kQ8_0) return 2;
  return dtype == DType::kMxfp4 ? 1 : 0;
}

}  // namespace yoke::kernels::cpu
#endif

// clang-format off
#if defined(YOKE_KERNELS_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef YOKE_KERNELS_DECODE_INL_H_
#undef YOKE_KERNELS_DECODE_INL_H_
#else
#define YOKE_KERNELS_DECODE_INL_H_
#endif
// clang-format on

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kBlockVectors = kBlockCols / kLanes;
// Blocks whose scales are made ready together.
constexpr size_t kScaleBlocks = 16;

// 16 int8 to floats, times scale. A template so that only the branch for kLanes is compiled.
template <class V>
HWY_INLINE void FromInt8(V bytes, FloatVec scale, FloatVec (&out)[kSlices]) {
  const FloatTag d;
  const hn::Rebind<int32_t, FloatTag> di32;
  const auto convert = [&](auto narrow) HWY_ATTR {
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di32, narrow)), scale);
  };
  if constexpr (kLanes == 16) {
    out[0] = convert(bytes);
  } else if constexpr (kLanes == 8) {
    const hn::Full128<int8_t> d8;
    const hn::Half<decltype(d8)> half;
    out[0] = convert(hn::LowerHalf(half, bytes));
    out[1] = convert(hn::UpperHalf(half, bytes));
  } else {
    const hn::Full128<int8_t> d8;
    const hn::Half<decltype(d8)> half8;
    const hn::Full128<int16_t> d16;
    const hn::Half<decltype(d16)> half16;
    const auto low = hn::PromoteTo(d16, hn::LowerHalf(half8, bytes));
    const auto high = hn::PromoteTo(d16, hn::UpperHalf(half8, bytes));
    out[0] = convert(hn::LowerHalf(half16, low));
    out[1] = convert(hn::UpperHalf(half16, low));
    out[2] = convert(hn::LowerHalf(half16, high));
    out[3] = convert(hn::UpperHalf(half16, high));
  }
}

// One row's scales of up to kScaleBlocks blocks, as floats.
template <DType kType>
struct RowScales {
  void Load(const std::byte*, size_t) {}
  float operator[](size_t) const { return 1; }
};

template <>
struct RowScales<DType::kMxfp4> {
  void Load(const std::byte* scales, size_t) { first = reinterpret_cast<const uint8_t*>(scales); }
  float operator[](size_t block) const { return kHalfE8m0[first[block]]; }
  const uint8_t* first = nullptr;
};

template <>
struct RowScales<DType::kQ8_0> {
  void Load(const std::byte* scales, size_t num_blocks) {
    const FloatTag d;
    const hn::Rebind<hwy::float16_t, FloatTag> d16;
    alignas(64) uint16_t bits[kScaleBlocks] = {};
    std::memcpy(bits, scales, num_blocks * sizeof(uint16_t));
    for (size_t i = 0; i < kScaleBlocks; i += kLanes) {
      const auto half = hn::Load(d16, reinterpret_cast<const hwy::float16_t*>(bits) + i);
      hn::Store(hn::PromoteTo(d, half), d, values + i);
    }
  }
  float operator[](size_t block) const { return values[block]; }
  alignas(64) float values[kScaleBlocks];
};

// data: the block's codes. scale: RowScales of it.
template <DType kType>
HWY_INLINE void DecodeBlock(const std::byte* data, float scale, FloatVec (&out)[kBlockVectors]) {
  const FloatTag d;
  if constexpr (kType == DType::kF32) {
    for (size_t i = 0; i < kBlockVectors; ++i) {
      out[i] = hn::LoadU(d, reinterpret_cast<const float*>(data) + i * kLanes);
    }
  } else if constexpr (kType == DType::kBf16) {
    const hn::Rebind<hwy::bfloat16_t, FloatTag> d16;
    for (size_t i = 0; i < kBlockVectors; ++i) {
      const auto* from = reinterpret_cast<const hwy::bfloat16_t*>(data) + i * kLanes;
      out[i] = hn::PromoteTo(d, hn::LoadU(d16, from));
    }
  } else if constexpr (kType == DType::kQ8_0) {
    const hn::Full128<int8_t> d8;
    const FloatVec scale_v = hn::Set(d, scale);
    const auto* codes = reinterpret_cast<const int8_t*>(data);
    FloatVec halves[2][kSlices];
    FromInt8(hn::LoadU(d8, codes), scale_v, halves[0]);
    FromInt8(hn::LoadU(d8, codes + 16), scale_v, halves[1]);
    for (size_t i = 0; i < kBlockVectors; ++i) out[i] = halves[i / kSlices][i % kSlices];
  } else {
#if HWY_TARGET <= HWY_AVX3
    // The sixteen scaled values fill one register; lookups use the low four bits of an index only.
    alignas(64) static constexpr float kTable[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                     0, -1, -2, -3, -4, -6, -8, -12};
    const hn::Rebind<uint8_t, FloatTag> d8;
    const hn::Rebind<uint32_t, FloatTag> d32;
    const auto table = hn::Mul(hn::Load(d, kTable), hn::Set(d, scale));
    const auto pairs = hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(data)));
    out[0] = hn::TableLookupLanes(table, hn::Indices512<float>{pairs.raw});
    out[1] = hn::TableLookupLanes(table, hn::Indices512<float>{hn::ShiftRight<4>(pairs).raw});
#else
    const hn::Full128<uint8_t> d8;
    const hn::Full128<int8_t> di8;
    const FloatVec scale_v = hn::Set(d, scale);
    const auto table = hn::LoadU(di8, kDoubledE2m1.data());
    const auto pairs = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(data));
    const auto even = hn::And(pairs, hn::Set(d8, 15));
    const auto odd = hn::ShiftRight<4>(pairs);
    FloatVec halves[2][kSlices];
    FromInt8(hn::TableLookupBytes(table, hn::BitCast(di8, even)), scale_v, halves[0]);
    FromInt8(hn::TableLookupBytes(table, hn::BitCast(di8, odd)), scale_v, halves[1]);
    for (size_t i = 0; i < kBlockVectors; ++i) out[i] = halves[i / kSlices][i % kSlices];
#endif
  }
}

// As DecodeBlock, for the last `num_cols` columns of a row, which are fewer than a block; zeros
// behind them. Only F32 and BF16 rows have such an end.
template <DType kType>
HWY_INLINE void DecodePartBlock(const std::byte* data, size_t num_cols,
                                FloatVec (&out)[kBlockVectors]) {
  alignas(64) std::byte whole[BlockBytes(kType)] = {};
  std::memcpy(whole, data, num_cols * (BlockBytes(kType) / kBlockCols));
  DecodeBlock<kType>(whole, 1, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
