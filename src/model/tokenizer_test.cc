#include "model/tokenizer.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/model_fixture.h"
#include "model/tokenizer_fixture.h"

namespace yoke::model {
namespace {

constexpr int kOpen = 270;
constexpr int kOpenLong = 271;
constexpr int kPad = 275;

// Tokens 256 to 263, special tokens 270, 271 and 275.
void WriteFiles(const TempFolder& folder) {
  folder.Write("tiktoken.model",
               MakeRankFile({"he", "ll", "hell", "hello", " w", "or", " wor", "\xE4\xBD"}));
  folder.Write("tokenizer_config.json",
               MakeTokenizerConfig({{kOpen, "<|o|>"}, {kOpenLong, "<|o|>>"}, {kPad, "[PAD]"}}));
}

Tokenizer MakeTokenizer() {
  const TempFolder folder;
  WriteFiles(folder);
  return Tokenizer::Load(folder.path()).value();
}

TEST(TokenizerTest, EncodesAndDecodes) {
  const Tokenizer tokenizer = MakeTokenizer();
  const std::vector<int> tokens = tokenizer.Encode("hello world!").value();
  EXPECT_EQ(tokens, (std::vector<int>{259, 262, 'l', 'd', '!'}));
  EXPECT_EQ(tokenizer.Decode(tokens), "hello world!");
  EXPECT_EQ(tokenizer.Encode("").value(), std::vector<int>());
  // A character over two tokens.
  EXPECT_EQ(tokenizer.Encode("\u4f60").value(), (std::vector<int>{263, 0xA0}));
}

TEST(TokenizerTest, KnowsItsTokens) {
  const Tokenizer tokenizer = MakeTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 276U);
  EXPECT_EQ(tokenizer.TokenBytes(259), "hello");
  EXPECT_EQ(tokenizer.TokenBytes(0xFF), "\xFF");
  EXPECT_EQ(tokenizer.TokenBytes(kPad), "[PAD]");
  for (const int unused : {-1, 264, 272, 276, 1 << 30}) {
    EXPECT_EQ(tokenizer.TokenBytes(unused), "") << unused;
    EXPECT_FALSE(tokenizer.IsSpecial(unused)) << unused;
  }
  EXPECT_TRUE(tokenizer.IsSpecial(kOpen));
  EXPECT_FALSE(tokenizer.IsSpecial(259));
  EXPECT_EQ(tokenizer.SpecialId("[PAD]"), kPad);
  EXPECT_EQ(tokenizer.SpecialId("hello"), -1);
}

TEST(TokenizerTest, MakesSpecialTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = MakeTokenizer();
  const std::string text = "hello<|o|>> world<|o|>[PAD][PAD]hello<|o|";
  EXPECT_EQ(tokenizer.EncodeWithSpecials(text).value(),
            (std::vector<int>{259, kOpenLong, 262, 'l', 'd', kOpen, kPad, kPad, 259, '<', '|', 'o',
                              '|'}));
  const std::vector<int> plain = tokenizer.Encode(text).value();
  for (const int token : plain) EXPECT_FALSE(tokenizer.IsSpecial(token)) << token;
  EXPECT_EQ(tokenizer.Decode(plain), text);
  EXPECT_EQ(tokenizer.Decode(tokenizer.EncodeWithSpecials(text).value()), text);
}

TEST(TokenizerTest, SplitsTextAtSpecialTokens) {
  // Before the end of a text two spaces are one piece; before a word they are two.
  const Tokenizer tokenizer = MakeTokenizer();
  EXPECT_EQ(tokenizer.EncodeWithSpecials("  [PAD] world").value(),
            (std::vector<int>{' ', ' ', kPad, 262, 'l', 'd'}));
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = MakeTokenizer();
  for (const auto& result :
       {tokenizer.Encode("hello \xC0\xAF"), tokenizer.EncodeWithSpecials("[PAD] \xC0\xAF")}) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(result.error().message(),
              "the text is not UTF-8: byte 192 at offset 6 is not part of a whole character");
  }
}

TEST(TokenizerTest, GivesBackEveryText) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Prng prng(seed);
  const Tokenizer tokenizer = MakeTokenizer();
  for (int round = 0; round < 200; ++round) {
    std::string text = RandomText(prng, 50);
    if (round % 2 == 0) text.insert(0, "<|o|>");
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text).value()), text);
    const std::vector<int> tokens = tokenizer.EncodeWithSpecials(text).value();
    EXPECT_EQ(tokenizer.Decode(tokens), text);
    StreamDecoder decoder;
    std::string streamed;
    for (const int token : tokens) {
      const std::string part = decoder.Push(tokenizer.TokenBytes(token));
      ASSERT_EQ(FindInvalidUtf8(part), std::string::npos);
      streamed += part;
    }
    EXPECT_EQ(streamed + decoder.Finish(), text);
  }
}

TEST(TokenizerTest, TakesLongTextInReasonableTime) {
  const Tokenizer tokenizer = MakeTokenizer();
  std::string words;
  for (int i = 0; i < 50'000; ++i) words += "hello world, ";
  for (const std::string& text : {std::string(1'000'000, 'h'), std::string(1'000'000, ' '),
                                  std::string(1'000'000, '<'), words}) {
    const std::vector<int> tokens = tokenizer.EncodeWithSpecials(text).value();
    EXPECT_EQ(tokenizer.Decode(tokens), text);
  }
}

TEST(TokenizerTest, CanBeSharedByThreads) {
  const Tokenizer tokenizer = MakeTokenizer();
  const std::string text = "hello world, \u4f60\u597d [PAD] 1234";
  const std::vector<int> expected = tokenizer.EncodeWithSpecials(text).value();
  std::vector<std::vector<int>> results(4);
  std::vector<std::thread> threads;
  for (std::vector<int>& result : results) {
    threads.emplace_back([&tokenizer, &text, &result] {
      for (int i = 0; i < 50; ++i) result = tokenizer.EncodeWithSpecials(text).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int>& result : results) EXPECT_EQ(result, expected);
}

TEST(TokenizerTest, NamesTheFileThatIsWrong) {
  const TempFolder folder;
  const auto error = [&folder] {
    const auto tokenizer = Tokenizer::Load(folder.path());
    return tokenizer ? "no error" : tokenizer.error().message();
  };
  const std::string ranks_path = folder.PathOf("tiktoken.model");
  const std::string config_path = folder.PathOf("tokenizer_config.json");
  EXPECT_NE(error().find(ranks_path), std::string::npos) << error();
  WriteFiles(folder);
  EXPECT_EQ(error(), "no error");
  folder.Write("tiktoken.model", MakeRankFile({}) + "nonsense\n");
  EXPECT_NE(error().find(ranks_path + ": line 257"), std::string::npos) << error();
  WriteFiles(folder);
  folder.Write("tokenizer_config.json", MakeTokenizerConfig({{5, "<a>"}}));
  EXPECT_NE(error().find(config_path + ": added_tokens_decoder"), std::string::npos) << error();
  ASSERT_TRUE(std::filesystem::remove(config_path));
  EXPECT_NE(error().find(config_path), std::string::npos) << error();
}

}  // namespace
}  // namespace yoke::model
