#include "model/footprint.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "model/inventory.h"
#include "model/kimi_k3_shard.h"
#include "model/kimi_k3_weights.h"

namespace yoke::model {
namespace {

using kernels::WeightId;
using shard::Range;
using SpecsByName = std::unordered_map<std::string, TensorSpec>;

// A source that only adds up sizes.
class Counter final : public WeightSource {
 public:
  Counter(const SpecsByName& specs, TrunkFormat trunk) : specs_(specs), trunk_(trunk) {}

  Result<WeightId> RowsAsStored(const std::string& name, const Range& rows) override {
    const Shape shape = Find(name);
    const uint64_t bytes = Count(shape.dtype, rows.size(), shape.cols);
    if (shape.role == TensorRole::kEmbedding) footprint_.embedding_bytes += bytes;
    CountFile(shape, rows.size(), shape.cols);
    return WeightId{};
  }
  Result<WeightId> Rows(const std::string& name, const Range& rows) override {
    const Shape shape = Find(name);
    Count(TrunkDType(shape), rows.size(), shape.cols);
    CountFile(shape, rows.size(), shape.cols);
    return WeightId{};
  }
  Result<WeightId> Whole(const std::string& name) override {
    return Rows(name, {0, Find(name).rows});
  }
  Result<ColumnSlice> Cols(const std::string& name, const Range& cols) override {
    const Shape shape = Find(name);
    const DType dtype = TrunkDType(shape);
    const Range kept = IsBlockFormat(dtype) ? shard::CoverBlocks(cols, kBlockCols) : cols;
    Count(dtype, shape.rows, kept.size());
    CountFile(shape, shape.rows, kept.size());
    return ColumnSlice{WeightId{}, cols.begin - kept.begin, kept.size()};
  }
  Result<WeightId> Vector(const std::string& name, const Range& elements) override {
    Count(DType::kF32, 1, elements.size());
    CountFile(Find(name), 1, elements.size());
    return WeightId{};
  }
  Result<WeightId> WholeVector(const std::string& name) override {
    const Shape shape = Find(name);
    return Vector(name, {0, shape.rows * shape.cols});
  }
  Result<WeightId> HeadVector(const std::string& name, const Range& heads, size_t) override {
    return Vector(name, heads);
  }
  Result<WeightId> ExpertRows(const std::string& pattern, size_t num_experts,
                              const Range& rows) override {
    const Shape packed = Find(ExpertName(pattern, 0) + ".weight_packed");
    CountExperts(num_experts * rows.size(), 2 * packed.cols);
    return WeightId{};
  }
  Result<ColumnSlice> ExpertCols(const std::string& pattern, size_t num_experts,
                                 const Range& cols) override {
    const Shape packed = Find(ExpertName(pattern, 0) + ".weight_packed");
    const Range kept = shard::CoverBlocks(cols, kBlockCols);
    CountExperts(num_experts * packed.rows, kept.size());
    return ColumnSlice{WeightId{}, cols.begin - kept.begin, kept.size()};
  }

  RankFootprint& footprint() { return footprint_; }

 private:
  struct Shape {
    DType dtype;
    size_t rows, cols;
    TensorRole role;
  };

  Shape Find(const std::string& name) const {
    const auto it = specs_.find(name);
    YOKE_CHECK(it != specs_.end());
    const TensorSpec& spec = it->second;
    size_t cols = 1;
    for (size_t i = 1; i < spec.shape.size(); ++i) cols *= spec.shape[i];
    const DType dtype = spec.dtype == FileDType::kBf16 ? DType::kBf16 : DType::kF32;
    return {dtype, spec.shape[0], cols, spec.role};
  }

  DType TrunkDType(const Shape& shape) const {
    const bool q8 =
        trunk_ == TrunkFormat::kQ8_0 && shape.dtype == DType::kBf16 && shape.cols % kBlockCols == 0;
    return q8 ? DType::kQ8_0 : shape.dtype;
  }

  uint64_t Count(DType dtype, size_t rows, size_t cols) {
    const uint64_t bytes = rows * (DataBytes(dtype, cols) + ScaleBytes(dtype, cols));
    footprint_.bytes_by_dtype[dtype] += bytes;
    footprint_.total_bytes += bytes;
    return bytes;
  }
  void CountFile(const Shape& shape, size_t rows, size_t cols) {
    footprint_.file_bytes += rows * DataBytes(shape.dtype, cols);
  }
  void CountExperts(size_t rows, size_t cols) {
    const uint64_t bytes = Count(DType::kMxfp4, rows, cols);
    footprint_.expert_bytes += bytes;
    footprint_.file_bytes += bytes;
  }

  const SpecsByName& specs_;
  const TrunkFormat trunk_;
  RankFootprint footprint_;
};

}  // namespace

Result<std::vector<RankFootprint>> FootprintOf(const KimiK3Config& config,
                                               std::span<const size_t> shares, TrunkFormat trunk) {
  YOKE_TRY(const std::vector<KimiK3Shard> shards, ShardKimiK3(config, shares));
  SpecsByName specs;
  for (TensorSpec& spec : ListTensors(config, /*with_vision=*/false)) {
    // One expert stands for the half million tensors of all.
    if (spec.role == TensorRole::kExpert && spec.name.find(".experts.0.") == std::string::npos) {
      continue;
    }
    std::string name = spec.name;
    specs.emplace(std::move(name), std::move(spec));
  }
  std::vector<RankFootprint> footprints;
  for (const KimiK3Shard& shard : shards) {
    Counter counter(specs, trunk);
    YOKE_TRY(const KimiK3Weights unused, LoadKimiK3Weights(config, shard, counter));
    static_cast<void>(unused);
    RankFootprint footprint = std::move(counter.footprint());
    footprint.bytes_per_token =
        footprint.total_bytes - footprint.embedding_bytes - footprint.expert_bytes +
        footprint.expert_bytes / config.num_experts * config.experts_per_token;
    const size_t d = config.kda_head_dim;
    footprint.state_bytes = sizeof(float) * config.NumLayers(LayerKind::kKda) *
                            shard.kda_heads.size() * (9 * d + d * d);
    footprint.cache_bytes_per_token = sizeof(float) * config.NumLayers(LayerKind::kMla) *
                                      (config.kv_lora_rank + config.qk_rope_dim);
    footprints.push_back(std::move(footprint));
  }
  return footprints;
}

}  // namespace yoke::model
