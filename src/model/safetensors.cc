#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/json.h"
#include "model/limits.h"

namespace yoke::model {
namespace {

struct DTypeInfo {
  std::string_view name;
  size_t num_bytes;
};
// In the order of FileDType, without kOther.
constexpr std::array<DTypeInfo, 8> kDTypes = {{{"F32", 4},
                                               {"BF16", 2},
                                               {"F16", 2},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"I32", 4},
                                               {"I64", 8},
                                               {"F64", 8}}};

FileDType DTypeFromName(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<FileDType>(i);
  }
  return FileDType::kOther;
}

constexpr size_t kLengthBytes = 8;

uint64_t ReadU64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

Error Corrupt(const std::string& what) {
  return {ErrorCode::kCorrupt, what};
}

// A tensor's part of the data.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

Result<std::vector<size_t>> ParseShape(const Json& entry) {
  YOKE_TRY(const std::vector<int64_t> values, JsonInts(entry, "shape"));
  if (values.size() > kTensorDimsMax) {
    return Corrupt("expected at most " + std::to_string(kTensorDimsMax) + " dimensions, got " +
                   std::to_string(values.size()));
  }
  std::vector<size_t> shape;
  for (const int64_t value : values) {
    if (value < 0) return Corrupt("dimension " + std::to_string(value) + " is negative");
    shape.push_back(static_cast<size_t>(value));
  }
  return shape;
}

Result<Extent> ParseOffsets(const Json& entry) {
  YOKE_TRY(const std::vector<int64_t> values, JsonInts(entry, "data_offsets"));
  if (values.size() != 2 || values[0] < 0 || values[0] > values[1]) {
    return Corrupt("expected data_offsets [begin, end] with 0 <= begin <= end, got " +
                   DumpJson(Json(values)).substr(0, 60));
  }
  return Extent{static_cast<uint64_t>(values[0]), static_cast<uint64_t>(values[1]), nullptr};
}

// Type and shape must take just the bytes that the offsets give.
Status CheckSize(const FileTensor& tensor, const Extent& extent) {
  // Element sizes of other types are not known; nothing that we load has one.
  if (tensor.dtype == FileDType::kOther) return Ok{};
  uint64_t num_bytes = BytesPerElement(tensor.dtype);
  bool fits = true;
  for (const size_t dim : tensor.shape) {
    fits = fits && !__builtin_mul_overflow(num_bytes, dim, &num_bytes);
  }
  if (fits && num_bytes == extent.end - extent.begin) return Ok{};
  return Corrupt(Describe(tensor.dtype_name, tensor.shape) + " takes " +
                 (fits ? std::to_string(num_bytes) : "more than 2^64") +
                 " bytes, data_offsets give " + std::to_string(extent.end - extent.begin));
}

// Reads one entry of the header but for the tensor's bytes.
Result<Extent> ParseEntry(const Json& entry, FileTensor& tensor) {
  YOKE_TRY(tensor.dtype_name, JsonString(entry, "dtype"));
  tensor.dtype = DTypeFromName(tensor.dtype_name);
  YOKE_TRY(tensor.shape, ParseShape(entry));
  YOKE_TRY(const Extent extent, ParseOffsets(entry));
  YOKE_RETURN_IF_ERROR(CheckSize(tensor, extent));
  return extent;
}

// The tensors must follow each other without gap or overlap, to the end of the data.
Status CheckCover(std::vector<Extent> extents, uint64_t header_end, uint64_t file_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end_max = 0;
  for (const Extent& extent : extents) end_max = std::max(end_max, extent.end);
  if (end_max != file_bytes - header_end) {
    return Corrupt("the file has " + std::to_string(file_bytes) + " bytes, its header describes " +
                   std::to_string(header_end) + " + " + std::to_string(end_max) +
                   (end_max > file_bytes - header_end ? ": it was cut short" : ""));
  }
  const Extent start{};
  const Extent* previous = &start;
  for (const Extent& extent : extents) {
    if (extent.begin != previous->end) {
      return Corrupt("tensor " + *extent.name + " begins at " + std::to_string(extent.begin) +
                     ": expected " + std::to_string(previous->end) + ", where " +
                     (previous->name == nullptr ? "the data begins" : *previous->name + " ends"));
    }
    previous = &extent;
  }
  return Ok{};
}

Result<Json> ParseHeader(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return Corrupt("expected a safetensors file, got only " + std::to_string(file.size()) +
                   " bytes");
  }
  const uint64_t num_bytes = ReadU64(file);
  const uint64_t most = std::min<uint64_t>(kHeaderBytesMax, file.size() - kLengthBytes);
  if (num_bytes > most) {
    return Corrupt("the header claims " + std::to_string(num_bytes) + " bytes, expected at most " +
                   std::to_string(most) + " in this file");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<size_t>(num_bytes));
  YOKE_TRY(Json header, ParseJson(text, kHeaderBytesMax));
  if (!header.is_object()) return Corrupt("the header is not a JSON object");
  return header;
}

}  // namespace

std::string_view ToString(FileDType dtype) {
  return dtype == FileDType::kOther ? "other" : kDTypes[static_cast<size_t>(dtype)].name;
}

size_t BytesPerElement(FileDType dtype) {
  return dtype == FileDType::kOther ? 0 : kDTypes[static_cast<size_t>(dtype)].num_bytes;
}

std::string Describe(std::string_view dtype_name, std::span<const size_t> shape) {
  std::string text = std::string(dtype_name) + " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Result<TensorMap> ParseSafetensors(std::span<const std::byte> file) {
  auto header = ParseHeader(file);
  if (!header) return std::move(header).error().Wrap("safetensors header");
  const uint64_t header_end = kLengthBytes + ReadU64(file);
  TensorMap tensors;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.value().items()) {
    if (name == "__metadata__") continue;
    FileTensor& tensor = tensors[name];
    auto extent = ParseEntry(entry, tensor);
    if (!extent) return std::move(extent).error().Wrap("tensor " + name);
    extents.push_back(extent.value());
    extents.back().name = &tensors.find(name)->first;
  }
  YOKE_RETURN_IF_ERROR(CheckCover(extents, header_end, file.size()));
  for (const Extent& extent : extents) {
    tensors[*extent.name].bytes = file.subspan(static_cast<size_t>(header_end + extent.begin),
                                               static_cast<size_t>(extent.end - extent.begin));
  }
  return tensors;
}

}  // namespace yoke::model
