// Routing and the routed experts on every SIMD target, against the reference and against
// themselves.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
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

class RouteTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(RouteTest);
class MoeTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(MoeTest);

std::unique_ptr<Backend> Cpu(size_t num_threads) {
  return MakeCpuBackend({.num_threads = num_threads});
}

struct RouteCase {
  size_t top_k = 0;
  bool renormalize = true;
  float scale = 1;
  Tensor logits{};  // [num_tokens, num_experts]
  Tensor bias{};    // [1, num_experts]
};

// [num_tokens, top_k] each.
struct Routes {
  Tensor expert_ids, weights;
};

Routes RunRoute(Backend& backend, const RouteCase& c, Layout layout) {
  Workspace workspace(backend, layout);
  RouteArgs args;
  args.top_k = c.top_k;
  args.renormalize = c.renormalize;
  args.scale = c.scale;
  args.logits = workspace.Put(c.logits);
  args.bias = backend.AddWeight(F32Weight(c.bias));
  args.expert_ids = workspace.Make(c.logits.rows, c.top_k);
  args.weights = workspace.Make(c.logits.rows, c.top_k);
  backend.Route(args);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return {workspace.Get(args.expert_ids), workspace.Get(args.weights)};
}

// Logits in steps of 1/64, each once a row, without bias or with a constant one: the choice has no
// near ties that rounding could decide.
Tensor DistinctLogits(Random& random, size_t num_tokens, size_t num_experts) {
  Tensor logits(num_tokens, num_experts);
  for (size_t t = 0; t < num_tokens; ++t) {
    for (size_t e = 0; e < num_experts; ++e) {
      const float value = (static_cast<float>(e) - static_cast<float>(num_experts) / 2) / 64;
      const size_t other = random.Below(e + 1);
      logits(t, e) = logits(t, other);
      logits(t, other) = value;
    }
  }
  return logits;
}

void ExpectRoutesMatchReference(const RouteCase& c) {
  const Routes expected = RunRoute(*MakeReferenceBackend(), c, Layout::kDense);
  for (const size_t num_threads : {1u, 3u}) {
    const Routes actual = RunRoute(*Cpu(num_threads), c, Layout::kStrided);
    EXPECT_EQ(DescribeBits(expected.expert_ids, actual.expert_ids), "");
    EXPECT_EQ(DescribeDifference(expected.weights.values, actual.weights.values,
                                 testutil::DotTolerance(c.top_k, LargestAbs(expected.weights))),
              "");
  }
}

TEST_P(RouteTest, EveryNumberOfExpertsMatchesReference) {
  Random random(1);
  for (size_t num_experts = 1; num_experts <= 70; ++num_experts) {
    SCOPED_TRACE(num_experts);
    RouteCase c{.top_k = 1 + num_experts * 5 % std::min<size_t>(num_experts, 17),
                .renormalize = num_experts % 3 != 0,
                .scale = 2.5f};
    c.logits = DistinctLogits(random, 1 + num_experts % 4, num_experts);
    c.bias = Tensor(1, num_experts, 0.25f);
    ExpectRoutesMatchReference(c);
  }
}

TEST_P(RouteTest, ChoosesByBiasButWeighsWithout) {
  Random random(2);
  RouteCase c{.top_k = 16};
  c.logits = DistinctLogits(random, 5, 896);
  c.bias = Tensor(1, 896);
  // Lifts 16 experts above all others, the later ones more.
  for (size_t e = 0; e < 16; ++e) c.bias(0, 50 * e + 7) = 2 + static_cast<float>(2 * e);
  ExpectRoutesMatchReference(c);
  const Routes routes = RunRoute(*Cpu(1), c, Layout::kDense);
  for (size_t slot = 0; slot < 16; ++slot) {
    EXPECT_EQ(routes.expert_ids(0, slot), static_cast<float>(50 * (15 - slot) + 7));
  }
}

TEST_P(RouteTest, TiesGoToTheLowerIndex) {
  RouteCase c{.top_k = 5};
  c.logits = Tensor(1, 40, 0.5f);
  c.logits(0, 33) = 1;
  c.logits(0, 12) = 1;
  c.bias = Tensor(1, 40, 0.125f);
  ExpectRoutesMatchReference(c);
  EXPECT_EQ(RunRoute(*Cpu(1), c, Layout::kDense).expert_ids.values,
            (std::vector<float>{12, 33, 0, 1, 2}));
}

TEST_P(RouteTest, SaturatedLogitsStayFinite) {
  RouteCase c{.top_k = 3};
  c.logits = {4,
              4,
              {-100, 100, -100, -100,   //
               100, 100, 100, 100,      //
               -100, -100, -100, -100,  //
               -1000, 0, 1000, -1000}};
  c.bias = {1, 4, {0, 0, 0, 0}};
  ExpectRoutesMatchReference(c);
  c.bias = {1, 4, {-100, -100, 100, 100}};
  ExpectRoutesMatchReference(c);
}

TEST_P(RouteTest, TokenDoesNotDependOnOthersOrThreads) {
  Random random(3);
  RouteCase c{.top_k = 6};
  c.logits = random.Uniform(23, 67, 5);
  c.bias = random.Uniform(1, 67);
  const Routes whole = RunRoute(*Cpu(1), c, Layout::kDense);
  const Routes threads = RunRoute(*Cpu(3), c, Layout::kDense);
  EXPECT_EQ(DescribeBits(whole.expert_ids, threads.expert_ids), "");
  EXPECT_EQ(DescribeBits(whole.weights, threads.weights), "");
  const auto cpu = Cpu(1);
  for (size_t t = 0; t < whole.weights.rows; ++t) {
    RouteCase one = c;
    one.logits = c.logits.Slice(t, 1);
    const Routes alone = RunRoute(*cpu, one, Layout::kStrided);
    EXPECT_EQ(DescribeBits(whole.expert_ids.Slice(t, 1), alone.expert_ids), "");
    EXPECT_EQ(DescribeBits(whole.weights.Slice(t, 1), alone.weights), "");
  }
}

struct MoeModel {
  size_t num_experts = 0;
  size_t latent_dim = 0;
  size_t inner = 0;
  size_t inner_offset = 0;
  size_t w2_cols = 0;
  HostMatrix w1{}, w3{}, w2{};
};

// dims: all sizes are set. Outputs are about 1.
MoeModel MakeMoeModel(Random& random, MoeModel dims, DType dtype) {
  const float w1_scale = 3 / std::sqrt(static_cast<float>(dims.latent_dim));
  const float w2_scale = 3 / std::sqrt(static_cast<float>(dims.inner + 1));
  dims.w1 = random.Weight(dtype, dims.num_experts * dims.inner, dims.latent_dim, w1_scale);
  dims.w3 = random.Weight(dtype, dims.num_experts * dims.inner, dims.latent_dim, w1_scale);
  dims.w2 = random.Weight(dtype, dims.num_experts * dims.latent_dim, dims.w2_cols, w2_scale);
  return dims;
}

// [num_tokens, ...]
struct MoeInput {
  Tensor z, expert_ids, weights;
};

// Every token draws top_k different experts.
MoeInput MakeMoeInput(Random& random, const MoeModel& model, size_t num_tokens, size_t top_k) {
  MoeInput input;
  input.z = random.Uniform(num_tokens, model.latent_dim, 2);
  input.expert_ids = Tensor(num_tokens, top_k);
  input.weights = random.Uniform(num_tokens, top_k);
  std::vector<size_t> experts(model.num_experts);
  std::iota(experts.begin(), experts.end(), size_t{0});
  for (size_t t = 0; t < num_tokens; ++t) {
    for (size_t slot = 0; slot < top_k; ++slot) {
      std::swap(experts[slot], experts[slot + random.Below(experts.size() - slot)]);
      input.expert_ids(t, slot) = static_cast<float>(experts[slot]);
    }
  }
  return input;
}

Tensor RunMoe(Backend& backend, const MoeModel& model, const MoeInput& input, Layout layout) {
  Workspace workspace(backend, layout);
  MoeArgs args;
  args.num_experts = model.num_experts;
  args.situ_beta = 4;
  args.situ_linear_beta = 25;
  args.inner_offset = model.inner_offset;
  args.z = workspace.Put(input.z);
  args.expert_ids = workspace.Put(input.expert_ids);
  args.weights = workspace.Put(input.weights);
  args.w1 = backend.AddWeight(CopyOf(model.w1));
  args.w3 = backend.AddWeight(CopyOf(model.w3));
  args.w2 = backend.AddWeight(CopyOf(model.w2));
  args.y = workspace.Make(input.z.rows, input.z.cols);
  backend.Moe(args);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(args.y);
}

// Random signs: the sum of |a b| over k terms is about sqrt(k) times a large result.
testutil::Tolerance MoeTolerance(const MoeModel& model, const Tensor& expected) {
  const size_t num_terms = model.latent_dim + model.inner;
  return testutil::DotTolerance(num_terms,
                                std::sqrt(static_cast<double>(num_terms)) * LargestAbs(expected));
}

void ExpectMoeMatchesReference(const MoeModel& model, const MoeInput& input) {
  const Tensor expected = RunMoe(*MakeReferenceBackend(), model, input, Layout::kDense);
  for (const size_t num_threads : {1u, 3u}) {
    const Tensor actual = RunMoe(*Cpu(num_threads), model, input, Layout::kStrided);
    EXPECT_EQ(DescribeDifference(expected.values, actual.values, MoeTolerance(model, expected)),
              "");
  }
}

TEST_P(MoeTest, PlainDTypesMatchReferenceForEveryWidth) {
  for (size_t width = 1; width <= 40; ++width) {
    SCOPED_TRACE(width);
    Random random(width);
    const size_t inner = width * 7 % 35;
    const MoeModel model = MakeMoeModel(random,
                                        {.num_experts = 5,
                                         .latent_dim = width,
                                         .inner = inner,
                                         .inner_offset = width % 4,
                                         .w2_cols = inner + width % 9 + 4},
                                        width % 2 == 0 ? DType::kF32 : DType::kBf16);
    ExpectMoeMatchesReference(model, MakeMoeInput(random, model, 1 + width % 4, 2));
  }
}

// A rank's slice of the inner columns starts and ends inside a block of w2.
TEST_P(MoeTest, BlockDTypesMatchReferenceForEverySlice) {
  for (const DType dtype : {DType::kMxfp4, DType::kQ8_0}) {
    SCOPED_TRACE(ToString(dtype));
    for (const size_t inner : {0u, 1u, 16u, 31u, 32u, 48u, 75u, 96u}) {
      for (const size_t inner_offset : {0u, 1u, 16u, 21u}) {
        SCOPED_TRACE(inner);
        SCOPED_TRACE(inner_offset);
        Random random(inner + 100 * inner_offset);
        const MoeModel model = MakeMoeModel(
            random,
            {.num_experts = 4,
             .latent_dim = 64,
             .inner = inner,
             .inner_offset = inner_offset,
             .w2_cols = std::max<size_t>(1, (inner + inner_offset + 31) / 32) * kBlockCols},
            dtype);
        ExpectMoeMatchesReference(model, MakeMoeInput(random, model, 3, 2));
      }
    }
  }
}

TEST_P(MoeTest, EveryNumberOfTokensAndSlotsMatchesReference) {
  Random random(1);
  const MoeModel model = MakeMoeModel(
      random, {.num_experts = 6, .latent_dim = 32, .inner = 32, .w2_cols = 32}, DType::kMxfp4);
  for (size_t num_tokens = 0; num_tokens <= 35; ++num_tokens) {
    SCOPED_TRACE(num_tokens);
    ExpectMoeMatchesReference(model, MakeMoeInput(random, model, num_tokens, 1 + num_tokens % 6));
  }
  ExpectMoeMatchesReference(model, MakeMoeInput(random, model, 150, 2));
}

// All tokens to one expert, and most experts idle.
TEST_P(MoeTest, UnevenLoadMatchesReference) {
  Random random(2);
  const MoeModel model = MakeMoeModel(
      random, {.num_experts = 64, .latent_dim = 32, .inner = 32, .w2_cols = 32}, DType::kMxfp4);
  MoeInput input = MakeMoeInput(random, model, 20, 2);
  for (size_t t = 0; t < 20; ++t) {
    input.expert_ids(t, t % 2) = 63;
    input.expert_ids(t, 1 - t % 2) = static_cast<float>(t % 3);
  }
  ExpectMoeMatchesReference(model, input);
}

TEST_P(MoeTest, TokenDoesNotDependOnOthersOrThreads) {
  for (const DType dtype : {DType::kMxfp4, DType::kBf16}) {
    SCOPED_TRACE(ToString(dtype));
    Random random(3);
    const MoeModel model = MakeMoeModel(
        random,
        {.num_experts = 5, .latent_dim = 96, .inner = 48, .inner_offset = 16, .w2_cols = 64},
        dtype);
    const MoeInput input = MakeMoeInput(random, model, 37, 3);
    const auto cpu = Cpu(1);
    const Tensor whole = RunMoe(*cpu, model, input, Layout::kDense);
    EXPECT_EQ(DescribeBits(whole, RunMoe(*Cpu(3), model, input, Layout::kStrided)), "");
    for (size_t num_tokens = 1; num_tokens <= 37; num_tokens += num_tokens < 20 ? 1 : 7) {
      const size_t first = (37 - num_tokens) / 2;
      const MoeInput part = {input.z.Slice(first, num_tokens),
                             input.expert_ids.Slice(first, num_tokens),
                             input.weights.Slice(first, num_tokens)};
      ASSERT_EQ(
          DescribeBits(whole.Slice(first, num_tokens), RunMoe(*cpu, model, part, Layout::kStrided)),
          "")
          << num_tokens << " tokens from " << first;
    }
  }
}

TEST_P(MoeTest, ExtremeInputsMatchReference) {
  Random random(4);
  const MoeModel model = MakeMoeModel(
      random, {.num_experts = 3, .latent_dim = 32, .inner = 32, .w2_cols = 32}, DType::kMxfp4);
  MoeInput input = MakeMoeInput(random, model, 4, 2);
  for (const float scale : {0.f, 1e-6f, 1e3f, 1e15f}) {
    SCOPED_TRACE(scale);
    input.z = random.Uniform(4, 32, scale);
    ExpectMoeMatchesReference(model, input);
  }
}

TEST_P(MoeTest, CountsEachExpertOnceAnOp) {
  Random random(5);
  const MoeModel model = MakeMoeModel(
      random, {.num_experts = 8, .latent_dim = 64, .inner = 32, .w2_cols = 32}, DType::kMxfp4);
  MoeInput input = MakeMoeInput(random, model, 4, 2);
  input.expert_ids = {4, 2, {7, 1, 1, 7, 4, 1, 7, 4}};
  const auto cpu = Cpu(3);
  const auto reference = MakeReferenceBackend();
  for (const auto* backend : {&cpu, &reference}) {
    RunMoe(**backend, model, input, Layout::kDense);
    const size_t expert_bytes = (2 * 32 * 64 + 64 * 32) * 17 / 32;
    EXPECT_EQ((*backend)->WeightBytesRead(), 3 * expert_bytes);
    RunMoe(**backend, model, input, Layout::kDense);
    EXPECT_EQ((*backend)->WeightBytesRead(), 6 * expert_bytes);
  }
}

}  // namespace
}  // namespace yoke::kernels
