// A model folder in the Hugging Face layout: config.json, safetensors shards and their index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sys/mapped_file.h"

namespace yoke::model {

// Element types as safetensors names them.
enum class FileDType { kF32, kBf16, kF16, kU8, kI8, kI32, kI64, kF64, kOther };
std::string_view ToString(FileDType dtype);
size_t BytesPerElement(FileDType dtype);  // 0 for kOther

struct FileTensor {
  FileDType dtype = FileDType::kOther;
  std::string dtype_name;  // as in the file
  std::vector<size_t> shape;
  std::span<const std::byte> bytes;  // in the mapped shard
  size_t shard_idx = 0;
};

// Owns the mapped shards; move-only. Opening reads headers only.
//
// File format (safetensors): u64 little-endian header length, JSON header
// {"name": {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": ...}, then the data.
class Checkpoint {
 public:
  // Every file problem is an error that names the file and what was expected: no folder, no
  // weights, bad JSON, header longer than the file, data that ends early, overlapping or
  // misplaced tensors, an index that names a missing file or a tensor that its shard lacks.
  // Reads model.safetensors.index.json, or a single model.safetensors.
  static Result<Checkpoint> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const std::map<std::string, FileTensor, std::less<>>& tensors() const { return tensors_; }
  // nullptr when absent.
  const FileTensor* Find(std::string_view name) const;
  uint64_t TotalBytes() const;

  // After a tensor (or a part of it) was copied: lets its file pages go.
  void DropPages(const FileTensor& tensor, std::span<const std::byte> part) const;

 private:
  std::string folder_;
  std::vector<MappedFile> shards_;
  std::map<std::string, FileTensor, std::less<>> tensors_;
};

}  // namespace yoke::model
