// Memory, the elementwise ops and embedding on every SIMD target; and many ops in one flush.
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

class MiscTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(MiscTest);

// Few ulps of each element, for formulas without long sums.
constexpr testutil::Tolerance kFewUlps{.abs = 1e-30, .rel = 1e-6};

std::unique_ptr<Backend> Cpu(size_t num_threads) {
  return MakeCpuBackend({.num_threads = num_threads});
}

Tensor RunSitu(Backend& backend, const Tensor& gate, const Tensor& up, Layout layout) {
  Workspace workspace(backend, layout);
  const View gate_view = workspace.Put(gate);
  const View up_view = workspace.Put(up);
  const View out = workspace.Make(gate.rows, gate.cols);
  backend.Situ(gate_view, up_view, 4, 25, out);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(out);
}

TEST_P(MiscTest, SituHasTheValuesOfTheSpecification) {
  const Tensor gate{1, 6, {1, -1, 3, 8, -6, 100}};
  const Tensor up{1, 6, {1, 2, -2, 10, 30, 100}};
  const std::vector<float> expected = {0.7158178f,  -0.5258289f, -4.8299123f,
                                       36.6158446f, -0.1865794f, 99.9329300f};
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(1);
  for (const auto* backend : {&reference, &cpu}) {
    EXPECT_EQ(DescribeDifference(expected, RunSitu(**backend, gate, up, Layout::kDense).values,
                                 {.abs = 1e-7, .rel = 1e-6}),
              "")
        << (*backend)->name();
  }
}

TEST_P(MiscTest, SituMatchesReferenceAtEveryWidthAndMagnitude) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  for (size_t cols = 1; cols <= 67; ++cols) {
    Random random(cols);
    for (const float scale : {1e-6f, 0.01f, 1.f, 10.f, 80.f}) {
      const Tensor gate = random.Uniform(1 + cols % 4, cols, scale);
      const Tensor up = random.Uniform(1 + cols % 4, cols, scale);
      const Tensor expected = RunSitu(*reference, gate, up, Layout::kDense);
      EXPECT_EQ(DescribeDifference(expected.values,
                                   RunSitu(*cpu, gate, up, Layout::kStrided).values, kFewUlps),
                "")
          << cols << " columns, scale " << scale;
    }
  }
}

TEST_P(MiscTest, SituOfExtremeValues) {
  Tensor gate(1, 0);
  Tensor up(1, 0);
  for (const float g : {0.f, -0.f, 1e-30f, -1e-30f, 100.f, -100.f, 1e30f, -1e30f}) {
    for (const float u : {0.f, 1e-30f, 100.f, -100.f, 1e30f, -1e30f}) {
      gate.values.push_back(g);
      up.values.push_back(u);
    }
  }
  gate.cols = up.cols = gate.values.size();
  const Tensor expected = RunSitu(*MakeReferenceBackend(), gate, up, Layout::kDense);
  EXPECT_EQ(DescribeDifference(expected.values, RunSitu(*Cpu(1), gate, up, Layout::kDense).values,
                               kFewUlps),
            "");
}

TEST_P(MiscTest, CopyAndAddAreExactAtEveryWidth) {
  for (const size_t num_threads : {1u, 3u}) {
    const auto cpu = Cpu(num_threads);
    for (size_t cols = 1; cols <= 67; ++cols) {
      SCOPED_TRACE(cols);
      Random random(cols);
      const Tensor x = random.Uniform(cols % 5, cols);
      Tensor sum = random.Uniform(cols % 5, cols);
      Workspace workspace(*cpu, Layout::kStrided);
      const View x_view = workspace.Put(x);
      const View copy = workspace.Make(x.rows, x.cols);
      const View sum_view = workspace.Put(sum);
      cpu->Copy(x_view, copy);
      cpu->Add(x_view, sum_view);
      cpu->Flush();
      EXPECT_EQ(workspace.NumStrayWrites(), 0u);
      EXPECT_EQ(DescribeBits(x, workspace.Get(copy)), "");
      for (size_t i = 0; i < x.values.size(); ++i) sum.values[i] += x.values[i];
      EXPECT_EQ(DescribeBits(sum, workspace.Get(sum_view)), "");
    }
  }
}

TEST_P(MiscTest, EmbedCopiesRowsAndLeavesZerosForOtherRanks) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = Cpu(3);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0}) {
    for (const size_t blocks : {1u, 2u, 5u, 32u}) {
      SCOPED_TRACE(ToString(dtype));
      const size_t cols =
          IsBlockFormat(dtype) || blocks == 32 ? blocks * kBlockCols : 7 * blocks + 1;
      Random random(blocks);
      const HostMatrix table = random.Weight(dtype, 10, cols);
      // This slice holds tokens 20 to 29.
      const std::vector<int32_t> tokens = {20, 29, 19, 30, 0, 25, 25, 1000000};
      Tensor expected(tokens.size(), cols);
      for (const size_t i : {0u, 1u, 5u, 6u}) {
        DequantizeRow(table, static_cast<size_t>(tokens[i]) - 20,
                      {&expected.values[i * cols], cols});
      }
      for (const auto* backend : {&reference, &cpu}) {
        Workspace workspace(**backend, Layout::kStrided);
        const View out = workspace.Make(tokens.size(), cols);
        (*backend)->Embed((*backend)->AddWeight(CopyOf(table)), 20, tokens, out);
        (*backend)->Flush();
        EXPECT_EQ(workspace.NumStrayWrites(), 0u);
        EXPECT_EQ(DescribeBits(expected, workspace.Get(out)), "") << (*backend)->name();
      }
    }
  }
}

TEST_P(MiscTest, BuffersStartZeroedAndReadBackWhatWasWritten) {
  const auto cpu = Cpu(1);
  const auto reference = MakeReferenceBackend();
  Random random(3);
  for (const auto* backend : {&cpu, &reference}) {
    for (size_t i = 0; i < 20; ++i) {
      const size_t size = 1 + random.Below(5000);
      const View whole{(*backend)->Allocate(size), 0, 1, size, size};
      Tensor values(1, size, 7);
      (*backend)->Read(whole, values.values);
      EXPECT_EQ(DescribeBits(Tensor(1, size), values), "") << (*backend)->name();
      (*backend)->Write(whole, std::vector<float>(size, 1));
      (*backend)->Free(whole.buffer);
    }
    Workspace workspace(**backend, Layout::kStrided);
    const Tensor values = random.Uniform(7, 9);
    EXPECT_EQ(DescribeBits(values, workspace.Get(workspace.Put(values))), "");
    EXPECT_EQ(workspace.NumStrayWrites(), 0u);
    // Any op, so that a target is chosen.
    RunSitu(**backend, values, values, Layout::kDense);
  }
}

// A buffer that is freed while ops that use it wait, and a new one that may take its place.
TEST_P(MiscTest, FreeWaitsForEnqueuedOps) {
  const auto cpu = Cpu(3);
  Random random(4);
  const Tensor x = random.Uniform(3, 100);
  for (size_t i = 0; i < 20; ++i) {
    Workspace workspace(*cpu, Layout::kDense);
    const View y = workspace.Make(3, 100);
    const View x_view{cpu->Allocate(300), 0, 3, 100, 100};
    cpu->Write(x_view, x.values);
    cpu->Copy(x_view, y);
    cpu->Free(x_view.buffer);
    const View fresh{cpu->Allocate(300), 0, 3, 100, 100};
    cpu->Add(y, fresh);
    cpu->Flush();
    EXPECT_EQ(DescribeBits(x, workspace.Get(y)), "");
    EXPECT_EQ(DescribeBits(x, workspace.Get(fresh)), "");
    cpu->Free(fresh.buffer);
  }
}

// A chain in which each op reads what the one before wrote, flushed after each op or at the end.
Tensor RunChain(Backend& backend, bool flush_each) {
  constexpr size_t kTokens = 3;
  constexpr size_t kDim = 64;
  Random random(5);
  Workspace workspace(backend, Layout::kDense);
  const View x = workspace.Put(random.Uniform(kTokens, kDim));
  const View normed = workspace.Make(kTokens, kDim);
  const View gate_up = workspace.Make(kTokens, 2 * kDim);
  const View inner = workspace.Make(kTokens, kDim);
  const View delta = workspace.Make(kTokens, kDim);
  const WeightId norm = backend.AddWeight(F32Weight(random.Uniform(1, kDim)));
  const WeightId gate = backend.AddWeight(random.Weight(DType::kMxfp4, kDim, kDim));
  const WeightId up = backend.AddWeight(random.Weight(DType::kBf16, kDim, kDim));
  const WeightId down = backend.AddWeight(random.Weight(DType::kQ8_0, kDim, kDim));
  const auto flush = [&] {
    if (flush_each) backend.Flush();
  };
  for (size_t layer = 0; layer < 100; ++layer) {
    backend.RmsNorm(x, norm, 1e-5f, normed);
    flush();
    backend.Linear(normed, {{gate, gate_up.Cols(0, kDim)}, {up, gate_up.Cols(kDim, kDim)}});
    flush();
    backend.Situ(gate_up.Cols(0, kDim), gate_up.Cols(kDim, kDim), 4, 25, inner);
    flush();
    backend.Linear(inner, {{down, delta}});
    flush();
    backend.Add(delta, x);
    flush();
  }
  return workspace.Get(x);
}

TEST_P(MiscTest, ManyOpsInOneFlushSeeEachOthersResults) {
  const auto one_thread = Cpu(1);
  const Tensor expected = RunChain(*one_thread, true);
  EXPECT_GT(LargestAbs(expected), 0);
  EXPECT_EQ(DescribeBits(expected, RunChain(*one_thread, false)), "");
  EXPECT_EQ(DescribeBits(expected, RunChain(*Cpu(3), false)), "");
  const auto oversubscribed = MakeCpuBackend({.num_threads = 5, .oversubscribed = true});
  EXPECT_EQ(DescribeBits(expected, RunChain(*oversubscribed, false)), "");
}

}  // namespace
}  // namespace yoke::kernels
