#include "kernels/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "kernels/reference_attention.h"
#include "kernels/reference_memory.h"

namespace yoke::kernels {
namespace {

using reference::Memory;
using reference::Rows;
using reference::Sigmoid;
using reference::Weight;

double Square(double x) {
  return x * x;
}

double Situ(double gate, double up, double beta, double linear_beta) {
  return beta * std::tanh(gate / beta) * Sigmoid(gate) * linear_beta * std::tanh(up / linear_beta);
}

// SiTU(w1_e z_t, w3_e z_t): [inner].
std::vector<double> ExpertActivation(Memory& memory, const MoeArgs& args, size_t inner,
                                     size_t expert, size_t token) {
  const Weight& w1 = memory.Peek(args.w1);
  const Weight& w3 = memory.Peek(args.w3);
  const Rows z = memory.At(args.z);
  std::vector<double> activation(inner);
  for (size_t i = 0; i < inner; ++i) {
    double gate = 0;
    double up = 0;
    for (size_t c = 0; c < z.cols; ++c) {
      gate += w1(expert * inner + i, c) * z(token, c);
      up += w3(expert * inner + i, c) * z(token, c);
    }
    activation[i] = Situ(gate, up, static_cast<double>(args.situ_beta),
                         static_cast<double>(args.situ_linear_beta));
  }
  return activation;
}

size_t WholeNumber(double value, size_t below) {
  YOKE_CHECK(value >= 0 && value < static_cast<double>(below) && value == std::floor(value));
  return static_cast<size_t>(value);
}

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }

  BufferId Allocate(size_t num_elements) override { return memory_.Allocate(num_elements); }
  void Free(BufferId buffer) override { memory_.Free(buffer); }
  WeightId AddWeight(HostMatrix matrix) override { return memory_.AddWeight(matrix); }

  void Flush() override {}
  void Read(const View& view, std::span<float> values) override;
  void Write(const View& view, std::span<const float> values) override;

  void Embed(WeightId table, size_t first_row, std::span<const int32_t> tokens,
             const View& out) override;
  void RmsNorm(const View& x, WeightId weight, float eps, const View& y) override;
  void Linear(const View& x, std::initializer_list<Projection> projections) override;
  void Situ(const View& gate, const View& up, float beta, float linear_beta,
            const View& out) override;
  void Copy(const View& x, const View& y) override;
  void Add(const View& x, const View& y) override;
  void AttnRes(const AttnResArgs& args) override;
  void Kda(const KdaArgs& args) override { reference::Kda(memory_, args); }
  void Mla(const MlaArgs& args) override { reference::Mla(memory_, args); }
  void Route(const RouteArgs& args) override;
  void Moe(const MoeArgs& args) override;

  uint64_t WeightBytesRead() const override { return memory_.weight_bytes_read(); }

 private:
  Memory memory_;
};

void ReferenceBackend::Read(const View& view, std::span<float> values) {
  const Rows rows = memory_.At(view);
  YOKE_CHECK(values.size() == rows.rows * rows.cols);
  for (size_t r = 0; r < rows.rows; ++r) {
    for (size_t c = 0; c < rows.cols; ++c) {
      values[r * rows.cols + c] = static_cast<float>(rows(r, c));
    }
  }
}

void ReferenceBackend::Write(const View& view, std::span<const float> values) {
  const Rows rows = memory_.At(view);
  YOKE_CHECK(values.size() == rows.rows * rows.cols);
  for (size_t r = 0; r < rows.rows; ++r) {
    for (size_t c = 0; c < rows.cols; ++c) {
      rows(r, c) = static_cast<double>(values[r * rows.cols + c]);
    }
  }
}

void ReferenceBackend::Embed(WeightId table, size_t first_row, std::span<const int32_t> tokens,
                             const View& out) {
  const Weight& weight = memory_.Peek(table);
  const Rows rows = memory_.At(out, tokens.size(), weight.cols);
  for (size_t i = 0; i < tokens.size(); ++i) {
    YOKE_CHECK(tokens[i] >= 0);
    const size_t token = static_cast<size_t>(tokens[i]);
    const bool here = token >= first_row && token - first_row < weight.rows;
    for (size_t c = 0; c < weight.cols; ++c) rows(i, c) = here ? weight(token - first_row, c) : 0;
    if (here) memory_.CountBytes(weight.stored_bytes / weight.rows);
  }
}

void ReferenceBackend::RmsNorm(const View& x, WeightId weight, float eps, const View& y) {
  const Rows in = memory_.At(x);
  const Rows out = memory_.At(y, in.rows, in.cols);
  const Weight& w = memory_.Use(weight, 1, in.cols);
  for (size_t r = 0; r < in.rows; ++r) {
    double mean_sq = 0;
    for (size_t c = 0; c < in.cols; ++c) mean_sq += Square(in(r, c)) / static_cast<double>(in.cols);
    const double scale = 1 / std::sqrt(mean_sq + static_cast<double>(eps));
    for (size_t c = 0; c < in.cols; ++c) out(r, c) = in(r, c) * scale * w(0, c);
  }
}

void ReferenceBackend::Linear(const View& x, std::initializer_list<Projection> projections) {
  YOKE_CHECK(projections.size() <= kProjectionsMax);
  const Rows in = memory_.At(x);
  for (const Projection& projection : projections) {
    const Weight& w = memory_.Use(projection.weight, projection.y.cols, in.cols);
    const Rows out = memory_.At(projection.y, in.rows, w.rows);
    for (size_t t = 0; t < in.rows; ++t) {
      for (size_t r = 0; r < w.rows; ++r) {
        double sum = 0;
        for (size_t c = 0; c < in.cols; ++c) sum += w(r, c) * in(t, c);
        out(t, r) = sum;
      }
    }
  }
}

void ReferenceBackend::Situ(const View& gate, const View& up, float beta, float linear_beta,
                            const View& out) {
  const Rows g = memory_.At(gate);
  const Rows u = memory_.At(up, g.rows, g.cols);
  const Rows y = memory_.At(out, g.rows, g.cols);
  for (size_t r = 0; r < g.rows; ++r) {
    for (size_t c = 0; c < g.cols; ++c) {
      y(r, c) = kernels::Situ(g(r, c), u(r, c), static_cast<double>(beta),
                              static_cast<double>(linear_beta));
    }
  }
}

void ReferenceBackend::Copy(const View& x, const View& y) {
  const Rows in = memory_.At(x);
  const Rows out = memory_.At(y, in.rows, in.cols);
  for (size_t r = 0; r < in.rows; ++r) {
    for (size_t c = 0; c < in.cols; ++c) out(r, c) = in(r, c);
  }
}

void ReferenceBackend::Add(const View& x, const View& y) {
  const Rows in = memory_.At(x);
  const Rows out = memory_.At(y, in.rows, in.cols);
  for (size_t r = 0; r < in.rows; ++r) {
    for (size_t c = 0; c < in.cols; ++c) out(r, c) += in(r, c);
  }
}

void ReferenceBackend::AttnRes(const AttnResArgs& args) {
  const Rows prefix = memory_.At(args.prefix);
  const Rows out = memory_.At(args.out, prefix.rows, prefix.cols);
  const Weight& norm = memory_.Use(args.norm, 1, prefix.cols);
  const Weight& proj = memory_.Use(args.proj, 1, prefix.cols);
  std::vector<Rows> candidates;
  for (size_t i = 0; i < args.num_bank; ++i) {
    View bank = args.bank;
    bank.offset += i * args.bank_stride;
    candidates.push_back(memory_.At(bank, prefix.rows, prefix.cols));
  }
  candidates.push_back(prefix);
  for (size_t r = 0; r < prefix.rows; ++r) {
    std::vector<double> weights;
    for (const Rows& v : candidates) {
      double mean_sq = 0;
      double dot = 0;
      for (size_t c = 0; c < v.cols; ++c) {
        mean_sq += Square(v(r, c)) / static_cast<double>(v.cols);
        dot += v(r, c) * norm(0, c) * proj(0, c);
      }
      weights.push_back(dot / std::sqrt(mean_sq + static_cast<double>(args.eps)));
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - max);
    for (size_t c = 0; c < prefix.cols; ++c) {
      double sum = 0;
      for (size_t i = 0; i < candidates.size(); ++i)
        sum += weights[i] / total * candidates[i](r, c);
      out(r, c) = sum;
    }
  }
}

void ReferenceBackend::Route(const RouteArgs& args) {
  const Rows logits = memory_.At(args.logits);
  const Rows ids = memory_.At(args.expert_ids, logits.rows, args.top_k);
  const Rows weights = memory_.At(args.weights, logits.rows, args.top_k);
  const Weight& bias = memory_.Use(args.bias, 1, logits.cols);
  YOKE_CHECK(args.top_k <= logits.cols);
  for (size_t r = 0; r < logits.rows; ++r) {
    std::vector<size_t> order(logits.cols);
    std::iota(order.begin(), order.end(), size_t{0});
    // Stable: of equals, the lower index stays first.
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return Sigmoid(logits(r, a)) + bias(0, a) > Sigmoid(logits(r, b)) + bias(0, b);
    });
    double sum = 0;
    for (size_t slot = 0; slot < args.top_k; ++slot) sum += Sigmoid(logits(r, order[slot]));
    const double divisor = args.renormalize ? sum + 1e-20 : 1;
    for (size_t slot = 0; slot < args.top_k; ++slot) {
      ids(r, slot) = static_cast<double>(order[slot]);
      weights(r, slot) =
          Sigmoid(logits(r, order[slot])) / divisor * static_cast<double>(args.scale);
    }
  }
}

void ReferenceBackend::Moe(const MoeArgs& args) {
  const Weight& w1 = memory_.Peek(args.w1);
  const Weight& w3 = memory_.Peek(args.w3);
  const Weight& w2 = memory_.Peek(args.w2);
  const size_t inner = w1.rows / args.num_experts;
  const Rows z = memory_.At(args.z);
  const Rows ids = memory_.At(args.expert_ids);
  const Rows weights = memory_.At(args.weights, ids.rows, ids.cols);
  const Rows y = memory_.At(args.y, z.rows, z.cols);
  YOKE_CHECK(ids.rows == z.rows);
  YOKE_CHECK(w1.rows == args.num_experts * inner && w1.cols == z.cols);
  YOKE_CHECK(w3.rows == w1.rows && w3.cols == z.cols);
  YOKE_CHECK(w2.rows == args.num_experts * z.cols && args.inner_offset + inner <= w2.cols);
  std::set<size_t> experts_used;
  for (size_t t = 0; t < z.rows; ++t) {
    std::vector<double> sum(z.cols);
    for (size_t slot = 0; slot < ids.cols; ++slot) {
      const size_t expert = WholeNumber(ids(t, slot), args.num_experts);
      experts_used.insert(expert);
      const std::vector<double> activation = ExpertActivation(memory_, args, inner, expert, t);
      for (size_t i = 0; i < inner; ++i) {
        const double factor = weights(t, slot) * activation[i];
        const size_t w2_col = args.inner_offset + i;
        for (size_t c = 0; c < z.cols; ++c) sum[c] += factor * w2(expert * z.cols + c, w2_col);
      }
    }
    for (size_t c = 0; c < z.cols; ++c) y(t, c) = sum[c];
  }
  const uint64_t stored_bytes = w1.stored_bytes + w3.stored_bytes + w2.stored_bytes;
  memory_.CountBytes(experts_used.size() * (stored_bytes / args.num_experts));
}

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace yoke::kernels
