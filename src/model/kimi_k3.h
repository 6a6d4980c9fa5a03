// The Kimi K3 text model: one forward pass of a step's tokens over this rank's shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "fabric/group.h"
#include "kernels/backend.h"
#include "model/kimi_k3_weights.h"

namespace yoke::model {

struct KimiK3Buffers;

// What a sequence carries from step to step on this rank. Owned by its model.
struct SequenceState {
  size_t position = 0;                   // tokens done so far
  std::vector<kernels::View> kda_conv;   // one per KDA layer: [9, num_heads * head_dim]
  std::vector<kernels::View> kda_delta;  // one per KDA layer: [num_heads, head_dim * head_dim]
  kernels::BufferId kda_buffer;
  // One list per MLA layer, grown as the sequence grows: blocks of kCacheBlockTokens rows
  // [kv_lora_rank + qk_rope_dim].
  std::vector<std::vector<kernels::BufferId>> mla_blocks;
};

// Which of a sequence's rows in a step need logits.
enum class LogitRows { kNone, kLast, kAll };

// One sequence's part of a step. Prefill parts start at multiples of kKdaSubChunk; so all but the
// last part of a prompt have such a length too. A decode part has one token.
struct SequenceStep {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;
  bool prefill = false;
  LogitRows logits = LogitRows::kNone;
};

class KimiK3 {
 public:
  struct Options {
    size_t tokens_max = 256;  // rows of one step, over all sequences
  };
  // Called after each layer with the residual stream: for tests.
  using LayerObserver = std::function<void(size_t layer_idx, const kernels::View& prefix)>;

  // backend and group outlive the model.
  // shards: all ranks', in rank order.
  KimiK3(const KimiK3Config& config, std::vector<KimiK3Shard> shards, KimiK3Weights weights,
         kernels::Backend& backend, fabric::Group& group, Options options);
  ~KimiK3();
  KimiK3(const KimiK3&) = delete;
  KimiK3& operator=(const KimiK3&) = delete;

  std::unique_ptr<SequenceState> NewSequence();
  void Release(SequenceState& state);

  // Runs the step and advances the states' positions. Fails only when the group does; the states
  // are then of no use. Returns this rank's logits of the rows asked for, in step order:
  // [num_logit_rows, vocab range of the shard].
  Result<kernels::View> Forward(std::span<const SequenceStep> steps);

  void set_layer_observer(LayerObserver observer) { observer_ = std::move(observer); }
  const KimiK3Config& config() const { return config_; }
  const KimiK3Shard& shard() const { return shard_; }
  const std::vector<KimiK3Shard>& shards() const { return shards_; }
  size_t tokens_max() const { return options_.tokens_max; }

 private:
  void BeginStep(std::span<const SequenceStep> steps);
  void GrowCache(SequenceState& state, size_t num_positions);
  Status Embed();
  // Each reads x and leaves the sum over all ranks in y.
  Status Attention(size_t layer_idx);
  Status FeedForward(const LayerWeights& w);
  // Each reads x and leaves this rank's part of the sum in y.
  void Kda(const KdaWeights& w, size_t kda_idx);
  void Mla(const MlaWeights& w, size_t mla_idx);
  void DenseFfn(const FfnWeights& w);
  Status Moe(const MoeWeights& w);
  // The block attention residual over the bank and the live prefix.
  void Mix(const AttnResWeights& w, const kernels::View& out);
  kernels::View Logits();

  // Collectives over activations, with one rank nothing to do.
  Status AllReduce(const kernels::View& view);
  Status GatherLatentAndRouter();

  const KimiK3Config config_;
  const std::vector<KimiK3Shard> shards_;
  const KimiK3Shard shard_;  // ours
  const KimiK3Weights weights_;
  kernels::Backend& backend_;
  fabric::Group& group_;
  const Options options_;
  LayerObserver observer_;
  std::unique_ptr<KimiK3Buffers> buffers_;

  // The step in progress.
  std::vector<SequenceStep> steps_;
  std::vector<kernels::Segment> segments_;
  std::vector<int32_t> tokens_;
  std::vector<kernels::View> conv_states_, delta_states_;
  std::vector<std::span<const kernels::BufferId>> caches_;
  std::vector<float> host_;             // staging for collectives
  std::vector<size_t> gather_offsets_;  // of ranks' parts, in floats
  size_t num_tokens_ = 0;
  size_t num_bank_ = 0;  // AttnRes rows pushed so far
};

}  // namespace yoke::model
