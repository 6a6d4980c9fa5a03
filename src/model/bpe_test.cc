#include "model/bpe.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/model_fixture.h"
#include "model/tokenizer_fixture.h"

namespace yoke::model {
namespace {

RankTable MakeTable(const std::vector<std::string>& merged) {
  return RankTable::Parse(MakeRankFile(merged)).value();
}

std::vector<int> Encode(const RankTable& table, const std::string& piece) {
  std::vector<int> tokens;
  BytePairEncoder(table).Encode(piece, tokens);
  return tokens;
}

// A slow twin, word for word: look for the lowest rank, merge its leftmost pair, start over.
std::vector<int> SlowEncode(const RankTable& table, const std::string& piece) {
  std::vector<std::string> parts;
  for (const char byte : piece) parts.emplace_back(1, byte);
  if (table.Find(piece) >= 0) parts = {piece};
  for (;;) {
    int best_rank = -1;
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int rank = table.Find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best_rank < 0 || rank < best_rank)) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank < 0) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<int> tokens;
  for (const std::string& part : parts) tokens.push_back(table.Find(part));
  return tokens;
}

TEST(BytePairEncoderTest, MergesTheLowestRankFirst) {
  const RankTable table = MakeTable({"bc", "ab", "abc"});                // 256, 257, 258
  EXPECT_EQ(Encode(table, "xabcx"), (std::vector<int>{'x', 258, 'x'}));  // a + bc
  EXPECT_EQ(Encode(table, "abx"), (std::vector<int>{257, 'x'}));
  EXPECT_EQ(Encode(table, "zabbc"), (std::vector<int>{'z', 257, 256}));
  EXPECT_EQ(Encode(table, ""), std::vector<int>());
}

TEST(BytePairEncoderTest, MergesTheLeftmostOfEqualRanksFirst) {
  const RankTable table = MakeTable({"aa"});
  EXPECT_EQ(Encode(table, "aaa"), (std::vector<int>{256, 'a'}));
  EXPECT_EQ(Encode(table, "aaaaa"), (std::vector<int>{256, 256, 'a'}));
}

TEST(BytePairEncoderTest, TakesAWholePieceThatNoMergeReaches) {
  const RankTable table = MakeTable({"hello"});
  EXPECT_EQ(Encode(table, "hello"), std::vector<int>{256});
  EXPECT_EQ(Encode(table, "hello!").size(), 6U);  // no pair of its parts is a token
}

TEST(BytePairEncoderTest, AgreesWithTheSlowTwin) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Prng prng(seed);
  const auto random_text = [&prng](uint64_t length_min, uint64_t length_range) {
    std::string text;
    const uint64_t length = length_min + prng.Below(length_range);
    for (uint64_t i = 0; i < length; ++i) text += static_cast<char>('a' + prng.Below(3));
    return text;
  };
  for (int round = 0; round < 60; ++round) {
    std::set<std::string> distinct;
    while (distinct.size() < 30) distinct.insert(random_text(2, 4));
    std::vector<std::string> merged(distinct.begin(), distinct.end());
    for (size_t i = merged.size() - 1; i > 0; --i) std::swap(merged[i], merged[prng.Below(i + 1)]);
    const RankTable table = MakeTable(merged);
    BytePairEncoder encoder(table);  // one for all pieces: its scratch must not leak into the next
    for (int i = 0; i < 50; ++i) {
      const std::string piece = random_text(0, 40);
      std::vector<int> tokens;
      encoder.Encode(piece, tokens);
      ASSERT_EQ(tokens, SlowEncode(table, piece)) << piece;
    }
  }
}

// With a search of all pairs before each merge this would take hours.
TEST(BytePairEncoderTest, TakesALongPieceInReasonableTime) {
  std::vector<std::string> merged;
  for (size_t length = 2; length <= 64; length *= 2) merged.emplace_back(length, 'a');
  const RankTable table = MakeTable(merged);
  const std::vector<int> tokens = Encode(table, std::string(size_t{1} << 20, 'a'));
  EXPECT_EQ(tokens, std::vector<int>(size_t{1} << 14, 261));
}

}  // namespace
}  // namespace yoke::model
