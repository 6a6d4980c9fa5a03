#include "model/pretokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/model_fixture.h"
#include "model/utf8.h"

namespace yoke::model {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(const Pretokenizer& pretokenizer, const std::string& text) {
  std::vector<std::string_view> pieces;
  const Status status = pretokenizer.Split(text, pieces);
  EXPECT_TRUE(status) << status.error().message();
  return {pieces.begin(), pieces.end()};
}

std::string Join(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

const Pretokenizer& Default() {
  static const Pretokenizer pretokenizer =
      Pretokenizer::Create(Pretokenizer::Jit::kIfAvailable).value();
  return pretokenizer;
}

const Pretokenizer& Interpreted() {
  static const Pretokenizer pretokenizer = Pretokenizer::Create(Pretokenizer::Jit::kOff).value();
  return pretokenizer;
}

// The expected pieces are those of another engine (Python's regex module) for the expression as it
// is published.
TEST(PretokenizerTest, SplitsAsTheOriginalExpression) {
  const std::vector<Pieces> cases = {
      {"Hello", ",", " world", "!"},
      {"I'm", " sure", " you'LL", " see", ";", " it'\u017f"},
      {"don't", "''", "s"},
      {" ", " two", " ", " spaces", "\n\n", " ", " next", "\r\n", "line", "  "},
      {"tab", "\tand", "\u00a0nbsp", "\u3000wide"},
      {"a", "\u180eb"},
      {"\u180e\u180e!"},
      {"\u200b\u200b!"},
      {"\302\205", "\302\205", "!"},
      {"x", " ", "\u2028y", "\302\205z"},
      {"\u4f60\u597d", "\u3001", "\u4e16\u754c", "\u3002Kimi", "\u662f\u6a21\u578b"},
      {"\u3005", "\u3006", "\u3007\u3021\u6f22\u5b57", "\u304b\u306a\u30ab\u30ca\u30fc"},
      {"ABCdef", " GHIjk", " LMNop"},
      {"camel", "Case", " HTTPServer", "2", " v", "1", ".", "25", ".", "123", "456", "7"},
      {"\u0661\u0662\u0663", "\u0664", " ", "\u216b\u00bd\u00b2"},
      {"(word", ")", " -", "word", " '", "word", " \"", "quote", "\""},
      {"!!!\n\n", "???", "  \n"},
      {"e\u0301te\u0301", " \u0301x"},
      {"\U0001f44d\U0001f3fd", " ok", "\U0001f44d"},
      {"\034fs", "\037"},
      {"\uff8a\uff9d\uff76\uff78", " \u02b0", "A", " \u02b0\u02b0"},
      {"   "},
      {"\n"},
      {"a", "  "},
      {"\u01c5ungla", " \u01c4UNGLA"},
      {"  \n", " x"},
      {"foo", " ", " bar"},
      {"\ufeffBOM"},
      {"don", "\u2019t"},
      {"'S", " '", "Tis"},
      {"_under", "_score", " __", "init", "__()"},
      {"\u0e44\u0e17\u0e22\u0e04\u0e33"},
      {"\U00016ff0", "x", " ", "\U00020000\U00020001"},
      {}};
  for (const Pieces& pieces : cases) {
    EXPECT_EQ(Split(Default(), Join(pieces)), pieces);
    EXPECT_EQ(Split(Interpreted(), Join(pieces)), pieces);
  }
  EXPECT_FALSE(Interpreted().has_jit());
}

// The expression with its intersections written as lookaheads, the literal translation.
Pieces SplitByLookahead(const std::string& text) {
  const std::string upper = R"((?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))";
  const std::string lower = R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";
  const std::string suffix = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
  const std::string space = R"([\t-\r\x{85}\p{Z}])";
  const std::string pattern = R"([\p{sc:Han}]+|[^\r\n\p{L}\p{N}]?)" + upper + "*" + lower + "+" +
                              suffix + R"(|[^\r\n\p{L}\p{N}]?)" + upper + "+" + lower + "*" +
                              suffix + R"(|\p{N}{1,3}| ?(?:(?!)" + space +
                              R"()[^\p{L}\p{N}])+[\r\n]*|)" + space + R"(*[\r\n]+|)" + space +
                              "+(?=" + space + R"(|\z)|)" + space + "+";
  int error = 0;
  size_t offset = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  EXPECT_NE(code, nullptr) << offset;
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  pcre2_match_data* const match = pcre2_match_data_create(1, nullptr);
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(match);
  Pieces pieces;
  for (size_t begin = 0; begin < text.size(); begin = bounds[1]) {
    const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   begin, PCRE2_NO_UTF_CHECK, match, nullptr);
    EXPECT_GT(result, 0) << begin;
    if (result <= 0) break;
    pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
  }
  pcre2_match_data_free(match);
  pcre2_code_free(code);
  return pieces;
}

TEST(PretokenizerTest, HasClassesThatEqualTheIntersections) {
  // Every character up to the last ideograph, and what follows only in samples: between letters
  // of each case, after a small letter, between digits, doubled after a space.
  std::string text;
  char32_t num_chars = 0;
  for (char32_t c = 1; c <= 0x10FFFF;
       c += c < 0x33480 || (c >= 0xE0000 && c < 0xE0200) ? 1 : 0x100) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string utf8 = EncodeUtf8(c);
    text += "A" + utf8 + "b" + utf8 + "1" + utf8 + "2 " + utf8 + utf8 + "\n";
    ++num_chars;
  }
  EXPECT_GT(num_chars, 200'000U);
  const Pieces expected = SplitByLookahead(text);
  const Pieces pieces = Split(Default(), text);
  ASSERT_EQ(pieces.size(), expected.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    ASSERT_EQ(pieces[i], expected[i])
        << "piece " << i << ", after " << (i == 0 ? "nothing" : pieces[i - 1]);
  }
}

TEST(PretokenizerTest, LosesNothingAndNeedsNoJit) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Prng prng(seed);
  for (int round = 0; round < 200; ++round) {
    const std::string text = RandomText(prng, 60);
    const Pieces pieces = Split(Default(), text);
    ASSERT_EQ(Join(pieces), text);
    ASSERT_EQ(Split(Interpreted(), text), pieces);
  }
}

// The longest runs that CutLongText lets through, of every kind that an alternative repeats.
TEST(PretokenizerTest, TakesLongRunsWithinItsLimits) {
  for (const std::string unit : {"a", "A", "\u4f60", "\u304b", "\u0301", "7", " ", "\n", "!", "\t",
                                 "aA", "\u02b0A", " \n", "'s", "\U0001f44d"}) {
    SCOPED_TRACE(unit);
    std::string text;
    for (int i = 0; i < 25'000; ++i) text += unit;
    for (const std::string end : {"", "x", "X", " ", "!"}) {
      const Pieces pieces = Split(Default(), text + end);
      EXPECT_EQ(Join(pieces), text + end);
      EXPECT_EQ(Split(Interpreted(), text + end), pieces);
    }
  }
}

TEST(CutLongTextTest, CutsAtTheLimitsOfTheReleasedTokenizer) {
  struct Run {
    const char* unit;
    size_t count;
  };
  struct Case {
    const char* name;
    std::vector<Run> runs;
    std::vector<size_t> part_chars;
  };
  const Case cases[] = {
      {"short", {{"a", 10}}, {10}},
      {"empty", {}, {0}},
      {"longest run", {{"a", 25'000}}, {25'000}},
      {"one more", {{"a", 25'001}}, {25'000, 1}},
      {"two cuts", {{"\u00e9", 50'001}}, {25'000, 25'000, 1}},
      {"spaces", {{"x", 1}, {" ", 25'003}, {"x", 2}}, {25'001, 5}},
      {"spaces of all kinds", {{"\u3000", 20'000}, {"\n", 5'000}, {"\x1c", 1}}, {25'000, 1}},
      {"no space: format characters", {{"\u200b", 20'000}, {"\u180e", 5'001}}, {25'000, 1}},
      {"a space between", {{"a", 25'000}, {" ", 1}, {"a", 25'000}}, {50'001}},
      {"longest chunk", {{"a ", 200'000}}, {400'000}},
      {"three chunks", {{"\U0001f44d ", 425'000}}, {400'000, 400'000, 50'000}},
      {"a chunk starts a new run", {{"a ", 199'995}, {"a", 25'010}}, {400'000, 25'000}},
      {"both limits at once", {{"a ", 187'500}, {"a", 25'001}}, {400'000, 1}},
      {"runs do not move chunks", {{"a", 25'001}, {" a", 187'500}}, {25'000, 375'000, 1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    std::string text;
    for (const Run& run : c.runs) {
      for (size_t i = 0; i < run.count; ++i) text += run.unit;
    }
    std::vector<size_t> part_chars;
    std::string joined;
    for (const std::string_view part : CutLongText(text)) {
      size_t num_chars = 0;
      for (size_t at = 0; at < part.size(); at += ReadUtf8(part.substr(at)).num_bytes) ++num_chars;
      part_chars.push_back(num_chars);
      joined += part;
    }
    EXPECT_EQ(part_chars, c.part_chars);
    EXPECT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace yoke::model
