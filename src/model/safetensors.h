// One safetensors file: its header, checked, and where each tensor lies.
//
//   u64 little-endian   N, the length of the header
//   N bytes             JSON {"NAME": {"dtype": "BF16", "shape": [2, 3],
//                                      "data_offsets": [begin, end]}, ..., "__metadata__": {...}};
//                       offsets count from the end of the header
//   the data            the tensors without gaps or overlaps, to the end of the file
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace yoke::model {

// Element types as safetensors names them.
enum class FileDType { kF32, kBf16, kF16, kU8, kI8, kI32, kI64, kF64, kOther };
std::string_view ToString(FileDType dtype);
size_t BytesPerElement(FileDType dtype);  // 0 for kOther

struct FileTensor {
  FileDType dtype = FileDType::kOther;
  std::string dtype_name;  // as in the file
  std::vector<size_t> shape;
  std::span<const std::byte> bytes;  // in the mapped shard; of any alignment
  size_t shard_idx = 0;
};

using TensorMap = std::map<std::string, FileTensor, std::less<>>;

// "BF16 [2, 3]", for messages.
std::string Describe(std::string_view dtype_name, std::span<const size_t> shape);

// The tensors of a file whose bytes are `file`, with views into it and shard_idx 0. Only the header
// is read. A header that does not describe these bytes exactly is an error that names the tensor.
Result<TensorMap> ParseSafetensors(std::span<const std::byte> file);

}  // namespace yoke::model
