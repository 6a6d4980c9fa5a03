// The oracle's own tests: values worked out elsewhere, and the other mathematical form of KDA and
// MLA written out in doubles.
#include "kernels/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend_fixture.h"
#include "kernels/kda_fixture.h"
#include "kernels/mla_fixture.h"
#include "testutil/near.h"

namespace yoke::kernels {
namespace {

using testutil::DescribeDifference;

// Values with seven digits.
constexpr testutil::Tolerance kSevenDigits{.abs = 1e-6, .rel = 2e-7};
using Doubles = std::vector<double>;

double ToDouble(float x) {
  return static_cast<double>(x);
}
double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST(ReferenceBackendTest, RmsNormLiteral) {
  const auto backend = MakeReferenceBackend();
  Workspace workspace(*backend, Layout::kStrided);
  const View x = workspace.Put({1, 3, {3, -4, 0}});
  const WeightId weight = backend->AddWeight(F32Weight({1, 3, {1, 0.5f, 2}}));
  backend->RmsNorm(x, weight, 0.5f, x);
  EXPECT_EQ(DescribeDifference(std::vector<float>{1.0093899f, -0.67292658f, 0},
                               workspace.Get(x).values, kSevenDigits),
            "");
}

TEST(ReferenceBackendTest, LinearLiteral) {
  const auto backend = MakeReferenceBackend();
  Workspace workspace(*backend, Layout::kStrided);
  const View x = workspace.Put({2, 3, {1, 2, 3, -1, 0, 0.5f}});
  const View y = workspace.Make(2, 2);
  const WeightId weight = backend->AddWeight(F32Weight({2, 3, {1, 0, -1, 2, 0.5f, 4}}));
  backend->Linear(x, {{weight, y}});
  EXPECT_EQ(workspace.Get(y).values, (std::vector<float>{-2, 15, -1.5f, 0}));
}

TEST(ReferenceBackendTest, KdaLiteral) {
  KdaModel model{.num_heads = 1, .head_dim = 2};
  model.q_conv = {2, 4, {0.1f, 0.2f, 0.3f, 0.4f, -0.5f, 0.25f, 0.75f, 1}};
  model.k_conv = {2, 4, {0, 0.5f, -0.5f, 1, 1, 0.5f, 0.25f, -0.125f}};
  model.v_conv = {2, 4, {0.25f, 0.25f, 0.25f, 0.25f, 0, 0, 1, 1}};
  model.a_log = Tensor(1, 1, 0.5f);
  model.dt_bias = {1, 2, {0.25f, -0.5f}};
  model.o_norm = {1, 2, {1, 2}};
  KdaSequence sequence;
  sequence.q = {3, 2, {1, 2, -1, 0.5f, 0.25f, -0.75f}};
  sequence.k = {3, 2, {0.5f, -1, 2, 1, -0.5f, 1.5f}};
  sequence.v = {3, 2, {1, -2, 3, 0.5f, -1, 1}};
  sequence.forget = {3, 2, {0, 1, -1, 2, 0.5f, -0.5f}};
  sequence.beta = {3, 1, {1, -0.5f, 2}};
  sequence.gate = {3, 2, {0, 1, -1, 2, 3, -0.25f}};
  const auto backend = MakeReferenceBackend();
  for (const std::vector<Step>& steps : {OneSequence({3}), OneSequence({}, 3)}) {
    const KdaResult result = RunKda(*backend, model, {sequence}, steps, Layout::kStrided)[0];
    EXPECT_EQ(DescribeDifference(std::vector<float>{0.357575292f, -1.77371513f, -0.354870196f,
                                                    0.789316426f, -0.540959931f, -1.13405116f},
                                 result.out.values, kSevenDigits),
              "");
    EXPECT_EQ(DescribeDifference(
                  std::vector<float>{-0.374997417f, -0.921882262f, -0.246907927f, -0.56308285f},
                  result.delta.values, kSevenDigits),
              "");
    // The raw rows, oldest first, of q, then k, then v.
    EXPECT_EQ(result.conv.values, (std::vector<float>{1, 2, -1, 0.5f, 0.25f, -0.75f, 0.5f, -1, 2, 1,
                                                      -0.5f, 1.5f, 1, -2, 3, 0.5f, -1, 1}));
  }
}

TEST(ReferenceBackendTest, MlaLiteral) {
  MlaModel model{.num_heads = 2, .rank = 2, .nope_dim = 1, .rope_dim = 1, .v_dim = 1};
  model.kv_a_norm = {1, 2, {1, 0.5f}};
  model.kv_b = F32Weight({4, 2, {1, -0.5f, 0.5f, 2, -1, 1, 0.25f, 0.75f}});
  MlaSequence sequence;
  sequence.q = {3, 4, {1, -1, 0.5f, 2, 0.5f, 1, -2, 1, -1, 2, 1, 0.25f}};
  sequence.kv_a = {3, 3, {1, 2, 0.5f, -1, 0.5f, 1, 2, -2, -0.5f}};
  sequence.gate = {3, 2, {0, 1, -1, 2, 0.5f, -0.5f}};
  const auto backend = MakeReferenceBackend();
  for (const std::vector<Step>& steps : {OneSequence({3}), OneSequence({}, 3)}) {
    const MlaResult result = RunMla(*backend, model, {sequence}, steps, Layout::kStrided)[0];
    EXPECT_EQ(DescribeDifference(std::vector<float>{0.790569257f, 0.46236195f, 0.240245006f,
                                                    0.474277753f, 0.117212204f, 0.0270641646f},
                                 result.out.values, kSevenDigits),
              "");
    EXPECT_EQ(
        DescribeDifference(std::vector<float>{0.632455406f, 0.632455406f, 0.5f, -1.26491005f,
                                              0.316227513f, 1, 0.999999875f, -0.499999938f, -0.5f},
                           result.cache.values, kSevenDigits),
        "");
  }
}

TEST(ReferenceBackendTest, RouteLiteral) {
  const auto backend = MakeReferenceBackend();
  Workspace workspace(*backend, Layout::kStrided);
  RouteArgs args;
  args.top_k = 2;
  args.scale = 2.5f;
  args.logits = workspace.Put({1, 4, {0.5f, -1, 2, 0}});
  args.bias = backend->AddWeight(F32Weight({1, 4, {0, 2, -1, 0.25f}}));
  args.expert_ids = workspace.Make(1, 2);
  args.weights = workspace.Make(1, 2);
  backend->Route(args);
  EXPECT_EQ(workspace.Get(args.expert_ids).values, (std::vector<float>{1, 3}));
  EXPECT_EQ(DescribeDifference(std::vector<float>{0.874388523f, 1.62561148f},
                               workspace.Get(args.weights).values, kSevenDigits),
            "");
  args.renormalize = false;
  backend->Route(args);
  EXPECT_EQ(DescribeDifference(std::vector<float>{0.672353553f, 1.25f},
                               workspace.Get(args.weights).values, kSevenDigits),
            "");
}

TEST(ReferenceBackendTest, MoeLiteral) {
  const auto backend = MakeReferenceBackend();
  Workspace workspace(*backend, Layout::kStrided);
  MoeArgs args;
  args.num_experts = 2;
  args.situ_beta = 4;
  args.situ_linear_beta = 25;
  args.inner_offset = 1;
  args.z = workspace.Put({1, 2, {1, -2}});
  args.expert_ids = workspace.Put({1, 2, {1, 0}});
  args.weights = workspace.Put({1, 2, {0.75f, 0.25f}});
  args.w1 = backend->AddWeight(F32Weight({2, 2, {0.5f, 1, 2, -0.5f}}));
  args.w3 = backend->AddWeight(F32Weight({2, 2, {1, 1, -1, 0.5f}}));
  args.w2 = backend->AddWeight(F32Weight({4, 3, {9, 1, 9, 9, 2, 9, 9, -1, 9, 9, 0.5f, 9}}));
  args.y = workspace.Make(1, 2);
  backend->Moe(args);
  EXPECT_EQ(DescribeDifference(std::vector<float>{3.68777288f, -1.68053971f},
                               workspace.Get(args.y).values, kSevenDigits),
            "");
}

// What the chunked form starts from, for one head: [num_tokens][head_dim], and beta [num_tokens].
struct HeadRows {
  std::vector<Doubles> q, k, v, decay_sum;  // decay_sum: G, within each chunk
  Doubles beta;
};

Doubles ConvolvedHead(const Tensor& raw, const Tensor& taps, size_t t, size_t first, size_t dim) {
  Doubles y(dim);
  for (size_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (size_t j = 0; j < kKdaConvTaps && j <= t; ++j) {
      sum += ToDouble(taps(first + c, kKdaConvTaps - 1 - j)) * ToDouble(raw(t - j, first + c));
    }
    y[c] = sum * Sigmoid(sum);
  }
  return y;
}

void Normalize(Doubles& x, double eps, double factor) {
  double sum_sq = eps;
  for (const double value : x) sum_sq += value * value;
  for (double& value : x) value *= factor / std::sqrt(sum_sq);
}

HeadRows PrepareHead(const KdaModel& model, const KdaSequence& in, size_t head, size_t chunk) {
  const size_t dim = model.head_dim;
  const size_t first = head * dim;
  HeadRows rows;
  for (size_t t = 0; t < in.q.rows; ++t) {
    rows.q.push_back(ConvolvedHead(in.q, model.q_conv, t, first, dim));
    rows.k.push_back(ConvolvedHead(in.k, model.k_conv, t, first, dim));
    rows.v.push_back(ConvolvedHead(in.v, model.v_conv, t, first, dim));
    Normalize(rows.q[t], ToDouble(model.l2_eps), 1 / std::sqrt(static_cast<double>(dim)));
    Normalize(rows.k[t], ToDouble(model.l2_eps), 1);
    rows.beta.push_back(Sigmoid(ToDouble(in.beta(t, head))));
    Doubles sum = t % chunk == 0 ? Doubles(dim) : rows.decay_sum[t - 1];
    for (size_t c = 0; c < dim; ++c) {
      const double z = ToDouble(in.forget(t, first + c)) + ToDouble(model.dt_bias(0, first + c));
      sum[c] +=
          ToDouble(model.gate_lower_bound) * Sigmoid(std::exp(ToDouble(model.a_log(0, head))) * z);
    }
    rows.decay_sum.push_back(sum);
  }
  return rows;
}

// sum_d x_i[d] k_j[d] exp(G_i[d] - G_j[d])
double DecayedDot(const HeadRows& rows, const Doubles& x, size_t i, size_t j) {
  double sum = 0;
  for (size_t d = 0; d < x.size(); ++d) {
    sum += x[d] * rows.k[j][d] * std::exp(rows.decay_sum[i][d] - rows.decay_sum[j][d]);
  }
  return sum;
}

// One chunk [first, last) of section 3.9; state: [dim][dim], moved on. Returns O: [last - first].
std::vector<Doubles> Chunk(const HeadRows& rows, size_t first, size_t last,
                           std::vector<Doubles>& state) {
  const size_t dim = state.size();
  // Forward substitution of U - W S0 at once: row i of V' = beta_i (v_i - (exp(G_i) k_i) S0) -
  // sum_{j<i} A[i,j] V'_j.
  std::vector<Doubles> fresh(last - first, Doubles(dim));
  std::vector<Doubles> out(last - first, Doubles(dim));
  for (size_t i = first; i < last; ++i) {
    for (size_t c = 0; c < dim; ++c) {
      double value = rows.v[i][c];
      for (size_t d = 0; d < dim; ++d) {
        value -= std::exp(rows.decay_sum[i][d]) * rows.k[i][d] * state[d][c];
      }
      for (size_t j = first; j < i; ++j) {
        value -= DecayedDot(rows, rows.k[i], i, j) * fresh[j - first][c];
      }
      fresh[i - first][c] = rows.beta[i] * value;
    }
    for (size_t c = 0; c < dim; ++c) {
      double& sum = out[i - first][c];
      for (size_t d = 0; d < dim; ++d) {
        sum += rows.q[i][d] * std::exp(rows.decay_sum[i][d]) * state[d][c];
      }
      for (size_t j = first; j <= i; ++j) {
        sum += DecayedDot(rows, rows.q[i], i, j) * fresh[j - first][c];
      }
    }
  }
  const Doubles& end = rows.decay_sum[last - 1];
  for (size_t d = 0; d < dim; ++d) {
    for (size_t c = 0; c < dim; ++c) {
      state[d][c] *= std::exp(end[d]);
      for (size_t i = first; i < last; ++i) {
        state[d][c] += std::exp(end[d] - rows.decay_sum[i][d]) * rows.k[i][d] * fresh[i - first][c];
      }
    }
  }
  return out;
}

// Whole sequence of one head by chunks of `chunk`, with output norm and gate.
Tensor ChunkedHead(const KdaModel& model, const KdaSequence& in, size_t head, size_t chunk) {
  const size_t dim = model.head_dim;
  const HeadRows rows = PrepareHead(model, in, head, chunk);
  std::vector<Doubles> state(dim, Doubles(dim));
  Tensor result(in.q.rows, dim);
  for (size_t first = 0; first < in.q.rows; first += chunk) {
    const size_t last = std::min(first + chunk, in.q.rows);
    const std::vector<Doubles> out = Chunk(rows, first, last, state);
    for (size_t i = first; i < last; ++i) {
      double mean_sq = 0;
      for (const double o : out[i - first]) mean_sq += o * o / static_cast<double>(dim);
      for (size_t c = 0; c < dim; ++c) {
        result(i, c) = static_cast<float>(
            out[i - first][c] / std::sqrt(mean_sq + ToDouble(model.norm_eps)) *
            ToDouble(model.o_norm(0, c)) * Sigmoid(ToDouble(in.gate(i, head * dim + c))));
      }
    }
  }
  return result;
}

TEST(ReferenceBackendTest, RecurrentKdaIsChunkedKda) {
  Random random(1);
  const auto backend = MakeReferenceBackend();
  const KdaModel model = MakeKdaModel(random, 2, 12);
  const KdaSequence sequence = MakeKdaSequence(random, model, 70);
  const KdaResult recurrent = RunKda(*backend, model, {sequence}, OneSequence({70}))[0];
  for (const size_t chunk : {1u, 16u, 64u}) {
    SCOPED_TRACE(chunk);
    for (size_t head = 0; head < model.num_heads; ++head) {
      const Tensor chunked = ChunkedHead(model, sequence, head, chunk);
      Tensor part(70, model.head_dim);
      for (size_t t = 0; t < 70; ++t) {
        for (size_t c = 0; c < part.cols; ++c) {
          part(t, c) = recurrent.out(t, head * model.head_dim + c);
        }
      }
      EXPECT_EQ(DescribeDifference(chunked.values, part.values, kSevenDigits), "");
    }
  }
}

TEST(ReferenceBackendTest, ExpandedMlaIsAbsorbedMla) {
  Random random(2);
  const auto backend = MakeReferenceBackend();
  constexpr size_t kTokens = 20;
  const MlaModel model = MakeMlaModel(
      random, {.num_heads = 3, .rank = 10, .nope_dim = 6, .rope_dim = 4, .v_dim = 5}, DType::kF32);
  const MlaSequence in = MakeMlaSequence(random, model, kTokens);
  const MlaResult expanded = RunMla(*backend, model, {in}, OneSequence({kTokens}))[0];
  const float* kv_b = model.kv_b.data.as<float>();
  Tensor absorbed(kTokens, model.num_heads * model.v_dim);
  for (size_t head = 0; head < model.num_heads; ++head) {
    const float* w_k = kv_b + head * (model.nope_dim + model.v_dim) * model.rank;
    const float* w_v = w_k + model.nope_dim * model.rank;
    for (size_t t = 0; t < kTokens; ++t) {
      const size_t q_col = head * (model.nope_dim + model.rope_dim);
      // The query against a cache row: [rank + rope_dim].
      Doubles query(model.rank + model.rope_dim);
      for (size_t c = 0; c < model.rank; ++c) {
        for (size_t r = 0; r < model.nope_dim; ++r) {
          query[c] += ToDouble(w_k[r * model.rank + c]) * ToDouble(in.q(t, q_col + r));
        }
      }
      for (size_t c = 0; c < model.rope_dim; ++c) {
        query[model.rank + c] = ToDouble(in.q(t, q_col + model.nope_dim + c));
      }
      double total = 0;
      Doubles latent(model.rank);
      for (size_t position = 0; position <= t; ++position) {
        double score = 0;
        for (size_t c = 0; c < query.size(); ++c) {
          score += query[c] * ToDouble(expanded.cache(position, c));
        }
        const double weight = std::exp(score / std::sqrt(10.0));
        total += weight;
        for (size_t c = 0; c < model.rank; ++c) {
          latent[c] += weight * ToDouble(expanded.cache(position, c));
        }
      }
      for (size_t r = 0; r < model.v_dim; ++r) {
        double sum = 0;
        for (size_t c = 0; c < model.rank; ++c) {
          sum += ToDouble(w_v[r * model.rank + c]) * latent[c] / total;
        }
        const size_t col = head * model.v_dim + r;
        absorbed(t, col) = static_cast<float>(sum * Sigmoid(ToDouble(in.gate(t, col))));
      }
    }
  }
  EXPECT_EQ(DescribeDifference(absorbed.values, expanded.out.values, kSevenDigits), "");
}

}  // namespace
}  // namespace yoke::kernels
