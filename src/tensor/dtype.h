// Element types of weights, and how many bytes a row of each takes.
#pragma once

#include <cstddef>
#include <string_view>

namespace yoke {

enum class DType {
  kF32,
  kBf16,
  kQ8_0,   // blocks of 32 along cols: 32 int8 codes, one f16 scale; value = code * scale
  kMxfp4,  // blocks of 32 along cols: 32 e2m1 codes, one e8m0 scale; value = code * 2^(scale - 127)
};

// Columns that share one scale in the block formats.
constexpr size_t kBlockCols = 32;

std::string_view ToString(DType dtype);

bool IsBlockFormat(DType dtype);

// Bytes of `cols` codes, without scales. REQUIRES: cols % 32 == 0 for block formats.
size_t DataBytes(DType dtype, size_t cols);

// Bytes of the scales of `cols` columns: 2 per block for Q8_0, 1 for MXFP4, else 0.
size_t ScaleBytes(DType dtype, size_t cols);

}  // namespace yoke
