// A weight matrix (or this rank's slice of one) in the form in which it is stored in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sys/memory.h"
#include "tensor/dtype.h"

namespace yoke {

// [rows, cols], row-major. Codes and scales are two arrays:
//   data:   [rows, DataBytes(dtype, cols)]   f32 | bf16 bits | int8 | two e2m1 codes a byte
//           (MXFP4: low nibble = even column, high nibble = odd column)
//   scales: [rows, ScaleBytes(dtype, cols)]  nothing | f16 bits | e8m0
// Owns its memory (zeroed pages; large matrices ask for huge pages). Move-only.
struct HostMatrix {
  DType dtype = DType::kF32;
  size_t rows = 0;
  size_t cols = 0;
  PageBuffer data;
  PageBuffer scales;

  // A zeroed matrix. Zero rows are legal (a rank may own none).
  static HostMatrix Make(DType dtype, size_t rows, size_t cols);

  size_t TotalBytes() const { return data.size() + scales.size(); }
  std::span<std::byte> DataRow(size_t row);
  std::span<const std::byte> DataRow(size_t row) const;
  std::span<std::byte> ScaleRow(size_t row);
  std::span<const std::byte> ScaleRow(size_t row) const;
};

// f32 <-> narrower types, round to nearest even.
float Bf16ToF32(uint16_t bits);
uint16_t F32ToBf16(float value);
float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);

// Value of an e2m1 code (0..15) and of an e8m0 scale byte (2^(scale - 127); 255 is NaN in the
// format and is refused on load).
float E2m1ToF32(uint8_t code);
float E8m0ToF32(uint8_t scale);

// Quantises one row to Q8_0: scale = max|x| / 127 (rounded to f16), code = round(x / scale). A
// block that f16 scales cannot hold (max|x| from 8.3e6 on, infinity, NaN) gets an infinite scale
// and so reads back as NaN. row: [cols]; codes: [cols]; scales: [cols / 32] f16 bits.
void QuantizeRowQ8_0(std::span<const float> row, std::span<int8_t> codes,
                     std::span<uint16_t> scales);

// Unpacks one row to f32, exactly. out: [matrix.cols].
void DequantizeRow(const HostMatrix& matrix, size_t row, std::span<float> out);

}  // namespace yoke
