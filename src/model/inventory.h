// Every tensor that a Kimi K3 checkpoint must hold, from its configuration alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace yoke::model {

// Which parameters a tensor holds; for counting.
enum class TensorRole { kEmbedding, kTrunk, kExpert, kVision };

struct TensorSpec {
  std::string name;
  FileDType dtype = FileDType::kBf16;
  std::vector<size_t> shape;
  TensorRole role = TensorRole::kTrunk;
  // Parameters that it stands for: its elements; twice its bytes for packed MXFP4, 0 for scales.
  uint64_t num_params = 0;
};

// All text tensors, names as in kimi-k3 checkpoints ("language_model." prefix), in layer order;
// with_vision adds the vision tower's.
std::vector<TensorSpec> ListTensors(const KimiK3Config& config, bool with_vision);

struct ModelCounts {
  uint64_t num_tensors = 0;
  uint64_t num_vision_tensors = 0;
  uint64_t params_total = 0;     // text
  uint64_t params_active = 0;    // per token: without the embedding table, top-k experts only
  uint64_t bytes_per_token = 0;  // weight bytes read for one decoded token, as stored
  uint64_t expert_bytes_per_token = 0;  // of bytes_per_token
};
ModelCounts CountModel(const KimiK3Config& config);

// Compares a checkpoint with the list: the first missing, extra (not a known vision name),
// misshapen or wrong-typed tensor is an error that names it and says what was expected. Vision
// tensors may be there, in any shape, since they are not loaded. A_log may be any length of at
// least num_heads if the rest is zero (checked when loaded).
Status CheckInventory(const Checkpoint& checkpoint, const KimiK3Config& config);

}  // namespace yoke::model
