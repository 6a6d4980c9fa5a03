#include "model/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_fixture.h"
#include "model/recording_backend.h"

namespace yoke::model {
namespace {

using kernels::WeightId;
using shard::Range;

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A checkpoint of one file, and a loader from it. Tensors are random unless given.
class Fixture {
 public:
  // Values of about 1, and some far larger or smaller, as trunk matrices have.
  std::vector<float> AddBf16(const std::string& name, std::vector<size_t> shape) {
    std::vector<uint16_t> bits(Size(shape));
    std::vector<float> values(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = F32ToBf16(prng_.Uniform(-1, 1) * std::ldexp(1.0F, -static_cast<int>(i % 7)));
      values[i] = Bf16ToF32(bits[i]);
    }
    tensors_.push_back({name, "BF16", std::move(shape), BytesOf(bits)});
    return values;
  }
  std::vector<float> AddF32(const std::string& name, std::vector<size_t> shape) {
    std::vector<float> values(Size(shape));
    for (float& value : values) value = prng_.Uniform(-1, 1);
    return AddF32(name, std::move(shape), values);
  }
  std::vector<float> AddF32(const std::string& name, std::vector<size_t> shape,
                            const std::vector<float>& values) {
    tensors_.push_back({name, "F32", std::move(shape), BytesOf(values)});
    return values;
  }
  // Returns the bytes.
  std::string AddU8(const std::string& name, std::vector<size_t> shape, size_t values_max) {
    std::string bytes(Size(shape), '\0');
    for (char& byte : bytes) byte = static_cast<char>(prng_.Below(values_max + 1));
    tensors_.push_back({name, "U8", std::move(shape), bytes});
    return bytes;
  }
  std::vector<TensorToWrite>& tensors() { return tensors_; }

  WeightLoader Open(TrunkFormat trunk = TrunkFormat::kAsStored) {
    folder_.Write("model.safetensors", MakeSafetensors(tensors_));
    checkpoint_.emplace(Checkpoint::Open(folder_.path()).value());
    return WeightLoader(*checkpoint_, backend, trunk,
                        [this](uint64_t bytes) { progress.push_back(bytes); });
  }

  const HostMatrix& Weight(const Result<WeightId>& id) {
    YOKE_CHECK(id.has_value());
    return backend.At(id.value());
  }
  const HostMatrix& Weight(const Result<ColumnSlice>& slice) {
    YOKE_CHECK(slice.has_value());
    return backend.At(slice.value().weight);
  }

  RecordingBackend backend;
  std::vector<uint64_t> progress;  // as reported

 private:
  static size_t Size(const std::vector<size_t>& shape) {
    size_t size = 1;
    for (const size_t extent : shape) size *= extent;
    return size;
  }

  Prng prng_{TestSeed()};
  std::vector<TensorToWrite> tensors_;
  TempFolder folder_;
  std::optional<Checkpoint> checkpoint_;
};

std::vector<float> Values(const HostMatrix& matrix) {
  std::vector<float> values(matrix.rows * matrix.cols);
  for (size_t i = 0; i < matrix.rows; ++i) {
    DequantizeRow(matrix, i, std::span(values).subspan(i * matrix.cols, matrix.cols));
  }
  return values;
}

// [rows, cols] out of a dense matrix that is `stride` wide.
template <typename Sequence>
Sequence Cut(const Sequence& all, size_t stride, const Range& rows, const Range& cols) {
  Sequence part;
  for (size_t i = rows.begin; i < rows.end; ++i) {
    const auto row = all.begin() + static_cast<std::ptrdiff_t>(i * stride);
    part.insert(part.end(), row + static_cast<std::ptrdiff_t>(cols.begin),
                row + static_cast<std::ptrdiff_t>(cols.end));
  }
  return part;
}

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void ExpectShape(const HostMatrix& matrix, DType dtype, size_t rows, size_t cols) {
  EXPECT_EQ(ToString(matrix.dtype), ToString(dtype));
  EXPECT_EQ(matrix.rows, rows);
  EXPECT_EQ(matrix.cols, cols);
}

constexpr size_t kRows = 13;
constexpr size_t kCols = 128;
const Range kSomeRows[] = {{0, kRows}, {0, 1}, {12, 13}, {3, 9}, {5, 5}};
const Range kSomeCols[] = {{0, kCols}, {0, 32},  {96, 128}, {32, 96}, {24, 48},
                           {40, 41},   {1, 127}, {31, 33},  {64, 64}};

TEST(WeightLoaderTest, RowsAreTheFilesRows) {
  Fixture f;
  f.AddU8("shift", {3}, 255);  // what follows is not aligned in the file
  const std::vector<float> bf16 = f.AddBf16("bf16", {kRows, kCols});
  const std::vector<float> f32 = f.AddF32("f32", {kRows, kCols});
  const std::vector<float> conv = f.AddF32("conv", {kRows, 1, 4});
  WeightLoader loader = f.Open();
  for (const Range& rows : kSomeRows) {
    SCOPED_TRACE(testing::Message() << "rows " << rows.begin << " to " << rows.end);
    const Range all_cols = {0, kCols};
    const HostMatrix& a = f.Weight(loader.Rows("bf16", rows));
    ExpectShape(a, DType::kBf16, rows.size(), kCols);
    EXPECT_EQ(Values(a), Cut(bf16, kCols, rows, all_cols));
    const HostMatrix& b = f.Weight(loader.Rows("f32", rows));
    ExpectShape(b, DType::kF32, rows.size(), kCols);
    EXPECT_EQ(Values(b), Cut(f32, kCols, rows, all_cols));
    const HostMatrix& c = f.Weight(loader.RowsAsStored("conv", rows));
    ExpectShape(c, DType::kF32, rows.size(), 4);
    EXPECT_EQ(Values(c), Cut(conv, 4, rows, {0, 4}));
  }
  EXPECT_EQ(Values(f.Weight(loader.Whole("bf16"))), bf16);
}

TEST(WeightLoaderTest, ColumnsAreTheFilesColumns) {
  Fixture f;
  f.AddU8("shift", {1}, 255);
  const std::vector<float> bf16 = f.AddBf16("bf16", {kRows, kCols});
  const std::vector<float> f32 = f.AddF32("f32", {kRows, kCols});
  WeightLoader loader = f.Open();
  for (const Range& cols : kSomeCols) {
    SCOPED_TRACE(testing::Message() << "columns " << cols.begin << " to " << cols.end);
    const Result<ColumnSlice> a = loader.Cols("bf16", cols);
    ExpectShape(f.Weight(a), DType::kBf16, kRows, cols.size());
    EXPECT_EQ(Values(f.Weight(a)), Cut(bf16, kCols, {0, kRows}, cols));
    EXPECT_EQ(a.value().offset, 0u);
    EXPECT_EQ(a.value().cols, cols.size());
    const Result<ColumnSlice> b = loader.Cols("f32", cols);
    ExpectShape(f.Weight(b), DType::kF32, kRows, cols.size());
    EXPECT_EQ(Values(f.Weight(b)), Cut(f32, kCols, {0, kRows}, cols));
  }
}

TEST(WeightLoaderTest, Q8RowsAreTheQuantizedFilesRows) {
  Fixture f;
  const std::vector<float> values = f.AddBf16("w", {kRows, kCols});
  WeightLoader loader = f.Open(TrunkFormat::kQ8_0);
  std::string codes, scales;
  for (size_t i = 0; i < kRows; ++i) {
    std::vector<int8_t> row_codes(kCols);
    std::vector<uint16_t> row_scales(kCols / kBlockCols);
    QuantizeRowQ8_0(std::span(values).subspan(i * kCols, kCols), row_codes, row_scales);
    codes += BytesOf(row_codes);
    scales += BytesOf(row_scales);
  }
  constexpr size_t kScaleBytes = kCols / kBlockCols * 2;
  for (const Range& rows : kSomeRows) {
    const HostMatrix& slice = f.Weight(loader.Rows("w", rows));
    ExpectShape(slice, DType::kQ8_0, rows.size(), kCols);
    EXPECT_EQ(Text(slice.data.bytes()), Cut(codes, kCols, rows, {0, kCols}));
    EXPECT_EQ(Text(slice.scales.bytes()), Cut(scales, kScaleBytes, rows, {0, kScaleBytes}));
  }
}

// So that neither scales nor codes depend on where ranks cut.
TEST(WeightLoaderTest, Q8ColumnsAreBlocksOfTheWholeQuantizedMatrix) {
  Fixture f;
  f.AddBf16("w", {kRows, kCols});
  WeightLoader loader = f.Open(TrunkFormat::kQ8_0);
  const WeightId whole_id = loader.Whole("w").value();
  const std::string codes = Text(f.backend.At(whole_id).data.bytes());
  const std::string scales = Text(f.backend.At(whole_id).scales.bytes());
  constexpr size_t kScaleBytes = kCols / kBlockCols * 2;
  for (const Range& cols : kSomeCols) {
    SCOPED_TRACE(testing::Message() << "columns " << cols.begin << " to " << cols.end);
    const Result<ColumnSlice> slice = loader.Cols("w", cols);
    const Range kept = shard::CoverBlocks(cols, kBlockCols);
    ExpectShape(f.Weight(slice), DType::kQ8_0, kRows, kept.size());
    EXPECT_EQ(slice.value().offset, cols.begin - kept.begin);
    EXPECT_EQ(slice.value().cols, kept.size());
    EXPECT_EQ(Text(f.Weight(slice).data.bytes()), Cut(codes, kCols, {0, kRows}, kept));
    EXPECT_EQ(Text(f.Weight(slice).scales.bytes()),
              Cut(scales, kScaleBytes, {0, kRows}, {kept.begin / 16, kept.end / 16}));
  }
}

TEST(WeightLoaderTest, ColumnSlicesWithOffsetsHoldEachRanksColumns) {
  Fixture f;
  f.AddBf16("w", {kRows, 96});
  WeightLoader loader = f.Open(TrunkFormat::kQ8_0);
  const std::vector<float> whole = Values(f.Weight(loader.Whole("w")));
  // 24 columns a rank: borders inside blocks.
  const struct {
    Range cols;
    size_t offset, kept;
  } cases[] = {{{0, 24}, 0, 32}, {{24, 48}, 24, 64}, {{48, 72}, 16, 64}, {{72, 96}, 8, 32}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.cols.begin);
    const ColumnSlice slice = loader.Cols("w", c.cols).value();
    EXPECT_EQ(slice.offset, c.offset);
    EXPECT_EQ(slice.cols, c.kept);
    EXPECT_EQ(Cut(Values(f.backend.At(slice.weight)), slice.cols, {0, kRows},
                  {slice.offset, slice.offset + c.cols.size()}),
              Cut(whole, 96, {0, kRows}, c.cols));
  }
}

TEST(WeightLoaderTest, Q8LeavesOtherTensorsAsTheyAre) {
  Fixture f;
  const std::vector<float> narrow = f.AddBf16("narrow", {kRows, 40});
  const std::vector<float> f32 = f.AddF32("f32", {kRows, kCols});
  const std::vector<float> router = f.AddBf16("router", {kRows, kCols});
  WeightLoader loader = f.Open(TrunkFormat::kQ8_0);
  const HostMatrix& a = f.Weight(loader.Rows("narrow", {1, 3}));
  ExpectShape(a, DType::kBf16, 2, 40);
  EXPECT_EQ(Values(a), Cut(narrow, 40, {1, 3}, {0, 40}));
  const Result<ColumnSlice> b = loader.Cols("narrow", {5, 15});
  ExpectShape(f.Weight(b), DType::kBf16, kRows, 10);
  EXPECT_EQ(b.value().offset, 0u);
  EXPECT_EQ(Values(f.Weight(b)), Cut(narrow, 40, {0, kRows}, {5, 15}));
  ExpectShape(f.Weight(loader.Rows("f32", {0, 4})), DType::kF32, 4, kCols);
  const Result<ColumnSlice> c = loader.Cols("f32", {40, 50});
  EXPECT_EQ(c.value().offset, 0u);
  EXPECT_EQ(Values(f.Weight(c)), Cut(f32, kCols, {0, kRows}, {40, 50}));
  const HostMatrix& d = f.Weight(loader.RowsAsStored("router", {0, kRows}));
  ExpectShape(d, DType::kBf16, kRows, kCols);
  EXPECT_EQ(Values(d), router);
}

TEST(WeightLoaderTest, VectorsBecomeOneRowOfF32) {
  Fixture f;
  f.AddU8("shift", {1}, 255);
  const std::vector<float> bf16 = f.AddBf16("bf16", {1, 50});
  const std::vector<float> f32 = f.AddF32("f32", {50});
  WeightLoader loader = f.Open(TrunkFormat::kQ8_0);
  for (const Range& range : {Range{0, 50}, Range{49, 50}, Range{7, 31}, Range{8, 8}}) {
    const HostMatrix& a = f.Weight(loader.Vector("bf16", range));
    ExpectShape(a, DType::kF32, 1, range.size());
    EXPECT_EQ(Values(a), Cut(bf16, 50, {0, 1}, range));
    EXPECT_EQ(Values(f.Weight(loader.Vector("f32", range))), Cut(f32, 50, {0, 1}, range));
  }
  EXPECT_EQ(Values(f.Weight(loader.WholeVector("bf16"))), bf16);
  EXPECT_EQ(Values(f.Weight(loader.WholeVector("f32"))), f32);
}

TEST(WeightLoaderTest, HeadVectorsMayHaveATailOfZeros) {
  Fixture f;
  f.AddF32("A_log", {8}, {1, 2, 3, 4, 5, 0, -0.0F, 0});
  f.AddF32("exact", {5}, {1, 2, 3, 4, 0});
  WeightLoader loader = f.Open();
  EXPECT_EQ(Values(f.Weight(loader.HeadVector("A_log", {0, 5}, 5))),
            (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Values(f.Weight(loader.HeadVector("A_log", {3, 5}, 5))), (std::vector<float>{4, 5}));
  EXPECT_EQ(Values(f.Weight(loader.HeadVector("exact", {1, 3}, 5))), (std::vector<float>{2, 3}));
}

TEST(WeightLoaderTest, HeadVectorsWithAnotherTailAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t at = 5; at < 8; ++at) {
    for (const float bad : {1e-30F, -1.0F, nan}) {
      Fixture f;
      std::vector<float> values = {1, 2, 3, 4, 5, 0, 0, 0};
      values[at] = bad;
      f.AddF32("layer.A_log", {8}, values);
      WeightLoader loader = f.Open();
      const Result<WeightId> id = loader.HeadVector("layer.A_log", {0, 2}, 5);
      ASSERT_FALSE(id) << at << " " << bad;
      EXPECT_EQ(id.error().code(), ErrorCode::kCorrupt);
      EXPECT_NE(id.error().message().find("layer.A_log"), std::string::npos);
      EXPECT_NE(id.error().message().find("must be zero"), std::string::npos);
    }
  }
}

constexpr size_t kExperts = 5;

// Experts of [kRows, kCols]; codes and scales of all, one expert after the other.
struct Experts {
  std::string codes, scales;
};
Experts AddExperts(Fixture& f) {
  Experts all;
  for (size_t e = 0; e < kExperts; ++e) {
    const std::string name = "experts." + std::to_string(e) + ".w";
    all.codes += f.AddU8(name + ".weight_packed", {kRows, kCols / 2}, 255);
    all.scales += f.AddU8(name + ".weight_scale", {kRows, kCols / kBlockCols}, 254);
  }
  return all;
}

// Rows [rows) of every expert, from all experts' rows.
std::string CutExperts(const std::string& all, size_t row_bytes, const Range& rows,
                       const Range& bytes) {
  std::string part;
  for (size_t e = 0; e < kExperts; ++e) {
    part += Cut(all, row_bytes, {e * kRows + rows.begin, e * kRows + rows.end}, bytes);
  }
  return part;
}

TEST(WeightLoaderTest, ExpertRowsAreStacked) {
  Fixture f;
  f.AddU8("shift", {1}, 255);
  const Experts all = AddExperts(f);
  WeightLoader loader = f.Open();
  for (const Range& rows : kSomeRows) {
    SCOPED_TRACE(testing::Message() << "rows " << rows.begin << " to " << rows.end);
    const HostMatrix& stack = f.Weight(loader.ExpertRows("experts.{}.w", kExperts, rows));
    ExpectShape(stack, DType::kMxfp4, kExperts * rows.size(), kCols);
    EXPECT_EQ(Text(stack.data.bytes()), CutExperts(all.codes, kCols / 2, rows, {0, kCols / 2}));
    EXPECT_EQ(Text(stack.scales.bytes()), CutExperts(all.scales, kCols / 32, rows, {0, 4}));
  }
}

TEST(WeightLoaderTest, ExpertColumnsAreStackedInWholeBlocks) {
  Fixture f;
  const Experts all = AddExperts(f);
  WeightLoader loader = f.Open();
  const Range rows = {0, kRows};
  for (const Range& cols : kSomeCols) {
    SCOPED_TRACE(testing::Message() << "columns " << cols.begin << " to " << cols.end);
    const Result<ColumnSlice> slice = loader.ExpertCols("experts.{}.w", kExperts, cols);
    const Range kept = shard::CoverBlocks(cols, kBlockCols);
    const HostMatrix& stack = f.Weight(slice);
    ExpectShape(stack, DType::kMxfp4, kExperts * kRows, kept.size());
    EXPECT_EQ(slice.value().offset, cols.begin - kept.begin);
    EXPECT_EQ(slice.value().cols, kept.size());
    EXPECT_EQ(Text(stack.data.bytes()),
              CutExperts(all.codes, kCols / 2, rows, {kept.begin / 2, kept.end / 2}));
    EXPECT_EQ(Text(stack.scales.bytes()),
              CutExperts(all.scales, kCols / 32, rows, {kept.begin / 32, kept.end / 32}));
  }
}

TEST(WeightLoaderTest, AScaleThatIsNotANumberIsRefusedByName) {
  Fixture f;
  AddExperts(f);
  std::string& scales = f.tensors().at(2 * 3 + 1).bytes;  // expert 3
  const auto at = [](size_t row, size_t block) { return row * (kCols / kBlockCols) + block; };
  scales[at(7, 2)] = '\xFF';
  WeightLoader loader = f.Open();
  const Result<WeightId> rows = loader.ExpertRows("experts.{}.w", kExperts, {5, 8});
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(rows.error().message().find("experts.3.w.weight_scale"), std::string::npos)
      << rows.error().message();
  EXPECT_NE(rows.error().message().find("255"), std::string::npos);
  const Result<ColumnSlice> cols = loader.ExpertCols("experts.{}.w", kExperts, {64, 96});
  ASSERT_FALSE(cols);
  EXPECT_NE(cols.error().message().find("experts.3.w.weight_scale"), std::string::npos);
  // Another rank's rows.
  EXPECT_TRUE(loader.ExpertRows("experts.{}.w", kExperts, {0, 7}));
}

TEST(WeightLoaderTest, AMissingTensorIsNamed) {
  Fixture f;
  AddExperts(f);
  f.tensors().pop_back();  // expert 4's scales
  WeightLoader loader = f.Open();
  const auto expect_named = [](const auto& result, const std::string& name) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(result.error().message().find("tensor " + name + " is missing"), std::string::npos)
        << result.error().message();
  };
  expect_named(loader.Rows("gone", {0, 1}), "gone");
  expect_named(loader.RowsAsStored("gone", {0, 1}), "gone");
  expect_named(loader.Whole("gone"), "gone");
  expect_named(loader.Cols("gone", {0, 1}), "gone");
  expect_named(loader.Vector("gone", {0, 1}), "gone");
  expect_named(loader.WholeVector("gone"), "gone");
  expect_named(loader.HeadVector("gone", {0, 1}, 1), "gone");
  expect_named(loader.ExpertRows("experts.{}.w", kExperts, {0, 1}), "experts.4.w.weight_scale");
  expect_named(loader.ExpertCols("experts.{}.w", kExperts, {0, 1}), "experts.4.w.weight_scale");
}

TEST(WeightLoaderTest, ReportsTheBytesThatItCopied) {
  Fixture f;
  f.AddBf16("w", {kRows, kCols});
  f.AddF32("v", {20});
  AddExperts(f);
  WeightLoader loader = f.Open(TrunkFormat::kQ8_0);
  std::vector<uint64_t> expected;
  uint64_t sum = 0;
  const auto copied = [&](uint64_t bytes) { expected.push_back(sum += bytes); };
  ASSERT_TRUE(loader.Rows("w", {2, 5}));
  copied(3 * kCols * 2);
  ASSERT_TRUE(loader.Cols("w", {40, 50}));  // a block of 32
  copied(kRows * 32 * 2);
  ASSERT_TRUE(loader.Vector("v", {3, 9}));
  copied(6 * 4);
  EXPECT_EQ(f.progress, expected);
  ASSERT_TRUE(loader.ExpertRows("experts.{}.w", kExperts, {0, 2}));
  EXPECT_EQ(f.progress.back(), sum + kExperts * 2 * (kCols / 2 + kCols / 32));
  EXPECT_TRUE(std::is_sorted(f.progress.begin(), f.progress.end()));
}

TEST(ExpertNameTest, PutsTheNumberInItsPlace) {
  EXPECT_EQ(ExpertName("a.{}.w1", 0), "a.0.w1");
  EXPECT_EQ(ExpertName("a.{}.w1", 895), "a.895.w1");
}

}  // namespace
}  // namespace yoke::model
