#include "model/rank_table.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/tokenizer_fixture.h"

namespace yoke::model {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto table = RankTable::Parse(text);
  return table ? "no error" : table.error().message();
}

TEST(RankTableTest, FindsTokensBothWays) {
  const RankTable table = RankTable::Parse(MakeRankFile({"ab", "abc", "\u4f60"})).value();
  ASSERT_EQ(table.size(), 259U);
  EXPECT_EQ(table.Bytes(256), "ab");
  EXPECT_EQ(table.Bytes(258), "\u4f60");
  EXPECT_EQ(table.Find("abc"), 257);
  EXPECT_EQ(table.Find("\xFF"), 255);
  EXPECT_EQ(table.Find("abd"), -1);
  EXPECT_EQ(table.Find(""), -1);
  EXPECT_EQ(table.Find(std::string(1000, 'a')), -1);
}

TEST(RankTableTest, StaysValidWhenItMoves) {
  RankTable table = RankTable::Parse(MakeRankFile({"ab"})).value();
  RankTable moved = std::move(table);
  EXPECT_EQ(moved.Bytes(256), "ab");
  EXPECT_EQ(moved.Find("ab"), 256);
}

TEST(RankTableTest, TakesRanksInAnyOrderAndBlankLines) {
  const RankTable table = RankTable::Parse("YWI= 257\n\nYWJj 256\n" + MakeRankFile({})).value();
  EXPECT_EQ(table.Bytes(256), "abc");
  EXPECT_EQ(table.Bytes(257), "ab");
}

TEST(RankTableTest, RefusesLinesThatAreNotTokenAndRank) {
  for (const char* line : {"YWI=", "YWI= ", "YWI= x", "YWI= 256x", "YWI= -1", "YWI=  256", "256"}) {
    EXPECT_EQ(ErrorOf(MakeRankFile({}) + line + "\n"),
              "line 257: expected a token in base64, a space and its rank")
        << line;
  }
  for (const char* token : {"", "YWI", "YW=I", "Y===", "YWJ=", "YW!=", "YR=="}) {
    EXPECT_EQ(ErrorOf(MakeRankFile({}) + token + " 256\n"), "line 257: the token is not base64")
        << token;
  }
}

TEST(RankTableTest, RefusesRanksThatAreNotEachOnce) {
  EXPECT_EQ(ErrorOf(MakeRankFile({}) + "YWI= 255\n"), "line 257: rank 255 occurs twice");
  EXPECT_EQ(ErrorOf(MakeRankFile({}) + "YWI= 257\n"),
            "rank 256 is missing: expected ranks 0 to 257, got 257 of them");
  EXPECT_EQ(ErrorOf("YWI= 99999999\n"), "line 1: expected a rank below 4194304, got 99999999");
  EXPECT_EQ(ErrorOf("YWI= 99999999999999999999\n"),
            "line 1: expected a token in base64, a space and its rank");
}

TEST(RankTableTest, RefusesTheSameTokenTwiceAndMissingBytes) {
  EXPECT_EQ(ErrorOf(MakeRankFile({"ab", "ab"})), "ranks 256 and 257 are the same token");
  std::string text = MakeRankFile({"ab"});
  const std::string first_byte = "AA== 0\n";
  ASSERT_EQ(text.find(first_byte), 0U);
  text.replace(0, first_byte.size(), "YWJj 0\n");
  EXPECT_EQ(ErrorOf(text), "no token for the single byte 0: expected all 256");
  EXPECT_EQ(ErrorOf(""), "no token for the single byte 0: expected all 256");
}

}  // namespace
}  // namespace yoke::model
