#include "tensor/host_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/check.h"

namespace yoke {
namespace {

constexpr uint32_t kF32InfBits = 0x7f800000;

// bits / 2^shift, to nearest, ties to even. shift: 1..31.
uint32_t ShiftRounded(uint32_t bits, uint32_t shift) {
  const uint32_t half = (uint32_t{1} << (shift - 1)) - 1;
  return (bits + half + ((bits >> shift) & 1)) >> shift;
}

constexpr std::array<float, 16> kE2m1Values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                               4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                               -2.0F, -3.0F, -4.0F, -6.0F};

void DequantizeQ8Block(const std::byte* codes, float scale, std::span<float> out) {
  for (size_t i = 0; i < kBlockCols; ++i) {
    out[i] = static_cast<float>(std::bit_cast<int8_t>(codes[i])) * scale;
  }
}

void DequantizeMxfp4Block(const std::byte* codes, float scale, std::span<float> out) {
  for (size_t i = 0; i < kBlockCols / 2; ++i) {
    const auto pair = std::to_integer<uint8_t>(codes[i]);
    out[2 * i] = E2m1ToF32(pair & 15) * scale;
    out[2 * i + 1] = E2m1ToF32(pair >> 4) * scale;
  }
}

}  // namespace

HostMatrix HostMatrix::Make(DType dtype, size_t rows, size_t cols) {
  HostMatrix matrix;
  matrix.dtype = dtype;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = PageBuffer(rows * DataBytes(dtype, cols));
  matrix.scales = PageBuffer(rows * ScaleBytes(dtype, cols));
  return matrix;
}

std::span<std::byte> HostMatrix::DataRow(size_t row) {
  YOKE_DCHECK(row < rows);
  const size_t row_bytes = DataBytes(dtype, cols);
  return data.bytes().subspan(row * row_bytes, row_bytes);
}

std::span<const std::byte> HostMatrix::DataRow(size_t row) const {
  YOKE_DCHECK(row < rows);
  const size_t row_bytes = DataBytes(dtype, cols);
  return data.bytes().subspan(row * row_bytes, row_bytes);
}

std::span<std::byte> HostMatrix::ScaleRow(size_t row) {
  YOKE_DCHECK(row < rows);
  const size_t row_bytes = ScaleBytes(dtype, cols);
  return scales.bytes().subspan(row * row_bytes, row_bytes);
}

std::span<const std::byte> HostMatrix::ScaleRow(size_t row) const {
  YOKE_DCHECK(row < rows);
  const size_t row_bytes = ScaleBytes(dtype, cols);
  return scales.bytes().subspan(row * row_bytes, row_bytes);
}

float Bf16ToF32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t F32ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) <= kF32InfBits) return static_cast<uint16_t>(ShiftRounded(bits, 16));
  // NaN keeps its upper bits, and stays NaN where all its set bits would be cut off.
  const uint32_t cut = bits >> 16;
  return static_cast<uint16_t>((cut & 0x7f) != 0 ? cut : cut | 0x40);
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | kF32InfBits | mantissa << 13);
  if (exponent != 0) {
    return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormal or zero, exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

uint16_t F32ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half = 0;
  if (magnitude > kF32InfBits) {
    const uint32_t payload = (magnitude >> 13) & 0x3ff;
    half = 0x7c00 | (payload != 0 ? payload : 0x200);
  } else if (magnitude >= 0x477ff000) {  // from 65520 on the nearest is infinity
    half = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // from 2^-14: normal; a carry may step up the exponent
    half = ShiftRounded(magnitude - (uint32_t{127 - 15} << 23), 13);
  } else if (magnitude > 0x33000000) {  // above 2^-25: subnormal, a multiple of 2^-24
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    half = ShiftRounded(mantissa, 126 - exponent);
  }
  return static_cast<uint16_t>(sign | half);
}

float E2m1ToF32(uint8_t code) {
  YOKE_DCHECK(code < kE2m1Values.size());
  return kE2m1Values[code];
}

float E8m0ToF32(uint8_t scale) {
  if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
  if (scale == 0) return 0x1p-127F;  // subnormal, so not just an exponent field
  return std::bit_cast<float>(uint32_t{scale} << 23);
}

void QuantizeRowQ8_0(std::span<const float> row, std::span<int8_t> codes,
                     std::span<uint16_t> scales) {
  YOKE_CHECK(row.size() % kBlockCols == 0 && codes.size() == row.size() &&
             scales.size() == row.size() / kBlockCols);
  // Adding and taking away 1.5 * 2^23 rounds to a whole number, ties to even, without a call.
  constexpr float kRounder = 0x1.8p23F;
  for (size_t block = 0; block < scales.size(); ++block) {
    const auto in = row.subspan(block * kBlockCols, kBlockCols);
    const auto out = codes.subspan(block * kBlockCols, kBlockCols);
    // Compared as whole numbers, so that infinity and NaN are larger than every number.
    uint32_t max_bits = 0;
    for (const float x : in) max_bits = std::max(max_bits, std::bit_cast<uint32_t>(x) & 0x7fffffff);
    scales[block] = F32ToF16(std::bit_cast<float>(std::min(max_bits, kF32InfBits)) / 127);
    const float scale = F16ToF32(scales[block]);
    if (scale == 0 || scale == std::numeric_limits<float>::infinity()) {
      std::fill(out.begin(), out.end(), int8_t{0});
      continue;
    }
    for (size_t i = 0; i < kBlockCols; ++i) {
      // Only a subnormal scale is so coarse that a rounded quotient could leave the range.
      const float quotient = std::clamp(in[i] / scale, -127.0F, 127.0F);
      out[i] = static_cast<int8_t>(static_cast<int32_t>((quotient + kRounder) - kRounder));
    }
  }
}

void DequantizeRow(const HostMatrix& matrix, size_t row, std::span<float> out) {
  YOKE_CHECK(row < matrix.rows && out.size() == matrix.cols);
  const std::byte* const data = matrix.DataRow(row).data();
  const std::byte* const scales = matrix.ScaleRow(row).data();
  const size_t num_blocks = matrix.cols / kBlockCols;
  switch (matrix.dtype) {
    case DType::kF32:
      std::copy_n(reinterpret_cast<const float*>(data), out.size(), out.begin());
      return;
    case DType::kBf16:
      std::transform(reinterpret_cast<const uint16_t*>(data),
                     reinterpret_cast<const uint16_t*>(data) + out.size(), out.begin(), Bf16ToF32);
      return;
    case DType::kQ8_0:
      for (size_t i = 0; i < num_blocks; ++i) {
        const float scale = F16ToF32(reinterpret_cast<const uint16_t*>(scales)[i]);
        DequantizeQ8Block(data + i * kBlockCols, scale, out.subspan(i * kBlockCols, kBlockCols));
      }
      return;
    case DType::kMxfp4:
      for (size_t i = 0; i < num_blocks; ++i) {
        const float scale = E8m0ToF32(std::to_integer<uint8_t>(scales[i]));
        DequantizeMxfp4Block(data + i * kBlockCols / 2, scale,
                             out.subspan(i * kBlockCols, kBlockCols));
      }
      return;
  }
}

}  // namespace yoke
