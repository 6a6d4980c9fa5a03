// Copies this rank's slices of a checkpoint's tensors into a backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "kernels/backend.h"
#include "model/checkpoint.h"
#include "shard/partition.h"

namespace yoke::model {

// How the trunk (everything outside the routed experts) is kept in memory.
enum class TrunkFormat { kAsStored, kQ8_0 };

// A matrix sliced along its columns. Its input is `cols` wide, of which this rank's activations
// fill [offset, offset + n): with a block format the borders widen to whole blocks, and what lies
// outside the rank's own columns must be zero in the input.
struct ColumnSlice {
  kernels::WeightId weight;
  size_t offset = 0;
  size_t cols = 0;
};

// Tensors were checked against the inventory, so shapes are those of the configuration. Not
// thread-safe; checkpoint and backend outlive it.
class WeightLoader {
 public:
  // on_bytes: called with the file bytes copied so far.
  WeightLoader(const Checkpoint& checkpoint, kernels::Backend& backend, TrunkFormat trunk,
               std::function<void(uint64_t)> on_bytes);

  // Rows [range) of a matrix, kept as stored (router, embedding, ...).
  Result<kernels::WeightId> RowsAsStored(const std::string& name, const shard::Range& rows);
  // Rows [range) of a trunk matrix, in the trunk's format.
  Result<kernels::WeightId> Rows(const std::string& name, const shard::Range& rows);
  // A whole trunk matrix.
  Result<kernels::WeightId> Whole(const std::string& name);
  // Columns [range) of a trunk matrix, in the trunk's format.
  Result<ColumnSlice> Cols(const std::string& name, const shard::Range& cols);
  // Elements [range) of a tensor of any shape, as one row of f32.
  Result<kernels::WeightId> Vector(const std::string& name, const shard::Range& elements);
  Result<kernels::WeightId> WholeVector(const std::string& name);
  // [range) of the heads' values; what lies past the model's num_heads must be zero.
  Result<kernels::WeightId> HeadVector(const std::string& name, const shard::Range& heads,
                                       size_t num_heads);
  // f32 rows [range) of a tensor [channels, 1, taps].
  Result<kernels::WeightId> ConvRows(const std::string& name, const shard::Range& channels);

  // MXFP4 experts 0..num_experts-1, each sliced along rows, stacked by rows. `pattern` holds "{}"
  // where the expert's number goes.
  Result<kernels::WeightId> ExpertRows(const std::string& pattern, size_t num_experts,
                                       const shard::Range& rows);
  Result<ColumnSlice> ExpertCols(const std::string& pattern, size_t num_experts,
                                 const shard::Range& cols);

  uint64_t bytes_copied() const { return bytes_copied_; }

 private:
  Result<const FileTensor*> Find(const std::string& name) const;
  HostMatrix CopyRows(const FileTensor& tensor, const shard::Range& rows, bool to_q8);
  void Copied(const FileTensor& tensor, std::span<const std::byte> part);

  const Checkpoint& checkpoint_;
  kernels::Backend& backend_;
  TrunkFormat trunk_;
  std::function<void(uint64_t)> on_bytes_;
  uint64_t bytes_copied_ = 0;
};

}  // namespace yoke::model
