#include "model/kimi_k3.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/kimi_k3_buffers.h"

namespace yoke::model {

using kernels::Backend;
using kernels::BufferId;
using kernels::kCacheBlockTokens;
using kernels::View;

KimiK3::KimiK3(const KimiK3Config& config, std::vector<KimiK3Shard> shards, KimiK3Weights weights,
               Backend& backend, fabric::Group& group, Options options)
    : config_(config),
      shards_(std::move(shards)),
      shard_(shards_[static_cast<size_t>(group.rank())]),
      weights_(std::move(weights)),
      backend_(backend),
      group_(group),
      options_(options),
      buffers_(std::make_unique<KimiK3Buffers>(config_, shard_, weights_, options.tokens_max,
                                               backend)) {}

KimiK3::~KimiK3() {
  backend_.Flush();
  buffers_->FreeAll();
}

// ---- The forward pass ----

Result<View> KimiK3::Forward(std::span<const SequenceStep> steps) {
  BeginStep(steps);
  const KimiK3Buffers& b = *buffers_;
  const View prefix = b.prefix.Rows(0, num_tokens_);
  const View h = b.h.Rows(0, num_tokens_);
  const View x = b.x.Rows(0, num_tokens_);
  const View y = b.y.Rows(0, num_tokens_);

  YOKE_RETURN_IF_ERROR(Embed());
  for (size_t layer_idx = 0; layer_idx < config_.num_layers; ++layer_idx) {
    const LayerWeights& w = weights_.layers[layer_idx];

    if (num_bank_ > 0) Mix(w.attn_res, h);
    backend_.RmsNorm(num_bank_ > 0 ? h : prefix, w.attn_norm, config_.norm_eps, x);
    const bool boundary = layer_idx % config_.attn_res_block == 0;
    if (boundary) {  // the raw prefix goes to the bank, and its accumulation starts anew
      backend_.Copy(prefix, b.bank.Rows(num_bank_ * options_.tokens_max, num_tokens_));
      ++num_bank_;
    }
    YOKE_RETURN_IF_ERROR(Attention(layer_idx));
    if (boundary) {
      backend_.Copy(y, prefix);
    } else {
      backend_.Add(y, prefix);
    }

    Mix(w.ffn_res, h);
    backend_.RmsNorm(h, w.ffn_norm, config_.norm_eps, x);
    YOKE_RETURN_IF_ERROR(FeedForward(w));
    backend_.Add(y, prefix);
    if (observer_) observer_(layer_idx, prefix);
  }
  const View logits = Logits();
  for (const SequenceStep& step : steps_) step.state->position += step.tokens.size();
  return logits;
}

Status KimiK3::Embed() {
  const View prefix = buffers_->prefix.Rows(0, num_tokens_);
  backend_.Embed(weights_.embedding, shard_.vocab.begin, tokens_, prefix);
  return AllReduce(prefix);  // one rank has the row, the others zeros
}

Status KimiK3::Attention(size_t layer_idx) {
  const LayerKind kind = config_.layer_kinds[layer_idx];
  const auto begin = config_.layer_kinds.begin();
  const auto same_kind_before =
      static_cast<size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(layer_idx), kind));
  const LayerWeights& w = weights_.layers[layer_idx];
  if (kind == LayerKind::kKda) {
    Kda(*w.kda, same_kind_before);
  } else {
    Mla(*w.mla, same_kind_before);
  }
  return AllReduce(buffers_->y.Rows(0, num_tokens_));
}

void KimiK3::Kda(const KdaWeights& w, size_t kda_idx) {
  const KimiK3Buffers& b = *buffers_;
  const auto rows = [this](const View& view) { return view.Rows(0, num_tokens_); };
  backend_.Linear(rows(b.x), {{w.q_proj, rows(b.kda.q)},
                              {w.k_proj, rows(b.kda.k)},
                              {w.v_proj, rows(b.kda.v)},
                              {w.g_proj, rows(b.kda.gate)},
                              {w.f_a_proj, rows(b.kda.f_a)},
                              {w.b_proj, rows(b.kda.beta)}});
  backend_.Linear(rows(b.kda.f_a), {{w.f_b_proj, rows(b.kda.forget)}});

  const size_t num_steps = steps_.size();
  for (size_t i = 0; i < num_steps; ++i) {
    conv_states_[kda_idx * num_steps + i] = steps_[i].state->kda_conv[kda_idx];
    delta_states_[kda_idx * num_steps + i] = steps_[i].state->kda_delta[kda_idx];
  }
  backend_.Kda({.num_heads = shard_.kda_heads.size(),
                .head_dim = config_.kda_head_dim,
                .gate_lower_bound = config_.kda_gate_lower_bound,
                .norm_eps = config_.norm_eps,
                .l2_eps = config_.l2_eps,
                .q = rows(b.kda.q),
                .k = rows(b.kda.k),
                .v = rows(b.kda.v),
                .forget = rows(b.kda.forget),
                .beta = rows(b.kda.beta),
                .gate = rows(b.kda.gate),
                .q_conv = w.q_conv,
                .k_conv = w.k_conv,
                .v_conv = w.v_conv,
                .a_log = w.a_log,
                .dt_bias = w.dt_bias,
                .o_norm = w.o_norm,
                .segments = segments_,
                .conv_states = std::span(conv_states_).subspan(kda_idx * num_steps, num_steps),
                .delta_states = std::span(delta_states_).subspan(kda_idx * num_steps, num_steps),
                .out = rows(b.kda.out_own)});
  backend_.Linear(rows(b.kda.out), {{w.o_proj.weight, rows(b.y)}});
}

void KimiK3::Mla(const MlaWeights& w, size_t mla_idx) {
  const KimiK3Buffers& b = *buffers_;
  const auto rows = [this](const View& view) { return view.Rows(0, num_tokens_); };
  backend_.Linear(rows(b.x), {{w.q_a_proj, rows(b.mla.q_a)},
                              {w.kv_a_proj, rows(b.mla.kv_a)},
                              {w.g_proj, rows(b.mla.gate)}});
  backend_.RmsNorm(rows(b.mla.q_a), w.q_a_norm, config_.latent_norm_eps, rows(b.mla.q_a));
  backend_.Linear(rows(b.mla.q_a), {{w.q_b_proj, rows(b.mla.q)}});

  const size_t num_steps = steps_.size();
  for (size_t i = 0; i < num_steps; ++i) {
    caches_[mla_idx * num_steps + i] = steps_[i].state->mla_blocks[mla_idx];
  }
  backend_.Mla({.num_heads = shard_.mla_heads.size(),
                .rank = config_.kv_lora_rank,
                .nope_dim = config_.qk_nope_dim,
                .rope_dim = config_.qk_rope_dim,
                .v_dim = config_.v_dim,
                .norm_eps = config_.latent_norm_eps,
                .q = rows(b.mla.q),
                .kv_a = rows(b.mla.kv_a),
                .gate = rows(b.mla.gate),
                .kv_a_norm = w.kv_a_norm,
                .kv_b = w.kv_b_proj,
                .segments = segments_,
                .caches = std::span(caches_).subspan(mla_idx * num_steps, num_steps),
                .out = rows(b.mla.out_own)});
  backend_.Linear(rows(b.mla.out), {{w.o_proj.weight, rows(b.y)}});
}

Status KimiK3::FeedForward(const LayerWeights& w) {
  if (w.dense) {
    DenseFfn(*w.dense);
  } else {
    YOKE_RETURN_IF_ERROR(Moe(*w.moe));
  }
  return AllReduce(buffers_->y.Rows(0, num_tokens_));
}

void KimiK3::DenseFfn(const FfnWeights& w) {
  const KimiK3Buffers& b = *buffers_;
  const auto rows = [this](const View& view) { return view.Rows(0, num_tokens_); };
  const FfnBuffers& f = b.dense;
  backend_.Linear(rows(b.x), {{w.gate_proj, rows(f.gate)}, {w.up_proj, rows(f.up)}});
  backend_.Situ(rows(f.gate), rows(f.up), config_.situ_beta, config_.situ_linear_beta,
                rows(f.act_own));
  backend_.Linear(rows(f.act), {{w.down_proj.weight, rows(b.y)}});
}

Status KimiK3::Moe(const MoeWeights& w) {
  const KimiK3Buffers& b = *buffers_;
  const auto rows = [this](const View& view) { return view.Rows(0, num_tokens_); };
  backend_.Linear(rows(b.x), {{w.latent_down_proj, rows(b.moe.latent_part)},
                              {w.router, rows(b.moe.router_part)},
                              {w.shared.gate_proj, rows(b.shared.gate)},
                              {w.shared.up_proj, rows(b.shared.up)}});
  YOKE_RETURN_IF_ERROR(GatherLatentAndRouter());

  backend_.Route({.top_k = config_.experts_per_token,
                  .renormalize = config_.renormalize,
                  .scale = config_.routed_scale,
                  .logits = rows(b.moe.router),
                  .bias = w.correction_bias,
                  .expert_ids = rows(b.moe.expert_ids),
                  .weights = rows(b.moe.weights)});
  backend_.Moe({.num_experts = config_.num_experts,
                .situ_beta = config_.situ_beta,
                .situ_linear_beta = config_.situ_linear_beta,
                .z = rows(b.moe.latent),
                .expert_ids = rows(b.moe.expert_ids),
                .weights = rows(b.moe.weights),
                .w1 = w.w1,
                .w3 = w.w3,
                .w2 = w.w2.weight,
                .inner_offset = w.w2.offset,
                .y = rows(b.moe.sum)});
  YOKE_RETURN_IF_ERROR(AllReduce(rows(b.moe.sum)));  // the norm needs the complete sum
  backend_.RmsNorm(rows(b.moe.sum), w.latent_norm, config_.norm_eps, rows(b.moe.sum));

  // This rank's columns of the up-projection, and its part of the shared experts: one all-reduce
  // completes both.
  const shard::Range& own = shard_.latent_cols;
  backend_.Copy(rows(b.moe.sum).Cols(own.begin, own.size()), rows(b.moe.up_in_own));
  backend_.Linear(rows(b.moe.up_in), {{w.latent_up_proj.weight, rows(b.moe.up_out)}});
  backend_.Situ(rows(b.shared.gate), rows(b.shared.up), config_.situ_beta, config_.situ_linear_beta,
                rows(b.shared.act_own));
  backend_.Linear(rows(b.shared.act), {{w.shared.down_proj.weight, rows(b.y)}});
  backend_.Add(rows(b.moe.up_out), rows(b.y));
  return Ok{};
}

void KimiK3::Mix(const AttnResWeights& w, const View& out) {
  const KimiK3Buffers& b = *buffers_;
  backend_.AttnRes({.prefix = b.prefix.Rows(0, num_tokens_),
                    .bank = b.bank.Rows(0, num_tokens_),
                    .num_bank = num_bank_,
                    .bank_stride = options_.tokens_max * config_.model_dim,
                    .norm = w.norm,
                    .proj = w.proj,
                    .eps = config_.norm_eps,
                    .out = out});
}

View KimiK3::Logits() {
  const KimiK3Buffers& b = *buffers_;
  const View h = b.h.Rows(0, num_tokens_);
  Mix(weights_.output_res, h);
  backend_.RmsNorm(h, weights_.output_norm, config_.norm_eps, h);
  size_t num_rows = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].logits == LogitRows::kNone) continue;
    const kernels::Segment& segment = segments_[i];
    const size_t count = steps_[i].logits == LogitRows::kAll ? segment.num_rows : 1;
    const size_t first = segment.first_row + segment.num_rows - count;
    backend_.Copy(h.Rows(first, count), b.head_in.Rows(num_rows, count));
    num_rows += count;
  }
  const View logits = b.logits.Rows(0, num_rows);
  if (num_rows > 0) {
    backend_.Linear(b.head_in.Rows(0, num_rows), {{weights_.lm_head, logits}});
  }
  return logits;
}

// ---- Collectives ----

Status KimiK3::AllReduce(const View& view) {
  if (group_.num_ranks() == 1) return Ok{};
  const std::span<float> values = std::span(host_).first(view.rows * view.cols);
  backend_.Read(view, values);
  YOKE_RETURN_IF_ERROR(group_.AllReduce(values));
  backend_.Write(view, values);
  return Ok{};
}

// Each rank has computed some columns of the latent input and of the router's scores; afterwards
// every rank has them all. One collective: rank r's part is its latent rows, then its scores.
Status KimiK3::GatherLatentAndRouter() {
  const KimiK3Buffers& b = *buffers_;
  std::vector<size_t>& offsets = gather_offsets_;
  offsets.assign(1, 0);
  for (const KimiK3Shard& shard : shards_) {
    offsets.push_back(offsets.back() +
                      num_tokens_ * (shard.latent_rows.size() + shard.router_rows.size()));
  }
  const std::span<float> all = std::span(host_).first(offsets.back());
  const auto parts_of = [&](size_t rank) {
    const size_t latent_size = num_tokens_ * shards_[rank].latent_rows.size();
    const std::span<float> part = all.subspan(offsets[rank], offsets[rank + 1] - offsets[rank]);
    return std::pair(part.first(latent_size), part.subspan(latent_size));
  };
  const auto own = parts_of(static_cast<size_t>(group_.rank()));
  backend_.Read(b.moe.latent_part.Rows(0, num_tokens_), own.first);
  backend_.Read(b.moe.router_part.Rows(0, num_tokens_), own.second);
  YOKE_RETURN_IF_ERROR(group_.AllGather(all, offsets));
  for (size_t rank = 0; rank < shards_.size(); ++rank) {
    const KimiK3Shard& shard = shards_[rank];
    const auto part = parts_of(rank);
    backend_.Write(
        b.moe.latent.Rows(0, num_tokens_).Cols(shard.latent_rows.begin, shard.latent_rows.size()),
        part.first);
    backend_.Write(
        b.moe.router.Rows(0, num_tokens_).Cols(shard.router_rows.begin, shard.router_rows.size()),
        part.second);
  }
  return Ok{};
}

// ---- Sequences ----

std::unique_ptr<SequenceState> KimiK3::NewSequence() {
  auto state = std::make_unique<SequenceState>();
  const size_t channels = shard_.kda_heads.size() * config_.kda_head_dim;
  const size_t delta_cols = config_.kda_head_dim * config_.kda_head_dim;
  const size_t conv_size = 9 * channels;
  const size_t delta_size = shard_.kda_heads.size() * delta_cols;
  const size_t num_kda = config_.NumLayers(LayerKind::kKda);
  state->kda_buffer = backend_.Allocate(num_kda * (conv_size + delta_size));
  for (size_t i = 0; i < num_kda; ++i) {
    const size_t offset = i * (conv_size + delta_size);
    state->kda_conv.push_back({state->kda_buffer, offset, 9, channels, channels});
    state->kda_delta.push_back(
        {state->kda_buffer, offset + conv_size, shard_.kda_heads.size(), delta_cols, delta_cols});
  }
  state->mla_blocks.resize(config_.NumLayers(LayerKind::kMla));
  return state;
}

void KimiK3::Release(SequenceState& state) {
  backend_.Free(state.kda_buffer);
  for (const std::vector<BufferId>& blocks : state.mla_blocks) {
    for (const BufferId block : blocks) backend_.Free(block);
  }
  state = {};
}

void KimiK3::GrowCache(SequenceState& state, size_t num_positions) {
  const size_t row = config_.kv_lora_rank + config_.qk_rope_dim;
  for (std::vector<BufferId>& blocks : state.mla_blocks) {
    while (blocks.size() * kCacheBlockTokens < num_positions) {
      blocks.push_back(backend_.Allocate(kCacheBlockTokens * row));
    }
  }
}

void KimiK3::BeginStep(std::span<const SequenceStep> steps) {
  steps_.assign(steps.begin(), steps.end());
  segments_.clear();
  tokens_.clear();
  num_bank_ = 0;
  for (const SequenceStep& step : steps) {
    YOKE_CHECK(!step.tokens.empty());
    YOKE_CHECK(step.prefill ? step.state->position % kernels::kKdaSubChunk == 0
                            : step.tokens.size() == 1);
    segments_.push_back({.first_row = tokens_.size(),
                         .num_rows = step.tokens.size(),
                         .position = step.state->position,
                         .prefill = step.prefill});
    tokens_.insert(tokens_.end(), step.tokens.begin(), step.tokens.end());
    GrowCache(*step.state, step.state->position + step.tokens.size());
  }
  num_tokens_ = tokens_.size();
  YOKE_CHECK(num_tokens_ <= options_.tokens_max);
  // Sized here, so that spans into them stay valid for the step.
  conv_states_.resize(steps.size() * config_.NumLayers(LayerKind::kKda));
  delta_states_.resize(conv_states_.size());
  caches_.resize(steps.size() * config_.NumLayers(LayerKind::kMla));
  host_.resize(num_tokens_ * std::max(config_.model_dim, config_.latent_dim + config_.num_experts));
}

}  // namespace yoke::model
