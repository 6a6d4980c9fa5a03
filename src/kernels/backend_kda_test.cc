// KDA on every SIMD target: the chunked and the recurrent form against the recurrent reference, and
// the bitwise rule.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/tests/hwy_gtest.h>

#include "kernels/backend_fixture.h"
#include "kernels/cpu_backend.h"
#include "kernels/kda_fixture.h"
#include "kernels/reference_backend.h"
#include "testutil/near.h"

namespace yoke::kernels {
namespace {

using testutil::DescribeDifference;

class KdaTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(KdaTest);

std::unique_ptr<Backend> Cpu(size_t num_threads) {
  return MakeCpuBackend({.num_threads = num_threads});
}

// Random signs: the sum of |a b| over k terms is about sqrt(k) times a large result. Three sums of
// head_dim terms (k S, the state, q S) and the output norm follow each other.
testutil::Tolerance KdaTolerance(const KdaModel& model, const Tensor& expected) {
  const size_t num_terms = 4 * model.head_dim + 4 * kKdaSubChunk;
  return testutil::DotTolerance(num_terms,
                                std::sqrt(static_cast<double>(num_terms)) * LargestAbs(expected));
}

void ExpectNear(const KdaModel& model, const KdaResult& expected, const KdaResult& actual) {
  EXPECT_EQ(
      DescribeDifference(expected.out.values, actual.out.values, KdaTolerance(model, expected.out)),
      "");
  EXPECT_EQ(DescribeDifference(expected.delta.values, actual.delta.values,
                               KdaTolerance(model, expected.delta)),
            "");
  EXPECT_EQ(DescribeBits(expected.conv, actual.conv), "");
}

void ExpectSameBits(const KdaResult& expected, const KdaResult& actual) {
  EXPECT_EQ(DescribeBits(expected.out, actual.out), "");
  EXPECT_EQ(DescribeBits(expected.delta, actual.delta), "");
  EXPECT_EQ(DescribeBits(expected.conv, actual.conv), "");
}

// Prompts of several sequences in pieces, mixed with decodes of others. Sequence 1 is prefilled
// again after decodes, as in a second turn.
const std::vector<Step> kMixedSteps = {
    {{0, 23, true}, {1, 14, true}},
    {{1, 1, false}, {2, 16, true}, {0, 1, false}},
    {{2, 32, true}, {0, 1, false}, {1, 1, false}, {3, 1, true}},
    {{1, 30, true}, {2, 9, true}},
    {{3, 1, false}, {2, 1, false}, {1, 1, false}, {0, 1, false}},
};
const std::vector<size_t> kMixedLengths = {26, 47, 58, 2};

std::vector<KdaSequence> MixedSequences(Random& random, const KdaModel& model) {
  std::vector<KdaSequence> sequences;
  for (const size_t length : kMixedLengths) {
    sequences.push_back(MakeKdaSequence(random, model, length));
  }
  return sequences;
}

TEST_P(KdaTest, PromptOfEveryLengthMatchesReference) {
  const auto reference = MakeReferenceBackend();
  const auto one_thread = Cpu(1);
  const auto three_threads = Cpu(3);
  Random random(1);
  const KdaModel model = MakeKdaModel(random, 2, 16);
  for (size_t length = 1; length <= 50; ++length) {
    SCOPED_TRACE(length);
    const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, length)};
    const std::vector<Step> steps = OneSequence({length});
    const KdaResult expected = RunKda(*reference, model, sequence, steps)[0];
    ExpectNear(model, expected, RunKda(*one_thread, model, sequence, steps)[0]);
    ExpectNear(model, expected,
               RunKda(*three_threads, model, sequence, steps, Layout::kStrided)[0]);
  }
}

TEST_P(KdaTest, EveryHeadDimMatchesReference) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  for (const size_t head_dim : {1u, 2u, 3u, 5u, 8u, 13u, 16u, 20u, 31u, 32u, 48u, 67u, 128u}) {
    SCOPED_TRACE(head_dim);
    Random random(head_dim);
    const KdaModel model = MakeKdaModel(random, 1 + head_dim % 3, head_dim);
    const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, 39)};
    const std::vector<Step> steps = OneSequence({36}, 3);
    ExpectNear(model, RunKda(*reference, model, sequence, steps)[0],
               RunKda(*cpu, model, sequence, steps, Layout::kStrided)[0]);
  }
}

TEST_P(KdaTest, EveryNumberOfHeadsMatchesReference) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  for (size_t num_heads = 0; num_heads <= 12; ++num_heads) {
    SCOPED_TRACE(num_heads);
    Random random(num_heads);
    const KdaModel model = MakeKdaModel(random, num_heads, 4);
    const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, 20)};
    const std::vector<Step> steps = OneSequence({17}, 3);
    ExpectNear(model, RunKda(*reference, model, sequence, steps)[0],
               RunKda(*cpu, model, sequence, steps)[0]);
  }
}

TEST_P(KdaTest, LongDecodeMatchesReference) {
  Random random(2);
  const KdaModel model = MakeKdaModel(random, 3, 20);
  const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, 100)};
  const std::vector<Step> steps = OneSequence({}, 100);
  ExpectNear(model, RunKda(*MakeReferenceBackend(), model, sequence, steps)[0],
             RunKda(*Cpu(1), model, sequence, steps)[0]);
}

TEST_P(KdaTest, MixedStepsMatchReference) {
  Random random(3);
  const KdaModel model = MakeKdaModel(random, 3, 24);
  const std::vector<KdaSequence> sequences = MixedSequences(random, model);
  const auto reference = MakeReferenceBackend();
  const std::vector<KdaResult> expected = RunKda(*reference, model, sequences, kMixedSteps);
  for (const size_t num_threads : {1u, 3u}) {
    const auto cpu = Cpu(num_threads);
    const std::vector<KdaResult> actual =
        RunKda(*cpu, model, sequences, kMixedSteps, Layout::kStrided);
    for (size_t s = 0; s < sequences.size(); ++s) {
      SCOPED_TRACE(s);
      ExpectNear(model, expected[s], actual[s]);
    }
    EXPECT_EQ(reference->WeightBytesRead(), cpu->WeightBytesRead());
  }
}

TEST_P(KdaTest, SequencesTogetherGiveTheBitsOfEachAlone) {
  Random random(4);
  const KdaModel model = MakeKdaModel(random, 3, 24);
  const std::vector<KdaSequence> sequences = MixedSequences(random, model);
  const auto one_thread = Cpu(1);
  for (const size_t num_threads : {1u, 3u}) {
    const std::vector<KdaResult> together =
        RunKda(*Cpu(num_threads), model, sequences, kMixedSteps, Layout::kStrided);
    for (size_t s = 0; s < sequences.size(); ++s) {
      SCOPED_TRACE(s);
      const KdaResult alone =
          RunKda(*one_thread, model, {sequences[s]}, StepsOf(kMixedSteps, s))[0];
      ExpectSameBits(alone, together[s]);
    }
  }
}

TEST_P(KdaTest, CutsOfAPromptDoNotChangeBits) {
  Random random(5);
  const KdaModel model = MakeKdaModel(random, 2, 20);
  const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, 72)};
  const auto cpu = Cpu(1);
  const KdaResult whole = RunKda(*cpu, model, sequence, OneSequence({70}, 2))[0];
  const std::vector<std::vector<size_t>> cuts = {
      {16, 16, 16, 16, 6}, {16, 54}, {32, 38}, {48, 22}, {64, 6}, {16, 32, 22}, {48, 16, 6}};
  for (size_t i = 0; i < cuts.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSameBits(whole, RunKda(*cpu, model, sequence, OneSequence(cuts[i], 2))[0]);
    ExpectSameBits(whole, RunKda(*Cpu(3), model, sequence, OneSequence(cuts[i], 2))[0]);
  }
}

TEST_P(KdaTest, LaterTokensDoNotChangeBits) {
  Random random(9);
  const KdaModel model = MakeKdaModel(random, 2, 20);
  const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, 50)};
  const auto cpu = Cpu(1);
  const Tensor whole = RunKda(*cpu, model, sequence, OneSequence({50}))[0].out;
  for (size_t length = 1; length < 50; ++length) {
    const Tensor prefix = RunKda(*cpu, model, sequence, OneSequence({length}))[0].out;
    EXPECT_EQ(DescribeBits(whole.Slice(0, length), prefix), "") << length;
  }
}

TEST_P(KdaTest, ChunkedIsRecurrent) {
  Random random(6);
  const KdaModel model = MakeKdaModel(random, 2, 32);
  const std::vector<KdaSequence> sequence = {MakeKdaSequence(random, model, 64)};
  const auto cpu = Cpu(1);
  const KdaResult recurrent = RunKda(*cpu, model, sequence, OneSequence({}, 64))[0];
  ExpectNear(model, recurrent, RunKda(*cpu, model, sequence, OneSequence({64}))[0]);
}

// With k = 0 (whose normalised form is 0, not NaN) a step only decays the state: log(after/before)
// is the gate. One channel a case; a_log = {0, 0.5, -0.5} by head.
TEST_P(KdaTest, SafeGateHasTheValuesOfTheSpecification) {
  constexpr size_t kDim = 3;
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(1);
  for (const bool prefill : {false, true}) {
    KdaModel model{.num_heads = 3, .head_dim = kDim};
    model.q_conv = model.k_conv = model.v_conv = Tensor(9, kKdaConvTaps);
    for (size_t c = 0; c < 9; ++c) model.k_conv(c, 3) = model.v_conv(c, 3) = 1;
    model.a_log = {1, 3, {0, 0.5f, -0.5f}};
    model.dt_bias = Tensor(1, 9, 0.5f);
    model.o_norm = Tensor(1, kDim, 1);
    KdaSequence sequence;
    // The first token writes v k^T into the state, the second only decays it.
    sequence.k = {2, 9, 1};
    for (size_t c = 0; c < 9; ++c) sequence.k(1, c) = 0;
    sequence.v = {2, 9, 1};
    sequence.q = sequence.gate = Tensor(2, 9);
    sequence.beta = {2, 3};
    // z = forget + dt_bias: 0, 1, -1 | 2, -100, 100 | -2, 0, 0
    sequence.forget = {
        2,
        9,
        {0, 0, 0, 0, 0, 0, 0, 0, 0, -0.5f, 0.5f, -1.5f, 1.5f, -100.5f, 99.5f, -2.5f, -0.5f, -0.5f}};
    const float want[] = {-2.5f, -3.655293f, -1.344707f, -4.821705f, 0,
                          -5,    -1.145799f, -2.5f,      -2.5f};
    for (const auto* backend : {&reference, &cpu}) {
      const std::vector<Step> first = prefill ? OneSequence({1}) : OneSequence({}, 1);
      const std::vector<Step> both = prefill ? OneSequence({2}) : OneSequence({}, 2);
      const Tensor before = RunKda(**backend, model, {sequence}, first)[0].delta;
      const Tensor after = RunKda(**backend, model, {sequence}, both)[0].delta;
      for (size_t c = 0; c < 9; ++c) {
        const size_t col = c % kDim * kDim;  // row c % kDim of the head's state
        ASSERT_GT(before(c / kDim, col), 0);
        EXPECT_NEAR(std::log(after(c / kDim, col) / before(c / kDim, col)), want[c], 3e-6)
            << (*backend)->name() << ", channel " << c << ", prefill " << prefill;
      }
    }
  }
}

struct Extreme {
  const char* name;
  float q, k, v, forget, beta, gate;
};

TEST_P(KdaTest, ExtremeInputsMatchReference) {
  // 0: all zeros. Else every value is + or - the magnitude.
  const Extreme extremes[] = {
      {"all zero", 0, 0, 0, 0, 0, 0},
      {"zero q", 0, 1, 1, 1, 1, 1},
      {"zero k", 1, 0, 1, 1, 1, 1},
      {"zero v", 1, 1, 0, 1, 1, 1},
      {"tiny q, k", 1e-4f, 1e-4f, 1, 1, 1, 1},
      {"gates at 100", 1, 1, 1, 100, 100, 100},
      {"gates at 1e4", 1, 1, 1, 1e4f, 1e4f, 1e4f},
      {"large q, k, v", 1e8f, 1e8f, 1e8f, 1, 1, 1},
  };
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(1);
  for (const Extreme& extreme : extremes) {
    SCOPED_TRACE(extreme.name);
    Random random(7);
    const KdaModel model = MakeKdaModel(random, 2, 16);
    KdaSequence sequence = MakeKdaSequence(random, model, 37);
    const auto set = [&](Tensor& tensor, float magnitude) {
      for (float& value : tensor.values) value = random.Below(2) == 0 ? magnitude : -magnitude;
    };
    set(sequence.q, extreme.q);
    set(sequence.k, extreme.k);
    set(sequence.v, extreme.v);
    set(sequence.forget, extreme.forget);
    set(sequence.beta, extreme.beta);
    set(sequence.gate, extreme.gate);
    const std::vector<Step> steps = OneSequence({35}, 2);
    ExpectNear(model, RunKda(*reference, model, {sequence}, steps)[0],
               RunKda(*cpu, model, {sequence}, steps)[0]);
  }
}

// The whole sub-chunk keeps or forgets all it can, and every k is the same: the chunk's triangular
// system at its worst.
TEST_P(KdaTest, RepeatedTokenMatchesReference) {
  for (const float forget : {-1000.f, 0.f, 1000.f}) {
    SCOPED_TRACE(forget);
    Random random(8);
    const KdaModel model = MakeKdaModel(random, 2, 16);
    const KdaSequence one = MakeKdaSequence(random, model, 1);
    KdaSequence sequence;
    for (size_t t = 0; t < 64; ++t) {
      sequence.q.Append(one.q);
      sequence.k.Append(one.k);
      sequence.v.Append(one.v);
      sequence.gate.Append(one.gate);
      sequence.beta.Append(Tensor(1, model.num_heads, 20));
      sequence.forget.Append(Tensor(1, model.num_heads * model.head_dim, forget));
    }
    ExpectNear(model, RunKda(*MakeReferenceBackend(), model, {sequence}, OneSequence({64}))[0],
               RunKda(*Cpu(1), model, {sequence}, OneSequence({64}))[0]);
  }
}

}  // namespace
}  // namespace yoke::kernels
