#include "kernels/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <hwy/highway.h>

#include "base/check.h"
#include "kernels/cpu_ops.h"
#include "kernels/cpu_queue.h"
#include "sys/memory.h"

namespace yoke::kernels {
namespace {

using cpu::Rows;
using cpu::Weight;

// Buffers and weights by handle. Memory stays where it is until a buffer is released.
class Memory : public cpu::BufferTable {
 public:
  BufferId Allocate(size_t num_elements) {
    uint32_t index = static_cast<uint32_t>(buffers_.size());
    if (unused_.empty()) {
      buffers_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    buffers_[index] = {PageBuffer(num_elements * sizeof(float)), num_elements, true};
    return {index};
  }

  void FreeAtFlush(BufferId id) {
    YOKE_CHECK(id.index < buffers_.size() && buffers_[id.index].live);
    buffers_[id.index].live = false;
    freed_.push_back(id.index);
  }

  void ReleaseFreed() {
    for (const uint32_t index : freed_) {
      buffers_[index] = {};
      unused_.push_back(index);
    }
    freed_.clear();
  }

  float* Data(BufferId id) const override { return buffers_[id.index].memory_ptr(); }

  // The view must lie inside a live buffer.
  Rows At(const View& view) const {
    YOKE_CHECK(view.buffer.index < buffers_.size());
    const Buffer& buffer = buffers_[view.buffer.index];
    YOKE_CHECK(buffer.live);
    if (view.rows > 0 && view.cols > 0) {
      YOKE_CHECK(view.rows == 1 || view.stride >= view.cols);
      YOKE_CHECK(view.offset + (view.rows - 1) * view.stride + view.cols <= buffer.num_elements);
    }
    return {buffer.memory_ptr() + view.offset, view.rows, view.cols, view.stride};
  }
  Rows At(const View& view, size_t rows, size_t cols) const {
    YOKE_CHECK(view.rows == rows && view.cols == cols);
    return At(view);
  }

  WeightId AddWeight(HostMatrix matrix) {
    weights_.push_back(std::move(matrix));
    return {static_cast<uint32_t>(weights_.size() - 1)};
  }

  Weight At(WeightId id) const {
    YOKE_CHECK(id.index < weights_.size());
    const HostMatrix& matrix = weights_[id.index];
    return {.dtype = matrix.dtype,
            .rows = matrix.rows,
            .cols = matrix.cols,
            .data = matrix.data.data(),
            .scales = matrix.scales.data(),
            .data_stride = DataBytes(matrix.dtype, matrix.cols),
            .scale_stride = ScaleBytes(matrix.dtype, matrix.cols)};
  }
  Weight At(WeightId id, size_t rows, size_t cols) const {
    const Weight weight = At(id);
    YOKE_CHECK(weight.rows == rows && weight.cols == cols);
    return weight;
  }

 private:
  struct Buffer {
    PageBuffer memory;
    size_t num_elements = 0;
    bool live = false;

    // What a buffer holds is not part of the table.
    float* memory_ptr() const { return const_cast<float*>(memory.as<float>()); }
  };
  std::vector<Buffer> buffers_;
  std::vector<uint32_t> freed_;   // until the flush
  std::vector<uint32_t> unused_;  // indices to give out again
  std::deque<HostMatrix> weights_;
};

uint64_t NumBytes(const Weight& weight) {
  return weight.rows * (weight.data_stride + weight.scale_stride);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : queue_({.num_threads = options.num_threads, .oversubscribed = options.oversubscribed}) {
    // The kernels are compiled for these targets only.
    YOKE_CHECK((hwy::SupportedTargets() & HWY_TARGETS) != 0);
  }

  std::string_view name() const override { return "cpu"; }

  BufferId Allocate(size_t num_elements) override { return memory_.Allocate(num_elements); }
  void Free(BufferId buffer) override { memory_.FreeAtFlush(buffer); }
  WeightId AddWeight(HostMatrix matrix) override { return memory_.AddWeight(std::move(matrix)); }
  uint64_t WeightBytesRead() const override { return weight_bytes_read_; }

  void Flush() override {
    queue_.Flush();
    memory_.ReleaseFreed();
  }

  void Read(const View& view, std::span<float> values) override {
    Flush();
    const Rows from = memory_.At(view);
    YOKE_CHECK(values.size() == from.rows * from.cols);
    for (size_t r = 0; r < from.rows; ++r) {
      std::copy_n(from.Row(r), from.cols, values.data() + r * from.cols);
    }
  }

  void Write(const View& view, std::span<const float> values) override {
    Flush();
    const Rows to = memory_.At(view);
    YOKE_CHECK(values.size() == to.rows * to.cols);
    for (size_t r = 0; r < to.rows; ++r) {
      std::copy_n(values.data() + r * to.cols, to.cols, to.Row(r));
    }
  }

  void Embed(WeightId table, size_t first_row, std::span<const int32_t> tokens,
             const View& out) override {
    const Weight weight = memory_.At(table);
    YOKE_CHECK(weight.cols == out.cols && tokens.size() == out.rows);
    YOKE_CHECK(!cpu::WantsEvenOdd(weight.dtype));
    weight_bytes_read_ +=
        NumRowsHeld(weight, first_row, tokens) * (weight.data_stride + weight.scale_stride);
    queue_.Push(cpu::EmbedTask{weight, first_row, tokens.data(), memory_.At(out)});
  }

  void RmsNorm(const View& x, WeightId weight, float eps, const View& y) override {
    YOKE_CHECK(x.cols > 0);
    queue_.Push(cpu::RmsNormTask{memory_.At(x), Vector(weight, x.cols), eps,
                                 memory_.At(y, x.rows, x.cols)});
  }

  void Linear(const View& x, std::initializer_list<Projection> projections) override;
  void Situ(const View& gate, const View& up, float beta, float linear_beta,
            const View& out) override {
    queue_.Push(cpu::SituTask{.gate = memory_.At(gate, out.rows, out.cols),
                              .up = memory_.At(up, out.rows, out.cols),
                              .out = memory_.At(out),
                              .beta = beta,
                              .linear_beta = linear_beta});
  }

  void Copy(const View& x, const View& y) override {
    queue_.Push(cpu::CopyTask{memory_.At(x), memory_.At(y, x.rows, x.cols), false});
  }
  void Add(const View& x, const View& y) override {
    queue_.Push(cpu::CopyTask{memory_.At(x), memory_.At(y, x.rows, x.cols), true});
  }

  void AttnRes(const AttnResArgs& args) override;
  void Kda(const KdaArgs& args) override;
  void Mla(const MlaArgs& args) override;
  void Route(const RouteArgs& args) override;
  void Moe(const MoeArgs& args) override;

 private:
  // An f32 weight [rows, cols], which counts as read.
  const float* F32(WeightId id, size_t rows, size_t cols) {
    const Weight weight = memory_.At(id, rows, cols);
    YOKE_CHECK(weight.dtype == DType::kF32);
    weight_bytes_read_ += NumBytes(weight);
    return weight.f32();
  }
  const float* Vector(WeightId id, size_t cols) { return F32(id, 1, cols); }

  static size_t NumRowsHeld(const Weight& table, size_t first_row,
                            std::span<const int32_t> tokens) {
    size_t count = 0;
    for (const int32_t token : tokens) {
      YOKE_CHECK(token >= 0);
      count += static_cast<size_t>(token) - first_row < table.rows ? 1 : 0;
    }
    return count;
  }

  static void CheckSegments(std::span<const Segment> segments, size_t num_rows);

  Memory memory_;
  uint64_t weight_bytes_read_ = 0;
  cpu::CpuQueue queue_;
};

void CpuBackend::Linear(const View& x, std::initializer_list<Projection> projections) {
  YOKE_CHECK(projections.size() <= kProjectionsMax);
  cpu::LinearTask task{.x = memory_.At(x)};
  size_t num_rows = 0;
  for (const Projection& projection : projections) {
    const Weight weight = memory_.At(projection.weight);
    YOKE_CHECK(weight.cols == x.cols);
    task.weights[task.num_projections] = weight;
    task.y[task.num_projections] = memory_.At(projection.y, x.rows, weight.rows);
    ++task.num_projections;
    weight_bytes_read_ += NumBytes(weight);
    num_rows += weight.rows;
    if (cpu::WantsEvenOdd(weight.dtype)) {
      task.pack_even_odd = true;
    } else if (x.cols % kBlockCols != 0) {
      task.pack_plain = true;
    }
  }
  if (x.rows == 0) return;
  task.unit_rows = cpu::RowsOfUnit(num_rows, queue_.num_threads());
  if (task.num_phases() > 1) queue_.ReserveShared(task.SharedFloats());
  queue_.ReservePerThread(cpu::kMatMulScratch);
  queue_.Push(task);
}

void CpuBackend::AttnRes(const AttnResArgs& args) {
  const size_t rows = args.prefix.rows;
  const size_t cols = args.prefix.cols;
  YOKE_CHECK(args.num_bank <= cpu::AttnResTask::kBankMax);
  cpu::AttnResTask task{.prefix = memory_.At(args.prefix),
                        .num_bank = args.num_bank,
                        .bank_stride = args.bank_stride,
                        .norm = Vector(args.norm, cols),
                        .proj = Vector(args.proj, cols),
                        .eps = args.eps,
                        .out = memory_.At(args.out, rows, cols)};
  if (args.num_bank > 0) {
    View last = args.bank;
    last.offset += (args.num_bank - 1) * args.bank_stride;
    memory_.At(last, rows, cols);
    const Rows first = memory_.At(args.bank, rows, cols);
    task.bank = first.data;
    task.bank_row_stride = first.stride;
  }
  queue_.ReserveShared(task.SharedFloats());
  queue_.Push(task);
}

void CpuBackend::CheckSegments(std::span<const Segment> segments, size_t num_rows) {
  size_t end = 0;
  for (const Segment& segment : segments) {
    YOKE_CHECK(segment.first_row >= end && segment.num_rows <= num_rows &&
               segment.first_row <= num_rows - segment.num_rows);
    end = segment.first_row + segment.num_rows;
  }
}

void CpuBackend::Kda(const KdaArgs& args) {
  const size_t tokens = args.out.rows;
  const size_t width = args.num_heads * args.head_dim;
  CheckSegments(args.segments, tokens);
  YOKE_CHECK(args.conv_states.size() == args.segments.size());
  YOKE_CHECK(args.delta_states.size() == args.segments.size());
  for (size_t s = 0; s < args.segments.size(); ++s) {
    const Segment& segment = args.segments[s];
    YOKE_CHECK(segment.prefill ? segment.position % kKdaSubChunk == 0 : segment.num_rows == 1);
    memory_.At(args.conv_states[s], 3 * (kKdaConvTaps - 1), width);
    memory_.At(args.delta_states[s], args.num_heads, args.head_dim * args.head_dim);
  }
  if (width == 0) return;
  const cpu::KdaTask task{.args = args,
                          .q = memory_.At(args.q, tokens, width),
                          .k = memory_.At(args.k, tokens, width),
                          .v = memory_.At(args.v, tokens, width),
                          .forget = memory_.At(args.forget, tokens, width),
                          .beta = memory_.At(args.beta, tokens, args.num_heads),
                          .gate = memory_.At(args.gate, tokens, width),
                          .out = memory_.At(args.out, tokens, width),
                          .q_conv = F32(args.q_conv, width, kKdaConvTaps),
                          .k_conv = F32(args.k_conv, width, kKdaConvTaps),
                          .v_conv = F32(args.v_conv, width, kKdaConvTaps),
                          .a_log = Vector(args.a_log, args.num_heads),
                          .dt_bias = Vector(args.dt_bias, width),
                          .o_norm = Vector(args.o_norm, args.head_dim),
                          .buffers = &memory_};
  queue_.ReservePerThread(task.ScratchFloats());
  queue_.Push(task);
}

void CpuBackend::Mla(const MlaArgs& args) {
  const size_t tokens = args.out.rows;
  const size_t row_floats = args.rank + args.rope_dim;
  CheckSegments(args.segments, tokens);
  YOKE_CHECK(args.rank > 0 && args.caches.size() == args.segments.size());
  cpu::MlaTask task{
      .args = args,
      .q = memory_.At(args.q, tokens, args.num_heads * (args.nope_dim + args.rope_dim)),
      .kv_a = memory_.At(args.kv_a, tokens, row_floats),
      .gate = memory_.At(args.gate, tokens, args.num_heads * args.v_dim),
      .out = memory_.At(args.out, tokens, args.num_heads * args.v_dim),
      .kv_a_norm = Vector(args.kv_a_norm, args.rank),
      .kv_b = memory_.At(args.kv_b, args.num_heads * (args.nope_dim + args.v_dim), args.rank),
      .buffers = &memory_};
  YOKE_CHECK(!cpu::WantsEvenOdd(task.kv_b.dtype));
  weight_bytes_read_ += NumBytes(task.kv_b);
  for (size_t s = 0; s < args.segments.size(); ++s) {
    const Segment& segment = args.segments[s];
    const size_t num_blocks = cpu::CeilDiv(segment.position + segment.num_rows, kCacheBlockTokens);
    YOKE_CHECK(args.caches[s].size() >= num_blocks);
    for (const BufferId block : args.caches[s].first(num_blocks)) {
      memory_.At({block, 0, kCacheBlockTokens, row_floats, row_floats});
    }
    task.num_units += task.NumTiles(segment);
  }
  task.heads_max =
      std::clamp<size_t>(task.num_units / queue_.num_threads(), 1, cpu::MlaTask::kQueries);
  task.num_units = 0;
  for (const Segment& segment : args.segments) task.num_units += task.NumTiles(segment);
  queue_.ReservePerThread(task.ScratchFloats());
  queue_.Push(task);
}

void CpuBackend::Route(const RouteArgs& args) {
  const size_t tokens = args.logits.rows;
  YOKE_CHECK(args.top_k > 0 && args.top_k <= args.logits.cols);
  const cpu::RouteTask task{.top_k = args.top_k,
                            .renormalize = args.renormalize,
                            .scale = args.scale,
                            .logits = memory_.At(args.logits),
                            .bias = Vector(args.bias, args.logits.cols),
                            .expert_ids = memory_.At(args.expert_ids, tokens, args.top_k),
                            .weights = memory_.At(args.weights, tokens, args.top_k)};
  queue_.ReservePerThread(task.ScratchFloats());
  queue_.Push(task);
}

void CpuBackend::Moe(const MoeArgs& args) {
  const size_t tokens = args.z.rows;
  const size_t latent_dim = args.z.cols;
  const size_t top_k = args.expert_ids.cols;
  const Weight w1 = memory_.At(args.w1);
  const Weight w2 = memory_.At(args.w2);
  YOKE_CHECK(args.num_experts > 0 && w1.rows % args.num_experts == 0);
  const size_t inner = w1.rows / args.num_experts;
  YOKE_CHECK(w1.cols == latent_dim && w2.rows == args.num_experts * latent_dim);
  YOKE_CHECK(args.inner_offset + inner <= w2.cols);
  const size_t num_used = std::min(args.num_experts, tokens * top_k);  // at most
  const size_t num_threads = queue_.num_threads();
  const cpu::MoeTask task{.num_experts = args.num_experts,
                          .inner = inner,
                          .inner_offset = args.inner_offset,
                          .w1_unit_rows = cpu::RowsOfUnit(num_used * inner, num_threads),
                          .w2_unit_rows = cpu::RowsOfUnit(num_used * latent_dim, num_threads),
                          .situ_beta = args.situ_beta,
                          .situ_linear_beta = args.situ_linear_beta,
                          .z = memory_.At(args.z),
                          .expert_ids = memory_.At(args.expert_ids, tokens, top_k),
                          .weights = memory_.At(args.weights, tokens, top_k),
                          .y = memory_.At(args.y, tokens, latent_dim),
                          .w1 = w1,
                          .w3 = memory_.At(args.w3, w1.rows, latent_dim),
                          .w2 = w2,
                          .weight_bytes_read = &weight_bytes_read_};
  queue_.ReserveShared(task.SharedFloats());
  queue_.ReservePerThread(task.ScratchFloats());
  queue_.Push(task);
}

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace yoke::kernels
