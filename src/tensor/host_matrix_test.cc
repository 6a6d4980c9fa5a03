#include "tensor/host_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace yoke {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A floating format of 16 bits, from its definition: sign, exponent field, mantissa field.
struct Format16 {
  int exponent_bits;
  int mantissa_bits;

  double Value(uint32_t bits) const {
    const uint32_t exponent_max = (1U << exponent_bits) - 1;
    const uint32_t exponent = (bits >> mantissa_bits) & exponent_max;
    const double fraction = std::ldexp(bits & ((1U << mantissa_bits) - 1), -mantissa_bits);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    double magnitude = 0;
    if (exponent == exponent_max) {
      magnitude = fraction == 0 ? HUGE_VAL : std::nan("");
    } else if (exponent == 0) {
      magnitude = std::ldexp(fraction, 1 - bias);
    } else {
      magnitude = std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
    }
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
};
constexpr Format16 kF16 = {5, 10};
constexpr Format16 kBf16 = {8, 7};

struct Conversion {
  const char* name;
  Format16 format;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};
constexpr Conversion kConversions[] = {{"f16", kF16, F16ToF32, F32ToF16},
                                       {"bf16", kBf16, Bf16ToF32, F32ToBf16}};

bool SameFloat(double expected, float actual) {
  if (std::isnan(expected)) return std::isnan(actual);
  return expected == double{actual} && std::signbit(expected) == std::signbit(actual);
}

TEST(Float16Test, DefinitionGivesKnownValues) {
  EXPECT_EQ(kF16.Value(0x3c00), 1);
  EXPECT_EQ(kF16.Value(0xc500), -5);
  EXPECT_EQ(kF16.Value(0x7bff), 65504);
  EXPECT_EQ(kF16.Value(0x0001), std::ldexp(1, -24));
  EXPECT_EQ(kF16.Value(0x7c00), HUGE_VAL);
  EXPECT_EQ(kBf16.Value(0x3f80), 1);
  EXPECT_EQ(kBf16.Value(0xc0a0), -5);
  EXPECT_EQ(kBf16.Value(0x0001), std::ldexp(1, -133));
}

TEST(Float16Test, EveryPatternWidensExactlyAndComesBack) {
  for (const Conversion& c : kConversions) {
    SCOPED_TRACE(c.name);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<uint16_t>(bits);
      const float wide = c.widen(pattern);
      ASSERT_TRUE(SameFloat(c.format.Value(bits), wide)) << bits << " " << wide;
      ASSERT_EQ(c.narrow(wide), pattern) << bits;
    }
  }
}

// Between every two neighbours, both signs, the last finite number and infinity included.
TEST(Float16Test, NarrowsToTheNearestAndTiesToEven) {
  for (const Conversion& c : kConversions) {
    SCOPED_TRACE(c.name);
    const auto inf_bits = static_cast<uint32_t>(c.narrow(kInf));
    ASSERT_EQ(c.format.Value(inf_bits), HUGE_VAL);
    for (uint32_t low = 0; low < inf_bits; ++low) {
      const uint32_t high = low + 1;
      const double step =
          low == 0 ? c.format.Value(1) : c.format.Value(low) - c.format.Value(low - 1);
      const double next = high == inf_bits ? c.format.Value(low) + step : c.format.Value(high);
      const auto middle = static_cast<float>((c.format.Value(low) + next) / 2);
      const uint32_t even = low % 2 == 0 ? low : high;
      for (const uint32_t sign : {0U, 0x8000U}) {
        const float signed_middle = sign == 0 ? middle : -middle;
        ASSERT_EQ(c.narrow(std::nextafter(signed_middle, 0.0F)), sign | low) << low;
        ASSERT_EQ(c.narrow(signed_middle), sign | even) << low;
        ASSERT_EQ(c.narrow(std::nextafter(signed_middle, sign == 0 ? kInf : -kInf)), sign | high)
            << low;
      }
    }
  }
}

TEST(Float16Test, NanStaysNanWhenItsSetBitsAreCutOff) {
  for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(std::bit_cast<float>(bits))))) << bits;
    EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::bit_cast<float>(bits))))) << bits;
  }
}

TEST(Float16Test, F16OverflowsToInfinityAndUnderflowsToZero) {
  EXPECT_EQ(F32ToF16(std::nextafter(65520.0F, 0.0F)), 0x7bff);
  EXPECT_EQ(F32ToF16(65520), 0x7c00);
  EXPECT_EQ(F32ToF16(-1e30F), 0xfc00);
  EXPECT_EQ(F32ToF16(0x1p-25F), 0);
  EXPECT_EQ(F32ToF16(-1e-40F), 0x8000);
}

// e2m1 from its definition: sign, 2 exponent bits with bias 1, 1 mantissa bit.
double E2m1Value(uint32_t code) {
  const uint32_t exponent = (code >> 1) & 3;
  const double mantissa = code & 1;
  const double magnitude =
      exponent == 0 ? mantissa / 2 : std::ldexp(1 + mantissa / 2, static_cast<int>(exponent) - 1);
  return code >= 8 ? -magnitude : magnitude;
}

TEST(Mxfp4Test, E2m1DefinitionGivesTheListOfTheStandard) {
  const double expected[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(E2m1Value(code), expected[code]);
    EXPECT_EQ(E2m1Value(code + 8), -expected[code]);
  }
}

// The product that f32 should hold: infinite from 2^128 on, and nothing else is rounded.
double Mxfp4Value(uint32_t code, uint32_t scale) {
  if (scale == 255) return std::nan("");
  const double exact = std::ldexp(E2m1Value(code), static_cast<int>(scale) - 127);
  return std::abs(exact) >= std::ldexp(1, 128) ? std::copysign(HUGE_VAL, exact) : exact;
}

TEST(Mxfp4Test, DecodesEveryByteUnderEveryScaleExactly) {
  HostMatrix matrix = HostMatrix::Make(DType::kMxfp4, 256, 512);
  for (size_t scale = 0; scale < 256; ++scale) {
    for (size_t byte = 0; byte < 256; ++byte) matrix.DataRow(scale)[byte] = std::byte(byte);
    for (std::byte& s : matrix.ScaleRow(scale)) s = std::byte(scale);
  }
  std::vector<float> row(512);
  for (uint32_t scale = 0; scale < 256; ++scale) {
    DequantizeRow(matrix, scale, row);
    for (uint32_t byte = 0; byte < 256; ++byte) {
      ASSERT_TRUE(SameFloat(Mxfp4Value(byte & 15, scale), row[2 * byte])) << byte << " " << scale;
      ASSERT_TRUE(SameFloat(Mxfp4Value(byte >> 4, scale), row[2 * byte + 1]))
          << byte << " " << scale;
    }
  }
}

TEST(Mxfp4Test, EveryBlockHasItsOwnScale) {
  HostMatrix matrix = HostMatrix::Make(DType::kMxfp4, 2, 96);
  std::ranges::fill(matrix.data.bytes(), std::byte{0x22});  // every code is 1
  for (size_t block = 0; block < 6; ++block) matrix.scales.bytes()[block] = std::byte(127 + block);
  std::vector<float> row(96);
  for (size_t r = 0; r < 2; ++r) {
    DequantizeRow(matrix, r, row);
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(row[i], std::ldexp(1.0F, static_cast<int>(3 * r + i / 32)));
    }
  }
}

struct Q8Row {
  std::vector<int8_t> codes;
  std::vector<uint16_t> scales;
};

Q8Row Quantized(const std::vector<float>& row) {
  Q8Row result = {std::vector<int8_t>(row.size()), std::vector<uint16_t>(row.size() / kBlockCols)};
  QuantizeRowQ8_0(row, result.codes, result.scales);
  return result;
}

std::vector<float> RoundTrip(const std::vector<float>& row) {
  HostMatrix matrix = HostMatrix::Make(DType::kQ8_0, 1, row.size());
  QuantizeRowQ8_0(row, {matrix.data.as<int8_t>(), row.size()},
                  {matrix.scales.as<uint16_t>(), row.size() / kBlockCols});
  std::vector<float> out(row.size());
  DequantizeRow(matrix, 0, out);
  return out;
}

// One block: `values` in front, the rest zero.
std::vector<float> Block(std::initializer_list<float> values) {
  std::vector<float> block(kBlockCols, 0.0F);
  std::copy(values.begin(), values.end(), block.begin());
  return block;
}

TEST(Q8Test, WholeNumbersUnderScaleOneComeBackAndTiesGoToEven) {
  const Q8Row row = Quantized(Block({127, -127, 1, -3, 0.5F, 1.5F, -2.5F, 0.49F, 126.51F}));
  EXPECT_EQ(row.scales[0], 0x3c00);
  const std::vector<int8_t> front(row.codes.begin(), row.codes.begin() + 10);
  EXPECT_EQ(front, (std::vector<int8_t>{127, -127, 1, -3, 0, 2, -2, 0, 127, 0}));
}

TEST(Q8Test, ErrorIsAtMostHalfAStepAtEveryMagnitude) {
  Prng prng(1);
  for (int exponent = -6; exponent <= 22; ++exponent) {
    std::vector<float> row(8 * kBlockCols);
    for (float& x : row) x = std::ldexp(prng.Uniform(-1, 1), exponent);
    const std::vector<float> out = RoundTrip(row);
    const Q8Row quantized = Quantized(row);
    for (size_t i = 0; i < row.size(); ++i) {
      const float scale = F16ToF32(quantized.scales[i / kBlockCols]);
      // A scale rounded down leaves the largest value up to 127 half units of f16 outside.
      const float step_error = 0.5F * scale * (1 + 0x1p-10F);
      ASSERT_LE(std::abs(out[i] - row[i]), step_error) << exponent << " " << i;
    }
    for (size_t block = 0; block < quantized.scales.size(); ++block) {
      const auto* const begin = row.data() + block * kBlockCols;
      const auto* const max = std::max_element(
          begin, begin + kBlockCols, [](float a, float b) { return std::abs(a) < std::abs(b); });
      const double expected = std::abs(double{*max}) / 127;
      ASSERT_NEAR(F16ToF32(quantized.scales[block]), expected, std::ldexp(expected, -11) + 0x1p-25);
    }
  }
}

TEST(Q8Test, ZeroBlockIsZero) {
  const Q8Row row = Quantized(Block({0.0F, -0.0F}));
  EXPECT_EQ(row.scales[0], 0);
  EXPECT_EQ(row.codes, std::vector<int8_t>(kBlockCols, 0));
}

TEST(Q8Test, SubnormalScaleClampsInsteadOfWrapping) {
  // max / 127 = 1.49 * 2^-24 rounds down to 2^-24, under which max would be code 189.
  const float max = 127 * 1.49F * 0x1p-24F;
  const Q8Row row = Quantized(Block({max, -max, 0x1p-24F}));
  EXPECT_EQ(row.scales[0], 1);
  EXPECT_EQ(row.codes[0], 127);
  EXPECT_EQ(row.codes[1], -127);
  EXPECT_EQ(row.codes[2], 1);
}

TEST(Q8Test, WhatScalesCannotHoldReadsBackAsNan) {
  for (const float bad : {kInf, -kInf, kNan, -kNan, 1e7F}) {
    std::vector<float> row = Block({1, bad});
    EXPECT_EQ(Quantized(row).scales[0], 0x7c00) << bad;
    row.insert(row.end(), kBlockCols, 2.0F);
    const std::vector<float> out = RoundTrip(row);
    for (size_t i = 0; i < kBlockCols; ++i) EXPECT_TRUE(std::isnan(out[i])) << bad << " " << i;
    for (size_t i = kBlockCols; i < out.size(); ++i) EXPECT_NEAR(out[i], 2, 1e-3) << bad;
  }
}

TEST(HostMatrixTest, RowsLieOneBehindTheOtherAndStartZeroed) {
  struct Case {
    DType dtype;
    size_t data_row_bytes, scale_row_bytes;
  };
  for (const Case& c : {Case{DType::kF32, 256, 0}, Case{DType::kBf16, 128, 0},
                        Case{DType::kQ8_0, 64, 4}, Case{DType::kMxfp4, 32, 2}}) {
    SCOPED_TRACE(ToString(c.dtype));
    HostMatrix matrix = HostMatrix::Make(c.dtype, 3, 64);
    EXPECT_EQ(matrix.data.size(), 3 * c.data_row_bytes);
    EXPECT_EQ(matrix.TotalBytes(), 3 * (c.data_row_bytes + c.scale_row_bytes));
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(matrix.DataRow(row).data(), matrix.data.data() + row * c.data_row_bytes);
      EXPECT_EQ(matrix.DataRow(row).size(), c.data_row_bytes);
      EXPECT_EQ(matrix.ScaleRow(row).size(), c.scale_row_bytes);
      if (c.scale_row_bytes > 0) {
        EXPECT_EQ(matrix.ScaleRow(row).data(), matrix.scales.data() + row * c.scale_row_bytes);
      }
    }
    for (const std::byte b : matrix.data.bytes()) ASSERT_EQ(b, std::byte{0});
  }
}

TEST(HostMatrixTest, MayHaveNoRows) {
  const HostMatrix matrix = HostMatrix::Make(DType::kMxfp4, 0, 64);
  EXPECT_EQ(matrix.TotalBytes(), 0U);
  EXPECT_EQ(matrix.cols, 64U);
}

TEST(HostMatrixTest, PlainTypesUnpackRowByRow) {
  HostMatrix f32 = HostMatrix::Make(DType::kF32, 2, 5);
  HostMatrix bf16 = HostMatrix::Make(DType::kBf16, 2, 5);
  for (size_t i = 0; i < 10; ++i) {
    f32.data.as<float>()[i] = static_cast<float>(i) + 0.1F;
    bf16.data.as<uint16_t>()[i] = F32ToBf16(static_cast<float>(i));
  }
  std::array<float, 5> row = {};
  DequantizeRow(f32, 1, row);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(row[i], static_cast<float>(i + 5) + 0.1F);
  DequantizeRow(bf16, 1, row);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(row[i], static_cast<float>(i + 5));
}

TEST(HostMatrixDeathTest, BlockFormatsNeedWholeBlocks) {
  EXPECT_DEATH((void)HostMatrix::Make(DType::kQ8_0, 1, 33), "CHECK failed");
}

}  // namespace
}  // namespace yoke
