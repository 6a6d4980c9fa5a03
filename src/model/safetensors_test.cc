#include "model/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/model_fixture.h"

namespace yoke::model {
namespace {

std::span<const std::byte> Bytes(const std::string& file) {
  return {reinterpret_cast<const std::byte*>(file.data()), file.size()};
}

Result<TensorMap> Parse(const std::string& file) {
  return ParseSafetensors(Bytes(file));
}

std::string ErrorOf(const std::string& file) {
  const auto tensors = Parse(file);
  if (tensors) return "no error";
  EXPECT_EQ(tensors.error().message().find('\n'), std::string::npos);
  return tensors.error().message();
}

// A header with one tensor "t", and `num_bytes` of data.
std::string OneTensor(const std::string& entry, size_t num_bytes) {
  return WithHeader(R"({"t": )" + entry + "}", std::string(num_bytes, 'd'));
}

TEST(SafetensorsTest, FindsEveryTensor) {
  const std::string file = MakeSafetensors({{"b", "BF16", {2, 3}, "0123456789ab"},
                                            {"a", "F32", {}, "wxyz"},
                                            {"none", "I64", {0, 5}, ""},
                                            {"c", "U8", {5}, "vwxyz"},
                                            {"odd", "F8_E4M3", {2}, "!?"}});
  const TensorMap tensors = Parse(file).value();
  ASSERT_EQ(tensors.size(), 5U);
  const FileTensor& b = tensors.at("b");
  EXPECT_EQ(b.dtype, FileDType::kBf16);
  EXPECT_EQ(b.shape, (std::vector<size_t>{2, 3}));
  ASSERT_EQ(b.bytes.size(), 12U);
  EXPECT_EQ(std::memcmp(b.bytes.data(), "0123456789ab", 12), 0);
  EXPECT_EQ(std::memcmp(tensors.at("c").bytes.data(), "vwxyz", 5), 0);
  EXPECT_EQ(tensors.at("a").bytes.size(), 4U);
  EXPECT_TRUE(tensors.at("none").bytes.empty());
  EXPECT_EQ(tensors.at("odd").dtype, FileDType::kOther);
  EXPECT_EQ(tensors.at("odd").dtype_name, "F8_E4M3");
}

TEST(SafetensorsTest, KnowsElementTypes) {
  struct Case {
    const char* name;
    FileDType dtype;
    size_t num_bytes;
  };
  const Case cases[] = {{"F32", FileDType::kF32, 4}, {"BF16", FileDType::kBf16, 2},
                        {"F16", FileDType::kF16, 2}, {"U8", FileDType::kU8, 1},
                        {"I8", FileDType::kI8, 1},   {"I32", FileDType::kI32, 4},
                        {"I64", FileDType::kI64, 8}, {"F64", FileDType::kF64, 8}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(ToString(c.dtype), c.name);
    EXPECT_EQ(BytesPerElement(c.dtype), c.num_bytes);
    const std::string file = MakeSafetensors({{"t", c.name, {3}, std::string(3 * c.num_bytes, 0)}});
    EXPECT_EQ(Parse(file).value().at("t").dtype, c.dtype);
  }
  EXPECT_EQ(BytesPerElement(FileDType::kOther), 0U);
}

TEST(SafetensorsTest, RefusesHeadersThatAreNone) {
  EXPECT_EQ(ErrorOf("1234567"),
            "safetensors header: expected a safetensors file, got only 7 bytes");
  const std::string file = MakeSafetensors({{"t", "U8", {2}, "ab"}});
  EXPECT_NE(ErrorOf(file.substr(0, 20)).find("bytes, expected at most 12 in this file"),
            std::string::npos);
  EXPECT_NE(ErrorOf(std::string(8, '\xFF') + "{}")
                .find("the header claims 18446744073709551615 bytes, expected at most 2"),
            std::string::npos);
  EXPECT_NE(ErrorOf(WithHeader("{", "")).find("invalid JSON"), std::string::npos);
  EXPECT_NE(ErrorOf(WithHeader("[]", "")).find("not a JSON object"), std::string::npos);
  EXPECT_NE(ErrorOf(WithHeader(R"({"t": 1, "t": 2})", "")).find("twice"), std::string::npos);
}

TEST(SafetensorsTest, RefusesEntriesThatAreWrong) {
  struct Case {
    const char* entry;
    const char* message;
  };
  const Case cases[] = {
      {"5", "dtype"},
      {R"({"shape": [2], "data_offsets": [0, 2]})", "dtype"},
      {R"({"dtype": "U8", "data_offsets": [0, 2]})", "shape"},
      {R"({"dtype": "U8", "shape": [2]})", "data_offsets"},
      {R"({"dtype": "U8", "shape": [-2], "data_offsets": [0, 2]})", "dimension -2 is negative"},
      {R"({"dtype": "U8", "shape": [1,1,1,1,1,1,1,1,2], "data_offsets": [0, 2]})",
       "expected at most 8 dimensions, got 9"},
      {R"({"dtype": "U8", "shape": [2], "data_offsets": [2, 0]})", "got [2,0]"},
      {R"({"dtype": "U8", "shape": [2], "data_offsets": [-2, 0]})", "got [-2,0]"},
      {R"({"dtype": "U8", "shape": [2], "data_offsets": [0]})", "got [0]"},
      {R"({"dtype": "BF16", "shape": [2], "data_offsets": [0, 2]})",
       "BF16 [2] takes 4 bytes, data_offsets give 2"},
      {R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 2]})",
       "takes more than 2^64 bytes, data_offsets give 2"},
      {R"({"dtype": "U8", "shape": [99999999999999999999], "data_offsets": [0, 2]})", "shape"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.entry);
    const std::string error = ErrorOf(OneTensor(c.entry, 2));
    EXPECT_EQ(error.find("tensor t: "), 0U) << error;
    EXPECT_NE(error.find(c.message), std::string::npos) << error;
  }
}

TEST(SafetensorsTest, RefusesFilesThatAreTooShortOrTooLong) {
  const std::string entry = R"({"dtype": "U8", "shape": [4], "data_offsets": [0, 4]})";
  const size_t header_end = OneTensor(entry, 0).size();
  EXPECT_EQ(ErrorOf(OneTensor(entry, 4)), "no error");
  const std::string describes =
      " bytes, its header describes " + std::to_string(header_end) + " + 4";
  EXPECT_EQ(ErrorOf(OneTensor(entry, 3)),
            "the file has " + std::to_string(header_end + 3) + describes + ": it was cut short");
  EXPECT_EQ(ErrorOf(OneTensor(entry, 5)),
            "the file has " + std::to_string(header_end + 5) + describes);
  EXPECT_NE(
      ErrorOf(
          OneTensor(R"({"dtype": "F8", "shape": [], "data_offsets": [0, 9223372036854775807]})", 4))
          .find("it was cut short"),
      std::string::npos);
}

TEST(SafetensorsTest, RefusesOverlapsAndGaps) {
  const auto file = [](int second_begin, int second_end, size_t num_bytes) {
    const std::string size = std::to_string(second_end - second_begin);
    return WithHeader(R"({"one": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, )"
                      R"("two": {"dtype": "U8", "shape": [)" +
                          size + R"(], "data_offsets": [)" + std::to_string(second_begin) + ", " +
                          std::to_string(second_end) + "]}}",
                      std::string(num_bytes, 0));
  };
  EXPECT_EQ(ErrorOf(file(4, 6, 6)), "no error");
  EXPECT_EQ(ErrorOf(file(3, 6, 6)), "tensor two begins at 3: expected 4, where one ends");
  EXPECT_EQ(ErrorOf(file(5, 6, 6)), "tensor two begins at 5: expected 4, where one ends");
  EXPECT_EQ(ErrorOf(file(0, 4, 4)), "tensor two begins at 0: expected 4, where one ends");
  EXPECT_EQ(ErrorOf(OneTensor(R"({"dtype": "U8", "shape": [2], "data_offsets": [1, 3]})", 3)),
            "tensor t begins at 1: expected 0, where the data begins");
}

// Whatever the bytes, the answer is tensors inside the file or an error; the sanitizers watch.
TEST(SafetensorsTest, SurvivesDamage) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Prng prng(seed);
  const std::string good = MakeSafetensors(
      {{"b", "BF16", {2, 3}, "0123456789ab"}, {"a", "F32", {1}, "wxyz"}, {"c", "U8", {2}, "vw"}});
  int num_errors = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string file = good;
    for (uint64_t k = 0; k <= prng.Below(3); ++k) {
      file[prng.Below(file.size())] = static_cast<char>(prng.Next());
    }
    if (prng.Below(4) == 0) file.resize(prng.Below(file.size() + 1));
    const auto tensors = Parse(file);
    if (!tensors) {
      ++num_errors;
      continue;
    }
    for (const auto& [name, tensor] : tensors.value()) {
      ASSERT_GE(tensor.bytes.data(), Bytes(file).data());
      ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), Bytes(file).data() + file.size());
    }
  }
  EXPECT_GT(num_errors, 1000);
}

}  // namespace
}  // namespace yoke::model
