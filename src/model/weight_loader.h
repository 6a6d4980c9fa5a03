// How a rank gets its slices of a model's matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
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

// Where a model's matrices come from, cut for one rank. Tensors were checked against the inventory,
// so shapes are those of the configuration. Not thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Rows [range) of a matrix, kept as stored (router, embedding, convolutions [channels, 1, taps]).
  virtual Result<kernels::WeightId> RowsAsStored(const std::string& name,
                                                 const shard::Range& rows) = 0;
  // Rows [range) of a trunk matrix, in the trunk's format.
  virtual Result<kernels::WeightId> Rows(const std::string& name, const shard::Range& rows) = 0;
  // A whole trunk matrix.
  virtual Result<kernels::WeightId> Whole(const std::string& name) = 0;
  // Columns [range) of a trunk matrix, in the trunk's format.
  virtual Result<ColumnSlice> Cols(const std::string& name, const shard::Range& cols) = 0;
  // Elements [range) of a tensor of any shape, as one row of f32.
  virtual Result<kernels::WeightId> Vector(const std::string& name,
                                           const shard::Range& elements) = 0;
  virtual Result<kernels::WeightId> WholeVector(const std::string& name) = 0;
  // [range) of the heads' values; what lies past the model's num_heads must be zero.
  virtual Result<kernels::WeightId> HeadVector(const std::string& name, const shard::Range& heads,
                                               size_t num_heads) = 0;
  // MXFP4 experts 0..num_experts-1, each cut along rows or columns, stacked by rows. `pattern`
  // holds
  // "{}" where the expert's number goes.
  virtual Result<kernels::WeightId> ExpertRows(const std::string& pattern, size_t num_experts,
                                               const shard::Range& rows) = 0;
  virtual Result<ColumnSlice> ExpertCols(const std::string& pattern, size_t num_experts,
                                         const shard::Range& cols) = 0;
};

// The source that loads: copies slices of a checkpoint's tensors into a backend and lets the file's
// pages go. Checkpoint and backend outlive it.
class WeightLoader final : public WeightSource {
 public:
  // on_bytes: called with the file bytes copied so far.
  WeightLoader(const Checkpoint& checkpoint, kernels::Backend& backend, TrunkFormat trunk,
               std::function<void(uint64_t)> on_bytes);

  Result<kernels::WeightId> RowsAsStored(const std::string& name,
                                         const shard::Range& rows) override;
  Result<kernels::WeightId> Rows(const std::string& name, const shard::Range& rows) override;
  Result<kernels::WeightId> Whole(const std::string& name) override;
  Result<ColumnSlice> Cols(const std::string& name, const shard::Range& cols) override;
  Result<kernels::WeightId> Vector(const std::string& name, const shard::Range& elements) override;
  Result<kernels::WeightId> WholeVector(const std::string& name) override;
  Result<kernels::WeightId> HeadVector(const std::string& name, const shard::Range& heads,
                                       size_t num_heads) override;
  Result<kernels::WeightId> ExpertRows(const std::string& pattern, size_t num_experts,
                                       const shard::Range& rows) override;
  Result<ColumnSlice> ExpertCols(const std::string& pattern, size_t num_experts,
                                 const shard::Range& cols) override;

 private:
  Result<const FileTensor*> Find(const std::string& name) const;
  HostMatrix CopyRows(const FileTensor& tensor, const shard::Range& rows, bool to_q8);
  // Counts `num_bytes` as done, and lets go of the file pages that hold them.
  void Copied(const FileTensor& tensor, std::span<const std::byte> part, size_t num_bytes);

  const Checkpoint& checkpoint_;
  kernels::Backend& backend_;
  TrunkFormat trunk_;
  std::function<void(uint64_t)> on_bytes_;
  uint64_t bytes_copied_ = 0;
};

// Name of one expert's matrix: `pattern` with its "{}" replaced.
std::string ExpertName(const std::string& pattern, size_t expert);

}  // namespace yoke::model
