// RMSNorm and attention residuals on every SIMD target, against the reference and against
// themselves.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/tests/hwy_gtest.h>

#include "kernels/backend_fixture.h"
#include "kernels/cpu_backend.h"
#include "kernels/reference_backend.h"
#include "testutil/near.h"

namespace yoke::kernels {
namespace {

using testutil::DescribeDifference;

class NormTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(NormTest);

std::unique_ptr<Backend> Cpu(size_t num_threads) {
  return MakeCpuBackend({.num_threads = num_threads});
}

Tensor RunRmsNorm(Backend& backend, const Tensor& x, const Tensor& weight, float eps,
                  Layout layout) {
  Workspace workspace(backend, layout);
  const View x_view = workspace.Put(x);
  const View y = workspace.Make(x.rows, x.cols);
  const WeightId id = backend.AddWeight(F32Weight(weight));
  backend.RmsNorm(x_view, id, eps, y);
  backend.RmsNorm(x_view, id, eps, x_view);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  EXPECT_EQ(DescribeBits(workspace.Get(y), workspace.Get(x_view)), "") << "in place";
  return workspace.Get(y);
}

TEST_P(NormTest, RmsNormMatchesReferenceForEveryWidth) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  std::vector<size_t> widths = {1536, 7168};
  for (size_t cols = 1; cols <= 67; ++cols) widths.push_back(cols);
  for (const size_t cols : widths) {
    SCOPED_TRACE(cols);
    Random random(cols);
    const Tensor x = random.Uniform(cols % 6, cols, 3);
    const Tensor weight = random.Uniform(1, cols);
    const Tensor expected = RunRmsNorm(*reference, x, weight, 1e-5f, Layout::kDense);
    const Tensor actual = RunRmsNorm(*cpu, x, weight, 1e-5f, Layout::kStrided);
    EXPECT_EQ(DescribeDifference(expected.values, actual.values,
                                 testutil::DotTolerance(cols, LargestAbs(expected))),
              "");
  }
}

TEST_P(NormTest, RmsNormOfExtremeRows) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(1);
  for (const float scale : {0.f, 1e-30f, 1e-3f, 1e10f, 1e17f}) {
    SCOPED_TRACE(scale);
    Random random(1);
    const Tensor x = random.Uniform(2, 50, scale);
    const Tensor weight = random.Uniform(1, 50);
    const Tensor expected = RunRmsNorm(*reference, x, weight, 1e-6f, Layout::kDense);
    const Tensor actual = RunRmsNorm(*cpu, x, weight, 1e-6f, Layout::kDense);
    EXPECT_EQ(DescribeDifference(expected.values, actual.values,
                                 testutil::DotTolerance(50, LargestAbs(expected))),
              "");
  }
}

TEST_P(NormTest, RmsNormOfATokenDoesNotDependOnOthersOrThreads) {
  Random random(2);
  const Tensor x = random.Uniform(19, 77);
  const Tensor weight = random.Uniform(1, 77);
  const auto cpu = Cpu(1);
  const Tensor whole = RunRmsNorm(*cpu, x, weight, 1e-5f, Layout::kDense);
  EXPECT_EQ(DescribeBits(whole, RunRmsNorm(*Cpu(3), x, weight, 1e-5f, Layout::kStrided)), "");
  for (size_t t = 0; t < x.rows; ++t) {
    EXPECT_EQ(DescribeBits(whole.Slice(t, 1),
                           RunRmsNorm(*cpu, x.Slice(t, 1), weight, 1e-5f, Layout::kStrided)),
              "");
  }
}

struct AttnResCase {
  Tensor prefix{};             // [num_tokens, model_dim]
  std::vector<Tensor> bank{};  // the same each
  Tensor norm{}, proj{};       // [1, model_dim]
};

AttnResCase MakeAttnResCase(size_t num_tokens, size_t model_dim, size_t num_bank) {
  Random random(num_tokens + 100 * model_dim + 1000000 * num_bank);
  AttnResCase c;
  c.prefix = random.Uniform(num_tokens, model_dim, 2);
  for (size_t i = 0; i < num_bank; ++i) {
    c.bank.push_back(random.Uniform(num_tokens, model_dim, static_cast<float>(1 + i)));
  }
  c.norm = random.Uniform(1, model_dim, 2);
  c.proj = random.Uniform(1, model_dim, 4 / std::sqrt(static_cast<float>(model_dim)));
  return c;
}

// The bank's rows are columns of one buffer: bank i of a token starts model_dim + 3 after bank i-1,
// or num_tokens rows below.
Tensor RunAttnRes(Backend& backend, const AttnResCase& c, Layout layout) {
  Workspace workspace(backend, layout);
  const size_t num_tokens = c.prefix.rows;
  const size_t dim = c.prefix.cols;
  const bool beside = layout == Layout::kStrided;
  const View bank = beside ? workspace.Make(num_tokens, c.bank.size() * (dim + 3) + dim)
                           : workspace.Make((c.bank.size() + 1) * num_tokens, dim);
  AttnResArgs args;
  args.bank = bank.Rows(0, num_tokens).Cols(0, dim);
  args.bank_stride = beside ? dim + 3 : num_tokens * bank.stride;
  args.num_bank = c.bank.size();
  for (size_t i = 0; i < c.bank.size(); ++i) {
    View rows = args.bank;
    rows.offset += i * args.bank_stride;
    backend.Write(rows, c.bank[i].values);
  }
  args.prefix = workspace.Put(c.prefix);
  args.norm = backend.AddWeight(F32Weight(c.norm));
  args.proj = backend.AddWeight(F32Weight(c.proj));
  args.eps = 1e-5f;
  args.out = workspace.Make(num_tokens, dim);
  backend.AttnRes(args);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(args.out);
}

void ExpectAttnResMatchesReference(const AttnResCase& c) {
  const Tensor expected = RunAttnRes(*MakeReferenceBackend(), c, Layout::kDense);
  // Random signs: the sum of |a b| of a score is about sqrt(model_dim) times the score.
  const double dim = static_cast<double>(c.prefix.cols);
  const testutil::Tolerance tolerance =
      testutil::DotTolerance(c.prefix.cols, std::sqrt(dim) * LargestAbs(expected));
  for (const size_t num_threads : {1u, 3u}) {
    for (const Layout layout : {Layout::kDense, Layout::kStrided}) {
      const Tensor actual = RunAttnRes(*Cpu(num_threads), c, layout);
      EXPECT_EQ(DescribeDifference(expected.values, actual.values, tolerance), "");
    }
  }
}

TEST_P(NormTest, AttnResHasTheValuesOfTheSpecification) {
  AttnResCase c;
  c.bank = {{1, 4, {1, 2, 3, 4}}, {1, 4, {0.5f, -1, 2, 0}}};
  c.prefix = {1, 4, {2, 0, -1, 1}};
  c.norm = {1, 4, {1, 0.5f, 2, 1}};
  c.proj = {1, 4, {0.1f, -0.2f, 0.3f, 0.05f}};
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(1);
  for (const auto* backend : {&reference, &cpu}) {
    EXPECT_EQ(DescribeDifference(std::vector<float>{0.854525f, 0.125539f, 1.957841f, 1.458985f},
                                 RunAttnRes(**backend, c, Layout::kDense).values,
                                 {.abs = 1e-6, .rel = 0}),
              "")
        << (*backend)->name();
  }
}

TEST_P(NormTest, AttnResMatchesReferenceForEveryWidthAndBank) {
  for (size_t dim = 1; dim <= 67; ++dim) {
    SCOPED_TRACE(dim);
    ExpectAttnResMatchesReference(MakeAttnResCase(1 + dim % 5, dim, dim % 9));
  }
  for (const size_t dim : {1023u, 1024u, 1025u, 2500u, 7168u}) {
    SCOPED_TRACE(dim);
    ExpectAttnResMatchesReference(MakeAttnResCase(2, dim, 8));
  }
}

TEST_P(NormTest, AttnResOfExtremeRows) {
  AttnResCase c = MakeAttnResCase(3, 40, 3);
  c.bank[1] = Tensor(3, 40);
  for (float& value : c.bank[2].values) value *= 1e15f;
  ExpectAttnResMatchesReference(c);
  // Scores of thousands: one row takes all.
  c = MakeAttnResCase(3, 40, 3);
  for (float& value : c.proj.values) value *= 1e4f;
  ExpectAttnResMatchesReference(c);
  for (Tensor& rows : c.bank) rows = c.prefix;
  ExpectAttnResMatchesReference(c);
}

TEST_P(NormTest, AttnResOfATokenDoesNotDependOnOthersOrThreads) {
  const AttnResCase c = MakeAttnResCase(13, 1100, 5);
  const auto cpu = Cpu(1);
  const Tensor whole = RunAttnRes(*cpu, c, Layout::kDense);
  EXPECT_EQ(DescribeBits(whole, RunAttnRes(*Cpu(3), c, Layout::kStrided)), "");
  for (size_t t = 0; t < whole.rows; ++t) {
    AttnResCase one = c;
    one.prefix = c.prefix.Slice(t, 1);
    for (size_t i = 0; i < c.bank.size(); ++i) one.bank[i] = c.bank[i].Slice(t, 1);
    EXPECT_EQ(DescribeBits(whole.Slice(t, 1), RunAttnRes(*cpu, one, Layout::kStrided)), "");
  }
}

}  // namespace
}  // namespace yoke::kernels
