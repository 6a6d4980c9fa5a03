#include "model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace yoke::model {
namespace {

using kernels::WeightId;
using shard::Range;

size_t Rows2d(const FileTensor& tensor) {
  return tensor.shape.front();
}

size_t NumElements(const FileTensor& tensor) {
  size_t count = 1;
  for (const size_t extent : tensor.shape) count *= extent;
  return count;
}

size_t Cols2d(const FileTensor& tensor) {
  return NumElements(tensor) / Rows2d(tensor);
}

// [rows] of the file, row-major.
std::span<const std::byte> RowBytes(const FileTensor& tensor, const Range& rows) {
  const size_t row_bytes = tensor.bytes.size() / Rows2d(tensor);
  return tensor.bytes.subspan(rows.begin * row_bytes, rows.size() * row_bytes);
}

// Elements [begin, end) as f32. REQUIRES: a tensor of BF16 or F32.
void ToF32(const FileTensor& tensor, const Range& elements, float* out) {
  if (tensor.dtype == FileDType::kF32) {
    if (elements.size() == 0) return;
    std::memcpy(out, tensor.bytes.data() + 4 * elements.begin, 4 * elements.size());
    return;
  }
  YOKE_CHECK(tensor.dtype == FileDType::kBf16);
  for (size_t i = 0; i < elements.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + 2 * (elements.begin + i), 2);
    out[i] = Bf16ToF32(bits);
  }
}

// Whole rows only, so that scales do not depend on how the matrix is then sliced.
bool CanBeQ8(const FileTensor& tensor) {
  return tensor.dtype == FileDType::kBf16 && Cols2d(tensor) % kBlockCols == 0;
}

// One whole row of a tensor in Q8_0.
struct Q8Row {
  explicit Q8Row(size_t cols) : values(cols), codes(cols), scales(cols / kBlockCols) {}

  void Quantize(const FileTensor& tensor, size_t row) {
    const size_t first = row * values.size();
    ToF32(tensor, {first, first + values.size()}, values.data());
    QuantizeRowQ8_0(values, codes, scales);
  }

  std::vector<float> values;
  std::vector<int8_t> codes;
  std::vector<uint16_t> scales;  // f16 bits
};

// 255 is the format's NaN: a checkpoint that holds it would poison every sum silently.
Status CheckScales(const std::string& name, std::span<const std::byte> scales) {
  if (std::find(scales.begin(), scales.end(), std::byte{255}) == scales.end()) return Ok{};
  return Error(ErrorCode::kCorrupt, name + ": holds a scale of 255, which is not a number");
}

void CopyBytes(std::span<const std::byte> from, std::span<std::byte> to) {
  YOKE_CHECK(from.size() == to.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

std::string ExpertName(const std::string& pattern, size_t expert) {
  const size_t at = pattern.find("{}");
  YOKE_CHECK(at != std::string::npos);
  return pattern.substr(0, at) + std::to_string(expert) + pattern.substr(at + 2);
}

WeightLoader::WeightLoader(const Checkpoint& checkpoint, kernels::Backend& backend,
                           TrunkFormat trunk, std::function<void(uint64_t)> on_bytes)
    : checkpoint_(checkpoint), backend_(backend), trunk_(trunk), on_bytes_(std::move(on_bytes)) {}

Result<const FileTensor*> WeightLoader::Find(const std::string& name) const {
  const FileTensor* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) {
    return Error(ErrorCode::kCorrupt, checkpoint_.folder() + ": tensor " + name + " is missing");
  }
  return tensor;
}

void WeightLoader::Copied(const FileTensor& tensor, std::span<const std::byte> part,
                          size_t num_bytes) {
  bytes_copied_ += num_bytes;
  checkpoint_.DropPages(tensor, part);
  if (on_bytes_) on_bytes_(bytes_copied_);
}

HostMatrix WeightLoader::CopyRows(const FileTensor& tensor, const Range& rows, bool to_q8) {
  const size_t cols = Cols2d(tensor);
  const std::span<const std::byte> part = RowBytes(tensor, rows);
  if (!to_q8) {
    const DType dtype = tensor.dtype == FileDType::kBf16 ? DType::kBf16 : DType::kF32;
    HostMatrix matrix = HostMatrix::Make(dtype, rows.size(), cols);
    CopyBytes(part, matrix.data.bytes().first(part.size()));
    return matrix;
  }
  HostMatrix matrix = HostMatrix::Make(DType::kQ8_0, rows.size(), cols);
  Q8Row row(cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    row.Quantize(tensor, rows.begin + i);
    CopyBytes(std::as_bytes(std::span(row.codes)), matrix.DataRow(i));
    CopyBytes(std::as_bytes(std::span(row.scales)), matrix.ScaleRow(i));
  }
  return matrix;
}

Result<WeightId> WeightLoader::RowsAsStored(const std::string& name, const Range& rows) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  HostMatrix matrix = CopyRows(*tensor, rows, false);
  Copied(*tensor, RowBytes(*tensor, rows), RowBytes(*tensor, rows).size());
  return backend_.AddWeight(std::move(matrix));
}

Result<WeightId> WeightLoader::Rows(const std::string& name, const Range& rows) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  HostMatrix matrix = CopyRows(*tensor, rows, trunk_ == TrunkFormat::kQ8_0 && CanBeQ8(*tensor));
  Copied(*tensor, RowBytes(*tensor, rows), RowBytes(*tensor, rows).size());
  return backend_.AddWeight(std::move(matrix));
}

Result<WeightId> WeightLoader::Whole(const std::string& name) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  return Rows(name, {0, Rows2d(*tensor)});
}

Result<ColumnSlice> WeightLoader::Cols(const std::string& name, const Range& cols) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  const bool to_q8 = trunk_ == TrunkFormat::kQ8_0 && CanBeQ8(*tensor);
  const Range kept = to_q8 ? shard::CoverBlocks(cols, kBlockCols) : cols;
  const size_t num_rows = Rows2d(*tensor);
  const DType dtype = to_q8                               ? DType::kQ8_0
                      : tensor->dtype == FileDType::kBf16 ? DType::kBf16
                                                          : DType::kF32;
  HostMatrix matrix = HostMatrix::Make(dtype, num_rows, kept.size());
  Q8Row row(to_q8 ? Cols2d(*tensor) : 0);
  for (size_t i = 0; i < num_rows; ++i) {
    std::span<const std::byte> data = RowBytes(*tensor, {i, i + 1});
    if (to_q8) {  // the whole row is quantised, then sliced
      row.Quantize(*tensor, i);
      data = std::as_bytes(std::span(row.codes));
      CopyBytes(std::as_bytes(std::span(row.scales))
                    .subspan(ScaleBytes(dtype, kept.begin), ScaleBytes(dtype, kept.size())),
                matrix.ScaleRow(i));
    }
    CopyBytes(data.subspan(DataBytes(dtype, kept.begin), DataBytes(dtype, kept.size())),
              matrix.DataRow(i));
  }
  Copied(*tensor, tensor->bytes, num_rows * kept.size() * BytesPerElement(tensor->dtype));
  return ColumnSlice{backend_.AddWeight(std::move(matrix)), cols.begin - kept.begin, kept.size()};
}

Result<WeightId> WeightLoader::Vector(const std::string& name, const Range& elements) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  HostMatrix matrix = HostMatrix::Make(DType::kF32, 1, elements.size());
  ToF32(*tensor, elements, matrix.data.as<float>());
  const size_t bytes = BytesPerElement(tensor->dtype);
  const auto part = tensor->bytes.subspan(elements.begin * bytes, elements.size() * bytes);
  Copied(*tensor, part, part.size());
  return backend_.AddWeight(std::move(matrix));
}

Result<WeightId> WeightLoader::WholeVector(const std::string& name) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  return Vector(name, {0, NumElements(*tensor)});
}

Result<WeightId> WeightLoader::HeadVector(const std::string& name, const Range& heads,
                                          size_t num_heads) {
  YOKE_TRY(const FileTensor* tensor, Find(name));
  const size_t length = NumElements(*tensor);
  YOKE_CHECK(length >= num_heads);
  std::vector<float> tail(length - num_heads);
  ToF32(*tensor, {num_heads, length}, tail.data());
  for (const float value : tail) {
    if (value == 0) continue;
    return Error(ErrorCode::kCorrupt,
                 name + ": values after the first " + std::to_string(num_heads) +
                     " (one a head) must be zero, found " + std::to_string(value));
  }
  return Vector(name, heads);
}

Result<WeightId> WeightLoader::ExpertRows(const std::string& pattern, size_t num_experts,
                                          const Range& rows) {
  HostMatrix stack;
  for (size_t e = 0; e < num_experts; ++e) {
    const std::string name = ExpertName(pattern, e);
    YOKE_TRY(const FileTensor* packed, Find(name + ".weight_packed"));
    YOKE_TRY(const FileTensor* scale, Find(name + ".weight_scale"));
    if (e == 0) {
      stack = HostMatrix::Make(DType::kMxfp4, num_experts * rows.size(), 2 * Cols2d(*packed));
    }
    const std::span<const std::byte> codes = RowBytes(*packed, rows);
    const std::span<const std::byte> scales = RowBytes(*scale, rows);
    YOKE_RETURN_IF_ERROR(CheckScales(name + ".weight_scale", scales));
    CopyBytes(codes, stack.data.bytes().subspan(e * codes.size(), codes.size()));
    CopyBytes(scales, stack.scales.bytes().subspan(e * scales.size(), scales.size()));
    Copied(*packed, codes, codes.size());
    Copied(*scale, scales, scales.size());
  }
  return backend_.AddWeight(std::move(stack));
}

Result<ColumnSlice> WeightLoader::ExpertCols(const std::string& pattern, size_t num_experts,
                                             const Range& cols) {
  const Range kept = shard::CoverBlocks(cols, kBlockCols);
  HostMatrix stack;
  size_t num_rows = 0;
  for (size_t e = 0; e < num_experts; ++e) {
    const std::string name = ExpertName(pattern, e);
    YOKE_TRY(const FileTensor* packed, Find(name + ".weight_packed"));
    YOKE_TRY(const FileTensor* scale, Find(name + ".weight_scale"));
    if (e == 0) {
      num_rows = Rows2d(*packed);
      stack = HostMatrix::Make(DType::kMxfp4, num_experts * num_rows, kept.size());
    }
    YOKE_RETURN_IF_ERROR(CheckScales(name + ".weight_scale", scale->bytes));
    for (size_t i = 0; i < num_rows; ++i) {
      const std::span<const std::byte> codes = RowBytes(*packed, {i, i + 1});
      const std::span<const std::byte> scales = RowBytes(*scale, {i, i + 1});
      CopyBytes(codes.subspan(kept.begin / 2, kept.size() / 2), stack.DataRow(e * num_rows + i));
      CopyBytes(scales.subspan(kept.begin / kBlockCols, kept.size() / kBlockCols),
                stack.ScaleRow(e * num_rows + i));
    }
    Copied(*packed, packed->bytes, num_rows * kept.size() / 2);
    Copied(*scale, scale->bytes, num_rows * kept.size() / kBlockCols);
  }
  return ColumnSlice{backend_.AddWeight(std::move(stack)), cols.begin - kept.begin, kept.size()};
}

}  // namespace yoke::model
