#include "model/utf8.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/model_fixture.h"

namespace yoke::model {
namespace {

const std::string kBad = "\uFFFD";

// The whole text at once, by a decoder that saw it in one piece.
std::string DecodeWhole(const std::string& bytes) {
  StreamDecoder decoder;
  const std::string text = decoder.Push(bytes);
  return text + decoder.Finish();
}

// A slow twin: what the bits say, if writing it again gives the same bytes.
bool IsOneCharacter(const std::string& bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return bytes.size() == 1;
  char32_t code_point = first & (0x7Fu >> bytes.size());
  for (size_t i = 1; i < bytes.size(); ++i) {
    code_point = code_point << 6 | (static_cast<unsigned char>(bytes[i]) & 0x3F);
  }
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  return code_point <= 0x10FFFF && !surrogate && EncodeUtf8(code_point) == bytes;
}

size_t SlowFindInvalid(const std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    size_t length = 1;
    while (length <= 4 && i + length <= bytes.size() && !IsOneCharacter(bytes.substr(i, length))) {
      ++length;
    }
    if (length > 4 || i + length > bytes.size()) return i;
    i += length;
  }
  return std::string::npos;
}

TEST(Utf8Test, ReadsEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    const std::string bytes = EncodeUtf8(c);
    const Utf8Char read = ReadUtf8(bytes + "x");
    ASSERT_EQ(read.kind == Utf8Kind::kValid, !surrogate) << static_cast<uint32_t>(c);
    if (surrogate) continue;
    ASSERT_EQ(read.code_point, c);
    ASSERT_EQ(read.num_bytes, bytes.size());
  }
}

TEST(Utf8Test, FindsTheFirstByteThatIsNotUtf8) {
  struct Case {
    const char* name;
    std::string text;
    size_t offset;
  };
  const Case cases[] = {
      {"empty", "", std::string::npos},
      {"valid", "caf\u00e9 \u4f60 \U0001f44d", std::string::npos},
      {"continuation byte alone", "ab\x80", 2},
      {"overlong slash", "0123456789\xC0\xAF", 10},
      {"overlong in three bytes", "\xE0\x80\xAF", 0},
      {"surrogate", "a\xED\xA0\x80", 1},
      {"above U+10FFFF", "ab\xF4\x90\x80\x80", 2},
      {"byte that never occurs", "\u00e9\xFF", 2},
      {"cut off at the end", "12345678\xE4\xBD", 8},
      {"cut off by a letter", "\xE4\xBDx", 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(FindInvalidUtf8(c.text), c.offset);
  }
}

TEST(Utf8Test, AgreesWithTheSlowTwinOnRandomBytes) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Prng prng(seed);
  const std::string bytes(
      "a\x7F\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xDF\xE0\xE1\xED\xEF\xF0\xF1\xF4\xF5");
  size_t num_valid = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text(prng.Below(3) == 0 ? "12345678" : "");
    const uint64_t length = 1 + prng.Below(6);
    for (uint64_t k = 0; k < length; ++k) text += bytes[prng.Below(bytes.size())];
    const size_t expected = SlowFindInvalid(text);
    ASSERT_EQ(FindInvalidUtf8(text), expected) << testing::PrintToString(text);
    num_valid += expected == std::string::npos ? 1 : 0;
  }
  EXPECT_GT(num_valid, 1000U);  // both answers occurred
}

TEST(StreamDecoderTest, ReplacesEachMaximalPartOfACharacter) {
  // The example of the Unicode Standard, table 3-11, and what can go wrong at the second byte.
  EXPECT_EQ(DecodeWhole("a\xF1\x80\x80\xE1\x80\xC2"
                        "b\x80"
                        "c\x80\xBF"
                        "d"),
            "a" + kBad + kBad + kBad + "b" + kBad + "c" + kBad + kBad + "d");
  EXPECT_EQ(DecodeWhole("\xED\xA0\x80"), kBad + kBad + kBad);
  EXPECT_EQ(DecodeWhole("\xF0\x90\x80"), kBad);
  EXPECT_EQ(DecodeWhole("\xC0\xAF"), kBad + kBad);
}

TEST(StreamDecoderTest, KeepsAnUnfinishedCharacter) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(decoder.Push("\x91"), "");
  EXPECT_EQ(decoder.Push("\x8D!"), "\U0001f44d!");
  EXPECT_EQ(decoder.Push("\xE4"), "");
  EXPECT_EQ(decoder.Push("x"), kBad + "x");
  EXPECT_EQ(decoder.Push("\xE4\xBD"), "");
  EXPECT_EQ(decoder.Finish(), kBad);
  EXPECT_EQ(decoder.Finish(), "");
  EXPECT_EQ(decoder.Push("\xA0"), kBad);  // the next text does not see the one before
}

TEST(StreamDecoderTest, GivesTheSameTextAtEverySplit) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Prng prng(seed);
  for (int round = 0; round < 40; ++round) {
    std::string bytes = RandomText(prng, 25);
    if (round % 2 == 1) {
      for (int i = 0; i < 8; ++i) bytes[prng.Below(bytes.size())] = static_cast<char>(prng.Next());
    }
    const std::string whole = DecodeWhole(bytes);
    if (round % 2 == 0) {
      EXPECT_EQ(whole, bytes);
    }
    ASSERT_EQ(FindInvalidUtf8(whole), std::string::npos);
    for (size_t split = 0; split <= bytes.size(); ++split) {
      StreamDecoder decoder;
      const std::string first = decoder.Push(std::string_view(bytes).substr(0, split));
      ASSERT_EQ(FindInvalidUtf8(first), std::string::npos) << split;
      const std::string second = decoder.Push(std::string_view(bytes).substr(split));
      ASSERT_EQ(first + second + decoder.Finish(), whole) << split;
    }
    StreamDecoder decoder;
    std::string text;
    for (const char byte : bytes) text += decoder.Push({&byte, 1});
    ASSERT_EQ(text + decoder.Finish(), whole);
  }
}

}  // namespace
}  // namespace yoke::model
