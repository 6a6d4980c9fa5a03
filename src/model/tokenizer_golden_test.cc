// The demo model's tokenizer against an independent one: tests/golden/README.md.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_fixture.h"
#include "model/tokenizer.h"

namespace yoke::model {
namespace {

const std::string kDemoFolder = std::string(YOKE_SOURCE_DIR) + "/models/demo-k3";

TEST(TokenizerGoldenTest, EncodesAndDecodesAsTheReference) {
  const Tokenizer tokenizer = Tokenizer::Load(kDemoFolder).value();
  const Json golden = ParseJson(ReadSourceFile("tests/golden/tokenizer.json"), 1 << 24).value();
  ASSERT_GE(golden.size(), 40U);
  for (const Json& entry : golden) {
    const auto text = entry.at("text").get<std::string>();
    SCOPED_TRACE(text);
    const auto ids = entry.at("ids").get<std::vector<int>>();
    EXPECT_EQ(tokenizer.Encode(text).value(), ids);
    EXPECT_EQ(tokenizer.Decode(ids), text);
  }
}

// A token that merging its own bytes does not give back would be encoded in two ways, by itself and
// inside a longer text.
TEST(TokenizerGoldenTest, EncodesEveryTokenOfTextAsItself) {
  const Tokenizer tokenizer = Tokenizer::Load(kDemoFolder).value();
  size_t num_checked = 0;
  for (int id = 0; id < static_cast<int>(tokenizer.vocab_size()); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (FindInvalidUtf8(bytes) != std::string::npos) continue;  // part of a character
    const auto tokens =
        tokenizer.IsSpecial(id) ? tokenizer.EncodeWithSpecials(bytes) : tokenizer.Encode(bytes);
    EXPECT_EQ(tokens.value(), std::vector<int>{id}) << bytes;
    ++num_checked;
  }
  EXPECT_GT(num_checked, 1500U);
}

}  // namespace
}  // namespace yoke::model
