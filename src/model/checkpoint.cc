#include "model/checkpoint.h"

#include <filesystem>
#include <initializer_list>
#include <map>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "model/limits.h"

namespace yoke::model {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

// The parts as one message.
Error Corrupt(std::initializer_list<std::string_view> parts) {
  std::string message;
  for (const std::string_view part : parts) message += part;
  return {ErrorCode::kCorrupt, std::move(message)};
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Status CheckFolder(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return Ok{};
  return Error(ErrorCode::kNotFound,
               folder + (Exists(folder) ? ": expected a folder with a model, got a file"
                                        : ": no such folder"));
}

// An index may only name files beside it.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.find('/') == std::string_view::npos &&
         name.find('\\') == std::string_view::npos && name.find('\0') == std::string_view::npos &&
         name != "." && name != "..";
}

// Which shard holds which tensor: weight_map of an index file.
using ShardNames = std::map<std::string, std::string, std::less<>>;

Result<ShardNames> ParseIndex(std::string_view text) {
  YOKE_TRY(const Json json, ParseJson(text, kIndexBytesMax));
  YOKE_TRY(const Json* const weight_map, JsonObject(json, "weight_map"));
  ShardNames shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return Error(ErrorCode::kCorrupt, "weight_map[" + tensor +
                                            "]: expected the name of a file in the same folder, " +
                                            "got " + DumpJson(shard).substr(0, 80));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  if (shards.empty()) return Error(ErrorCode::kCorrupt, "weight_map is empty");
  return shards;
}

// The distinct shards of an index, in order, each of which must be there.
Result<std::vector<std::string>> ListShards(const std::string& folder, const ShardNames& names) {
  std::map<std::string_view, std::string_view> tensor_of;  // shard -> a tensor of it
  for (const auto& [tensor, shard] : names) tensor_of.emplace(shard, tensor);
  if (tensor_of.size() > kShardsMax) {
    return Error(ErrorCode::kCorrupt, "expected at most " + std::to_string(kShardsMax) +
                                          " shards, got " + std::to_string(tensor_of.size()));
  }
  std::vector<std::string> shards;
  for (const auto& [shard, tensor] : tensor_of) {
    shards.emplace_back(shard);
    if (!Exists(folder + "/" + shards.back())) {
      return Error(ErrorCode::kNotFound, "names " + shards.back() + " (for tensor " +
                                             std::string(tensor) + "), which is not in " + folder);
    }
  }
  return shards;
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& folder) {
  YOKE_RETURN_IF_ERROR(CheckFolder(folder));
  const std::string index_path = folder + "/" + kIndexName;
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  if (!Exists(index_path)) {
    if (!Exists(folder + "/" + kSingleName)) {
      return Error(ErrorCode::kNotFound,
                   folder + ": no weights: expected " + kIndexName + " or " + kSingleName);
    }
    YOKE_RETURN_IF_ERROR(checkpoint.AddShard(kSingleName));
    return checkpoint;
  }
  YOKE_TRY(const std::string text, ReadTextFile(index_path, kIndexBytesMax));
  auto index = ParseIndex(text);
  if (!index) return std::move(index).error().Wrap(index_path);
  auto shards = ListShards(folder, index.value());
  if (!shards) return std::move(shards).error().Wrap(index_path);
  for (const std::string& shard : shards.value()) {
    YOKE_RETURN_IF_ERROR(checkpoint.AddShard(shard));
  }
  auto agrees = checkpoint.CheckIndex(index.value());
  if (!agrees) return std::move(agrees).error().Wrap(index_path);
  return checkpoint;
}

Status Checkpoint::AddShard(const std::string& name) {
  const std::string path = folder_ + "/" + name;
  YOKE_TRY(MappedFile file, MappedFile::Open(path));
  auto tensors = ParseSafetensors(file.bytes());
  if (!tensors) return std::move(tensors).error().Wrap(path);
  for (auto& [tensor_name, tensor] : tensors.value()) {
    tensor.shard_idx = shards_.size();
    const auto [it, is_new] = tensors_.try_emplace(tensor_name, std::move(tensor));
    if (!is_new) {
      return Corrupt(
          {path, ": tensor ", tensor_name, " is also in ", shard_names_[it->second.shard_idx]});
    }
  }
  shards_.push_back(std::move(file));
  shard_names_.push_back(name);
  return Ok{};
}

Status Checkpoint::CheckIndex(const ShardNames& index) const {
  for (const auto& [name, shard] : index) {
    const FileTensor* const tensor = Find(name);
    if (tensor == nullptr) {
      return Corrupt({"puts tensor ", name, " in ", shard, ", which lacks it"});
    }
    if (shard_names_[tensor->shard_idx] != shard) {
      return Corrupt({"puts tensor ", name, " in ", shard, ", but it is in ",
                      shard_names_[tensor->shard_idx]});
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    if (index.find(name) == index.end()) {
      return Corrupt({"lacks tensor ", name, ", which is in ", shard_names_[tensor.shard_idx]});
    }
  }
  return Ok{};
}

const FileTensor* Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t Checkpoint::TotalBytes() const {
  uint64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.bytes.size();
  return total;
}

void Checkpoint::DropPages(const FileTensor& tensor, std::span<const std::byte> part) const {
  shards_[tensor.shard_idx].DropPages(part);
}

}  // namespace yoke::model
