// A copy of the demo model that a test may spoil.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "model/model_fixture.h"
#include "model/safetensors.h"

namespace yoke::integration {

inline const std::string& DemoFolder() {
  static const std::string folder = std::string(YOKE_SOURCE_DIR) + "/models/demo-k3";
  return folder;
}

// Files are links to the demo's until they are written.
class ModelCopy {
 public:
  static constexpr const char* kIndex = "model.safetensors.index.json";

  ModelCopy() {
    for (const auto& entry : std::filesystem::directory_iterator(DemoFolder())) {
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                      folder_.PathOf(entry.path().filename()));
    }
  }

  const std::string& path() const { return folder_.path(); }
  std::string Read(const std::string& name) const {
    std::ifstream in(folder_.PathOf(name), std::ios::binary);
    YOKE_CHECK(in.good());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void Remove(const std::string& name) const {
    YOKE_CHECK(std::filesystem::remove(folder_.PathOf(name)));
  }
  void Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::remove(folder_.PathOf(name));
    folder_.Write(name, bytes);
  }
  void EditJson(const std::string& name, const std::function<void(Json&)>& edit) const {
    Json json = ParseJson(Read(name), 1 << 24).value();
    edit(json);
    Write(name, DumpJson(json));
  }

  // The file of the index that holds the tensor.
  std::string ShardOf(const std::string& tensor) const {
    const Json index = ParseJson(Read(kIndex), 1 << 24).value();
    const Json& weight_map = index["weight_map"];
    YOKE_CHECK(weight_map.contains(tensor));
    return weight_map[tensor].get<std::string>();
  }

  // Rewrites a shard with other tensors, and the index with it.
  void EditShard(const std::string& shard,
                 const std::function<void(std::vector<model::TensorToWrite>&)>& edit) const {
    const std::string file = Read(shard);
    const model::TensorMap map =
        model::ParseSafetensors(std::as_bytes(std::span(file.data(), file.size()))).value();
    std::vector<model::TensorToWrite> tensors;
    for (const auto& [name, tensor] : map) {
      tensors.push_back(
          {name,
           tensor.dtype_name,
           tensor.shape,
           {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}});
    }
    edit(tensors);
    Write(shard, model::MakeSafetensors(tensors));
    EditJson(kIndex, [&](Json& index) {
      Json weight_map = Json::object();
      for (const auto& [name, where] : index["weight_map"].items()) {
        if (where != shard) weight_map[name] = where;
      }
      for (const model::TensorToWrite& tensor : tensors) weight_map[tensor.name] = shard;
      index["weight_map"] = std::move(weight_map);
    });
  }

  // Changes one tensor.
  void EditTensor(const std::string& name,
                  const std::function<void(model::TensorToWrite&)>& edit) const {
    EditShard(ShardOf(name), [&](std::vector<model::TensorToWrite>& tensors) {
      for (model::TensorToWrite& tensor : tensors) {
        if (tensor.name == name) edit(tensor);
      }
    });
  }

 private:
  model::TempFolder folder_;
};

}  // namespace yoke::integration
