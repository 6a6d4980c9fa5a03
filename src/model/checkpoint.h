// A model folder in the Hugging Face layout: config.json, safetensors shards and their index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/safetensors.h"
#include "sys/mapped_file.h"

namespace yoke::model {

// Owns the mapped shards; move-only. Opening reads headers only; tensors stay valid when the
// checkpoint moves.
class Checkpoint {
 public:
  // Every file problem is an error that names the file and what was expected: no folder, no
  // weights, bad JSON, header longer than the file, data that ends early, overlapping or
  // misplaced tensors, an index that names a missing file or a tensor that its shard lacks.
  // Reads model.safetensors.index.json, or a single model.safetensors.
  static Result<Checkpoint> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const TensorMap& tensors() const { return tensors_; }
  // nullptr when absent.
  const FileTensor* Find(std::string_view name) const;
  uint64_t TotalBytes() const;

  // After a tensor (or a part of it) was copied: lets its file pages go.
  void DropPages(const FileTensor& tensor, std::span<const std::byte> part) const;

 private:
  Status AddShard(const std::string& name);
  // index: which shard should hold which tensor. Compares it with what the shards hold.
  Status CheckIndex(const std::map<std::string, std::string, std::less<>>& index) const;

  std::string folder_;
  std::vector<std::string> shard_names_;
  std::vector<MappedFile> shards_;  // in the order of shard_names_
  TensorMap tensors_;
};

}  // namespace yoke::model
