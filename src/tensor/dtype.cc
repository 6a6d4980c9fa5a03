#include "tensor/dtype.h"

#include "base/check.h"

namespace yoke {

std::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kMxfp4:
      return "mxfp4";
  }
  return "unknown";
}

bool IsBlockFormat(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kMxfp4;
}

size_t DataBytes(DType dtype, size_t cols) {
  YOKE_CHECK(!IsBlockFormat(dtype) || cols % kBlockCols == 0);
  switch (dtype) {
    case DType::kF32:
      return 4 * cols;
    case DType::kBf16:
      return 2 * cols;
    case DType::kQ8_0:
      return cols;
    case DType::kMxfp4:
      return cols / 2;
  }
  return 0;
}

size_t ScaleBytes(DType dtype, size_t cols) {
  if (dtype == DType::kQ8_0) return cols / kBlockCols * 2;
  if (dtype == DType::kMxfp4) return cols / kBlockCols;
  return 0;
}

}  // namespace yoke
