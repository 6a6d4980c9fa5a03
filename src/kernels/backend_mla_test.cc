// MLA on every SIMD target: the absorbed form against the expanded reference, and the bitwise rule.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/tests/hwy_gtest.h>

#include "kernels/backend_fixture.h"
#include "kernels/cpu_backend.h"
#include "kernels/mla_fixture.h"
#include "kernels/reference_backend.h"
#include "testutil/near.h"

namespace yoke::kernels {
namespace {

using testutil::DescribeDifference;

class MlaTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(MlaTest);

std::unique_ptr<Backend> Cpu(size_t num_threads) {
  return MakeCpuBackend({.num_threads = num_threads});
}

// All widths differ, none is a multiple of a vector.
MlaModel OddModel(Random& random) {
  return MakeMlaModel(random,
                      {.num_heads = 3, .rank = 21, .nope_dim = 11, .rope_dim = 5, .v_dim = 13},
                      DType::kBf16);
}

// Random signs: the sum of |a b| over k terms is about sqrt(k) times a large result. A score has
// nope_dim, then rank + rope_dim terms; an error in it moves a softmax weight by as much; a value
// has rank terms.
testutil::Tolerance MlaTolerance(const MlaModel& model, const Tensor& expected) {
  const size_t num_terms = 2 * model.rank + model.nope_dim + model.rope_dim + kCacheBlockTokens;
  return testutil::DotTolerance(num_terms,
                                std::sqrt(static_cast<double>(num_terms)) * LargestAbs(expected));
}

void ExpectNear(const MlaModel& model, const MlaResult& expected, const MlaResult& actual) {
  EXPECT_EQ(
      DescribeDifference(expected.out.values, actual.out.values, MlaTolerance(model, expected.out)),
      "");
  EXPECT_EQ(DescribeDifference(expected.cache.values, actual.cache.values,
                               testutil::DotTolerance(model.rank, LargestAbs(expected.cache))),
            "");
}

void ExpectSameBits(const MlaResult& expected, const MlaResult& actual) {
  EXPECT_EQ(DescribeBits(expected.out, actual.out), "");
  EXPECT_EQ(DescribeBits(expected.cache, actual.cache), "");
}

// Prompts of several sequences in pieces, mixed with decodes of others; sequence 2 crosses two
// cache blocks.
const std::vector<Step> kMixedSteps = {
    {{0, 23, true}, {1, 5, true}},
    {{1, 1, false}, {2, 240, true}, {0, 1, false}},
    {{2, 272, true}, {0, 1, false}, {1, 1, false}, {3, 1, true}},
    {{1, 30, true}, {2, 9, true}},
    {{3, 1, false}, {2, 1, false}, {1, 1, false}, {0, 1, false}},
};
const std::vector<size_t> kMixedLengths = {26, 38, 522, 2};

std::vector<MlaSequence> MixedSequences(Random& random, const MlaModel& model) {
  std::vector<MlaSequence> sequences;
  for (const size_t length : kMixedLengths) {
    sequences.push_back(MakeMlaSequence(random, model, length));
  }
  return sequences;
}

TEST_P(MlaTest, PromptOfEveryLengthMatchesReference) {
  const auto reference = MakeReferenceBackend();
  const auto one_thread = Cpu(1);
  const auto three_threads = Cpu(3);
  Random random(1);
  const MlaModel model = OddModel(random);
  for (size_t length = 1; length <= 40; ++length) {
    SCOPED_TRACE(length);
    const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, length)};
    const std::vector<Step> steps = OneSequence({length});
    const MlaResult expected = RunMla(*reference, model, sequence, steps)[0];
    ExpectNear(model, expected, RunMla(*one_thread, model, sequence, steps)[0]);
    ExpectNear(model, expected,
               RunMla(*three_threads, model, sequence, steps, Layout::kStrided)[0]);
  }
}

TEST_P(MlaTest, EveryWidthMatchesReference) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  for (size_t width = 1; width <= 35; ++width) {
    SCOPED_TRACE(width);
    Random random(width);
    const MlaModel model = MakeMlaModel(random,
                                        {.num_heads = width % 4,
                                         .rank = width,
                                         .nope_dim = 1 + width * 7 % 34,
                                         .rope_dim = 1 + width * 5 % 19,
                                         .v_dim = 1 + width * 11 % 37},
                                        width % 2 == 0 ? DType::kF32 : DType::kBf16);
    const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, 22)};
    const std::vector<Step> steps = OneSequence({19}, 3);
    ExpectNear(model, RunMla(*reference, model, sequence, steps)[0],
               RunMla(*cpu, model, sequence, steps, Layout::kStrided)[0]);
  }
}

TEST_P(MlaTest, EveryNumberOfHeadsMatchesReferenceOnAnyThreads) {
  const auto reference = MakeReferenceBackend();
  const auto one_thread = Cpu(1);
  const auto three_threads = Cpu(3);
  for (const size_t num_heads : {0u, 1u, 2u, 3u, 5u, 8u, 15u, 16u, 17u, 33u}) {
    SCOPED_TRACE(num_heads);
    Random random(num_heads);
    const MlaModel model = MakeMlaModel(
        random, {.num_heads = num_heads, .rank = 10, .nope_dim = 6, .rope_dim = 3, .v_dim = 7},
        DType::kBf16);
    const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, 40)};
    const std::vector<Step> steps = OneSequence({16, 1 + num_heads % 18}, 2);
    const MlaResult expected = RunMla(*reference, model, sequence, steps)[0];
    const MlaResult actual = RunMla(*one_thread, model, sequence, steps)[0];
    ExpectNear(model, expected, actual);
    ExpectSameBits(actual, RunMla(*three_threads, model, sequence, steps)[0]);
  }
}

// K3's widths, every dtype that a trunk can have.
TEST_P(MlaTest, EveryDTypeOfKvBMatchesReference) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0}) {
    SCOPED_TRACE(ToString(dtype));
    Random random(2);
    const MlaModel model = MakeMlaModel(
        random, {.num_heads = 1, .rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128},
        dtype);
    const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, 8)};
    const std::vector<Step> steps = OneSequence({6}, 2);
    ExpectNear(model, RunMla(*MakeReferenceBackend(), model, sequence, steps)[0],
               RunMla(*Cpu(1), model, sequence, steps)[0]);
  }
}

TEST_P(MlaTest, DecodeAcrossCacheBlocksMatchesReference) {
  Random random(3);
  const MlaModel model = OddModel(random);
  const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, 516)};
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  for (const size_t prompt : {254u, 511u}) {
    SCOPED_TRACE(prompt);
    const std::vector<Step> steps = OneSequence({prompt}, 5);
    ExpectNear(model, RunMla(*reference, model, sequence, steps)[0],
               RunMla(*cpu, model, sequence, steps)[0]);
  }
}

TEST_P(MlaTest, MixedStepsMatchReference) {
  Random random(4);
  const MlaModel model = OddModel(random);
  const std::vector<MlaSequence> sequences = MixedSequences(random, model);
  const auto reference = MakeReferenceBackend();
  const std::vector<MlaResult> expected = RunMla(*reference, model, sequences, kMixedSteps);
  for (const size_t num_threads : {1u, 3u}) {
    const auto cpu = Cpu(num_threads);
    const std::vector<MlaResult> actual =
        RunMla(*cpu, model, sequences, kMixedSteps, Layout::kStrided);
    for (size_t s = 0; s < sequences.size(); ++s) {
      SCOPED_TRACE(s);
      ExpectNear(model, expected[s], actual[s]);
    }
    EXPECT_EQ(reference->WeightBytesRead(), cpu->WeightBytesRead());
  }
}

TEST_P(MlaTest, SequencesTogetherGiveTheBitsOfEachAlone) {
  Random random(5);
  const MlaModel model = OddModel(random);
  const std::vector<MlaSequence> sequences = MixedSequences(random, model);
  const auto one_thread = Cpu(1);
  const std::vector<MlaResult> together =
      RunMla(*one_thread, model, sequences, kMixedSteps, Layout::kStrided);
  const std::vector<MlaResult> on_three = RunMla(*Cpu(3), model, sequences, kMixedSteps);
  for (size_t s = 0; s < sequences.size(); ++s) {
    SCOPED_TRACE(s);
    const MlaResult alone = RunMla(*one_thread, model, {sequences[s]}, StepsOf(kMixedSteps, s))[0];
    ExpectSameBits(alone, together[s]);
    ExpectSameBits(alone, on_three[s]);
  }
}

TEST_P(MlaTest, CutsOfAPromptDoNotChangeBits) {
  Random random(6);
  const MlaModel model = OddModel(random);
  const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, 292)};
  const auto cpu = Cpu(1);
  const MlaResult whole = RunMla(*cpu, model, sequence, OneSequence({290}, 2))[0];
  std::vector<std::vector<size_t>> cuts = {{16, 274}, {48, 242}, {256, 34}, {288, 2}};
  for (const size_t piece : {16u, 32u, 48u}) {
    std::vector<size_t> pieces(290 / piece, piece);
    pieces.push_back(290 % piece);
    cuts.push_back(pieces);
  }
  const auto three_threads = Cpu(3);
  for (size_t i = 0; i < cuts.size(); ++i) {
    SCOPED_TRACE(i);
    Backend& backend = i % 2 == 0 ? *cpu : *three_threads;
    ExpectSameBits(whole, RunMla(backend, model, sequence, OneSequence(cuts[i], 2))[0]);
  }
}

TEST_P(MlaTest, LaterTokensDoNotChangeBits) {
  Random random(8);
  const MlaModel model = OddModel(random);
  const std::vector<MlaSequence> sequence = {MakeMlaSequence(random, model, 140)};
  const auto cpu = Cpu(1);
  const Tensor whole = RunMla(*cpu, model, sequence, OneSequence({140}))[0].out;
  for (size_t length = 1; length < 140; length += length < 20 ? 1 : 9) {
    const Tensor prefix = RunMla(*cpu, model, sequence, OneSequence({length}))[0].out;
    EXPECT_EQ(DescribeBits(whole.Slice(0, length), prefix), "") << length;
  }
}

// norm_eps = 0 and latents of +-1: the scores are exact. One position wins by far, or several win
// by the same score.
TEST_P(MlaTest, HugeScoresSelectAndTiesShare) {
  MlaModel model{.num_heads = 1, .rank = 2, .nope_dim = 1, .rope_dim = 3, .v_dim = 1};
  model.norm_eps = 0;
  model.kv_a_norm = Tensor(1, 2, 1);
  model.kv_b = F32Weight({2, 2, {0, 1, 1, 0}});  // k_nope: second latent; v: first latent
  MlaSequence sequence;
  // v | k_nope | k_pe: [-1, 1 | 0 0 0], [1, -1 | 0 0 0], [1, 1 | 0 0 0], [-1, -1 | 0 0 0]
  sequence.kv_a = {4, 5, {-1, 1, 0, 0, 0, 1, -1, 0, 0, 0, 1, 1, 0, 0, 0, -1, -1, 0, 0, 0}};
  sequence.q = {4, 4, {1e4f, 0, 0, 0, -1e4f, 0, 0, 0, 1e4f, 0, 0, 0, -1e30f, 0, 0, 0}};
  sequence.gate = Tensor(4, 1, 100);
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(1);
  for (const auto* backend : {&reference, &cpu}) {
    for (const std::vector<Step>& steps : {OneSequence({4}), OneSequence({}, 4)}) {
      const MlaResult result = RunMla(**backend, model, {sequence}, steps)[0];
      // Row 0 sees itself; row 1 selects position 1; row 2 shares 0 and 2; row 3 shares 1 and 3.
      EXPECT_EQ(DescribeDifference(std::vector<float>{-1, 1, 0, 0}, result.out.values,
                                   {.abs = 1e-6, .rel = 0}),
                "")
          << (*backend)->name();
    }
  }
}

TEST_P(MlaTest, ZeroLatentsAverageAndClosedGatesShut) {
  Random random(7);
  const MlaModel model = OddModel(random);
  MlaSequence sequence = MakeMlaSequence(random, model, 20);
  const auto cpu = Cpu(1);
  sequence.kv_a = Tensor(20, model.rank + model.rope_dim);
  EXPECT_EQ(LargestAbs(RunMla(*cpu, model, {sequence}, OneSequence({19}, 1))[0].out), 0);
  sequence = MakeMlaSequence(random, model, 20);
  for (float& gate : sequence.gate.values) gate = gate < 0 ? -100 : 100;
  const std::vector<Step> steps = OneSequence({19}, 1);
  ExpectNear(model, RunMla(*MakeReferenceBackend(), model, {sequence}, steps)[0],
             RunMla(*cpu, model, {sequence}, steps)[0]);
}

}  // namespace
}  // namespace yoke::kernels
