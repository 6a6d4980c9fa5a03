// Linear of every dtype on every SIMD target, against the reference and against itself.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
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

class LinearTest : public hwy::TestWithParamTarget {};
HWY_TARGET_INSTANTIATE_TEST_SUITE_P(LinearTest);

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kQ8_0, DType::kMxfp4};
constexpr size_t kThreadCounts[] = {1, 3};

std::unique_ptr<Backend> Cpu(size_t num_threads) {
  return MakeCpuBackend({.num_threads = num_threads});
}

// y: [x.rows, weight.rows]
Tensor RunLinear(Backend& backend, const Tensor& x, const HostMatrix& weight, Layout layout) {
  Workspace workspace(backend, layout);
  const View x_view = workspace.Put(x);
  const View y = workspace.Make(x.rows, weight.rows);
  backend.Linear(x_view, {{backend.AddWeight(CopyOf(weight)), y}});
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(y);
}

// Bounds the sum of |a b| of every output.
double SumAbs(const Tensor& x, const HostMatrix& weight) {
  double row_max = 0;
  std::vector<float> row(weight.cols);
  for (size_t r = 0; r < weight.rows; ++r) {
    DequantizeRow(weight, r, row);
    double sum = 0;
    for (const float value : row) sum += std::fabs(static_cast<double>(value));
    row_max = std::max(row_max, sum);
  }
  return row_max * LargestAbs(x);
}

struct Shape {
  size_t num_tokens, rows, cols;
};

void ExpectMatchesReference(const Shape& shape, DType dtype, Layout layout,
                            std::span<const std::unique_ptr<Backend>> cpus) {
  Random random(shape.num_tokens + 100 * shape.rows + 10000 * shape.cols);
  const Tensor x = random.Uniform(shape.num_tokens, shape.cols);
  const HostMatrix weight = random.Weight(dtype, shape.rows, shape.cols);
  const auto reference = MakeReferenceBackend();
  const Tensor expected = RunLinear(*reference, x, weight, layout);
  for (const auto& cpu : cpus) {
    const Tensor actual = RunLinear(*cpu, x, weight, layout);
    EXPECT_EQ(DescribeDifference(expected.values, actual.values,
                                 testutil::DotTolerance(shape.cols, SumAbs(x, weight))),
              "")
        << ToString(dtype) << ", " << shape.num_tokens << " tokens, weight [" << shape.rows << ", "
        << shape.cols << "]";
  }
}

void ExpectShapesMatchReference(const std::vector<Shape>& shapes) {
  std::vector<std::unique_ptr<Backend>> cpus;
  for (const size_t num_threads : kThreadCounts) cpus.push_back(Cpu(num_threads));
  for (const DType dtype : kDTypes) {
    for (Shape shape : shapes) {
      if (IsBlockFormat(dtype)) shape.cols *= kBlockCols;
      ExpectMatchesReference(shape, dtype, shape.cols % 3 == 0 ? Layout::kDense : Layout::kStrided,
                             cpus);
    }
  }
}

// Columns count blocks of 32 in the block formats.
TEST_P(LinearTest, MatchesReferenceForEveryNumberOfColumns) {
  std::vector<Shape> shapes;
  for (size_t cols = 1; cols <= 20; ++cols) shapes.push_back({1 + cols % 5, cols * 7 % 23, cols});
  ExpectShapesMatchReference(shapes);
  const auto cpu = Cpu(3);
  for (size_t cols = 21; cols <= 67; ++cols) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      ExpectMatchesReference({1 + cols % 5, cols * 7 % 23, cols}, dtype, Layout::kStrided,
                             {&cpu, 1});
    }
  }
}

TEST_P(LinearTest, MatchesReferenceForEveryNumberOfRows) {
  std::vector<Shape> shapes;
  for (size_t rows = 0; rows <= 67; ++rows) shapes.push_back({1 + rows % 3, rows, 3});
  ExpectShapesMatchReference(shapes);
}

TEST_P(LinearTest, MatchesReferenceForEveryNumberOfTokens) {
  std::vector<Shape> shapes;
  for (size_t num_tokens = 0; num_tokens <= 35; ++num_tokens) shapes.push_back({num_tokens, 9, 5});
  shapes.push_back({130, 9, 5});
  ExpectShapesMatchReference(shapes);
}

TEST_P(LinearTest, MatchesReferenceForLongRows) {
  ExpectShapesMatchReference({{2, 5, 1031}});
}

// A row of one-hot inputs reads a weight back: every MXFP4 byte under every scale for which all of
// its values are normal floats.
TEST_P(LinearTest, DecodesMxfp4Exactly) {
  constexpr size_t kScaleFirst = 2;
  constexpr size_t kScaleEnd = 253;
  constexpr size_t kCols = 512;
  constexpr float kCodes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  HostMatrix weight = HostMatrix::Make(DType::kMxfp4, kScaleEnd - kScaleFirst, kCols);
  for (size_t r = 0; r < weight.rows; ++r) {
    for (size_t i = 0; i < kCols / 2; ++i) weight.DataRow(r)[i] = static_cast<std::byte>(i);
    for (std::byte& scale : weight.ScaleRow(r)) scale = static_cast<std::byte>(kScaleFirst + r);
  }
  Tensor x(kCols, kCols);
  for (size_t c = 0; c < kCols; ++c) x(c, c) = 1;
  const auto cpu = Cpu(1);
  const Tensor y = RunLinear(*cpu, x, weight, Layout::kDense);
  size_t num_wrong = 0;
  for (size_t c = 0; c < kCols; ++c) {
    const size_t byte = c / 2;
    const float code = kCodes[c % 2 == 0 ? byte & 15 : byte >> 4];
    for (size_t r = 0; r < weight.rows; ++r) {
      num_wrong += y(c, r) == std::ldexp(code, static_cast<int>(kScaleFirst + r) - 127) ? 0u : 1u;
    }
  }
  EXPECT_EQ(num_wrong, 0u);
}

// The same for every Q8_0 code, -128 included, under f16 scales of every exponent.
TEST_P(LinearTest, DecodesQ8_0Exactly) {
  HostMatrix weight = HostMatrix::Make(DType::kQ8_0, 31, 256);
  for (size_t r = 0; r < weight.rows; ++r) {
    for (size_t c = 0; c < weight.cols; ++c) weight.DataRow(r)[c] = static_cast<std::byte>(c);
    const std::span<std::byte> scales = weight.ScaleRow(r);
    for (size_t b = 0; b < weight.cols / kBlockCols; ++b) {
      // Mantissa bits that differ by row; exponent 0 is a subnormal f16.
      const uint16_t bits = static_cast<uint16_t>(r << 10 | (r * 33 + b + 1));
      std::memcpy(&scales[2 * b], &bits, sizeof(bits));
    }
  }
  Tensor x(weight.cols, weight.cols);
  for (size_t c = 0; c < weight.cols; ++c) x(c, c) = 1;
  const auto cpu = Cpu(1);
  const Tensor y = RunLinear(*cpu, x, weight, Layout::kDense);
  size_t num_wrong = 0;
  for (size_t r = 0; r < weight.rows; ++r) {
    for (size_t c = 0; c < weight.cols; ++c) {
      const int code = c < 128 ? static_cast<int>(c) : static_cast<int>(c) - 256;
      const int mantissa = static_cast<int>(r * 33 + c / kBlockCols + 1);
      const float scale =
          r == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                 : std::ldexp(static_cast<float>(1024 + mantissa), static_cast<int>(r) - 25);
      num_wrong += y(c, r) == static_cast<float>(code) * scale ? 0u : 1u;
    }
  }
  EXPECT_EQ(num_wrong, 0u);
}

// As a model calls it: one x, several weights of different dtypes, one of them with no rows on this
// rank, outputs as columns of one buffer.
Tensor RunProjections(Backend& backend) {
  constexpr size_t kTokens = 5;
  Random random(3);
  Workspace workspace(backend, Layout::kStrided);
  const View x = workspace.Put(random.Uniform(kTokens, 64));
  const View y = workspace.Make(kTokens, 100);
  const auto weight = [&](DType dtype, size_t rows) {
    return backend.AddWeight(random.Weight(dtype, rows, 64));
  };
  backend.Linear(x, {{weight(DType::kF32, 7), y.Cols(0, 7)},
                     {weight(DType::kBf16, 0), y.Cols(7, 0)},
                     {weight(DType::kBf16, 33), y.Cols(7, 33)},
                     {weight(DType::kQ8_0, 20), y.Cols(40, 20)},
                     {weight(DType::kMxfp4, 19), y.Cols(60, 19)},
                     {weight(DType::kMxfp4, 1), y.Cols(79, 1)},
                     {weight(DType::kF32, 1), y.Cols(80, 1)},
                     {weight(DType::kQ8_0, 19), y.Cols(81, 19)}});
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(y);
}

TEST_P(LinearTest, SeveralProjectionsFillColumnsOfOneBuffer) {
  const auto reference = MakeReferenceBackend();
  const Tensor expected = RunProjections(*reference);
  Tensor first;
  for (const size_t num_threads : kThreadCounts) {
    const auto cpu = Cpu(num_threads);
    const Tensor actual = RunProjections(*cpu);
    EXPECT_EQ(DescribeDifference(expected.values, actual.values, testutil::DotTolerance(64, 64)),
              "");
    if (first.rows == 0) first = actual;
    EXPECT_EQ(DescribeBits(first, actual), "");
  }
}

TEST_P(LinearTest, TokenDoesNotDependOnOthersOrThreads) {
  constexpr size_t kTokens = 37;
  const auto one_thread = Cpu(1);
  const auto three_threads = Cpu(3);
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(ToString(dtype));
    Random random(4);
    const HostMatrix weight = random.Weight(dtype, 67, 160);
    const Tensor x = random.Uniform(kTokens, weight.cols);
    const Tensor whole = RunLinear(*one_thread, x, weight, Layout::kDense);
    for (const auto* cpu : {&one_thread, &three_threads}) {
      for (size_t num_tokens = 1; num_tokens <= kTokens; ++num_tokens) {
        const size_t first = (kTokens - num_tokens) / 2;
        const Tensor part = RunLinear(**cpu, x.Slice(first, num_tokens), weight, Layout::kStrided);
        ASSERT_EQ(DescribeBits(whole.Slice(first, num_tokens), part), "")
            << num_tokens << " tokens from " << first;
      }
    }
  }
}

TEST_P(LinearTest, ManyRowsSplitOverThreadsGiveTheSameBits) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(ToString(dtype));
    Random random(5);
    const HostMatrix weight = random.Weight(dtype, 1001, 96);
    const Tensor x = random.Uniform(3, weight.cols);
    const Tensor expected = RunLinear(*Cpu(1), x, weight, Layout::kDense);
    for (const size_t num_threads : {2u, 3u, 7u}) {
      EXPECT_EQ(DescribeBits(expected, RunLinear(*Cpu(num_threads), x, weight, Layout::kDense)),
                "");
    }
  }
}

TEST_P(LinearTest, KeepsZerosAndLargeMagnitudes) {
  const auto cpu = Cpu(1);
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(ToString(dtype));
    Random random(6);
    const HostMatrix weight = random.Weight(dtype, 9, 64);
    EXPECT_EQ(LargestAbs(RunLinear(*cpu, Tensor(2, 64), weight, Layout::kDense)), 0);
    for (const float scale : {1e30f, 1e-30f}) {
      const Tensor x = random.Uniform(3, 64, scale);
      const Tensor expected = RunLinear(*MakeReferenceBackend(), x, weight, Layout::kDense);
      EXPECT_EQ(
          DescribeDifference(expected.values, RunLinear(*cpu, x, weight, Layout::kDense).values,
                             testutil::DotTolerance(64, SumAbs(x, weight))),
          "");
    }
  }
}

TEST_P(LinearTest, CountsEachMatrixOnceAnOp) {
  const auto cpu = Cpu(3);
  const auto reference = MakeReferenceBackend();
  for (const auto* backend : {&cpu, &reference}) {
    RunProjections(**backend);
    const size_t f32 = 8 * 64 * 4;
    const size_t bf16 = 33 * 64 * 2;
    const size_t q8_0 = 39 * (64 + 4);
    const size_t mxfp4 = 20 * (32 + 2);
    EXPECT_EQ((*backend)->WeightBytesRead(), f32 + bf16 + q8_0 + mxfp4);
  }
}

}  // namespace
}  // namespace yoke::kernels
