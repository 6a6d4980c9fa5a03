#include "model/special_tokens.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/tokenizer_fixture.h"

namespace yoke::model {
namespace {

std::string ErrorOf(const std::string& json) {
  const auto specials = SpecialTokens::Parse(json, 256);
  return specials ? "no error" : specials.error().message();
}

TEST(SpecialTokensTest, FindsTheLongestName) {
  const SpecialTokens specials =
      SpecialTokens::Parse(
          MakeTokenizerConfig({{300, "<a>"}, {301, "<a"}, {302, "<a>b"}, {299, "[\u00e9]"}}), 256)
          .value();
  struct Case {
    std::string text;
    size_t num_bytes;
    int id;
  };
  const Case cases[] = {{"<a>bc", 4, 302}, {"<a>", 3, 300},       {"<a>c", 3, 300},
                        {"<ab", 2, 301},   {"<", 0, -1},          {"", 0, -1},
                        {"x<a>", 0, -1},   {"[\u00e9]]", 4, 299}, {"[e]", 0, -1},
                        {"\xFF<a>", 0, -1}};
  for (const Case& c : cases) {
    const SpecialTokens::Match match = specials.LongestPrefix(c.text);
    EXPECT_EQ(match.num_bytes, c.num_bytes) << c.text;
    EXPECT_EQ(match.id, c.id) << c.text;
  }
  EXPECT_EQ(specials.FindId("<a>b"), 302);
  EXPECT_EQ(specials.FindId("<a>bc"), -1);
  EXPECT_EQ(specials.FindId(""), -1);
  EXPECT_EQ(specials.FindName(299), "[\u00e9]");
  EXPECT_EQ(specials.FindName(298), "");
  EXPECT_EQ(specials.id_max(), 302);
}

TEST(SpecialTokensTest, MayBeNone) {
  const SpecialTokens specials = SpecialTokens::Parse(MakeTokenizerConfig({}), 256).value();
  EXPECT_EQ(specials.LongestPrefix("<a>").num_bytes, 0U);
  EXPECT_EQ(specials.id_max(), -1);
}

TEST(SpecialTokensTest, RefusesIdsThatBelongToRanksOrToNothing) {
  for (const char* id : {"255", "-1", "x", "", "0300", "300 ", "4194304", "99999999999999999999"}) {
    const std::string json =
        R"({"added_tokens_decoder": {")" + std::string(id) + R"(": {"content": "<a>"}}})";
    EXPECT_EQ(ErrorOf(json),
              "added_tokens_decoder: expected ids from 256 (what follows the BPE ranks) to "
              "4194303, got \"" +
                  std::string(id) + "\"");
  }
}

TEST(SpecialTokensTest, RefusesOneNameForTwoIds) {
  EXPECT_EQ(ErrorOf(MakeTokenizerConfig({{300, "<a>"}, {301, "<b>"}, {302, "<a>"}})),
            "added_tokens_decoder: ids 300 and 302 are both \"<a>\"");
  EXPECT_EQ(ErrorOf(MakeTokenizerConfig({{300, ""}})),
            "added_tokens_decoder[300]: the name is empty");
}

TEST(SpecialTokensTest, RefusesJsonOfAnotherForm) {
  EXPECT_NE(ErrorOf("{").find("invalid JSON"), std::string::npos);
  EXPECT_NE(ErrorOf("{}").find("added_tokens_decoder"), std::string::npos);
  const std::string error = ErrorOf(R"({"added_tokens_decoder": {"300": {"content": 5}}})");
  EXPECT_NE(error.find("added_tokens_decoder[300]"), std::string::npos) << error;
  EXPECT_NE(error.find("content"), std::string::npos) << error;
}

}  // namespace
}  // namespace yoke::model
