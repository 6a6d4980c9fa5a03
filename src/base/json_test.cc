#include "base/json.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/limits.h"

namespace yoke {
namespace {

constexpr size_t kBytesMax = 1 << 20;

Json Parsed(std::string_view text) {
  Result<Json> json = ParseJson(text, kBytesMax);
  EXPECT_TRUE(json.has_value()) << (json ? "" : json.error().message());
  return json ? std::move(json).value() : Json();
}

std::string Nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

template <typename T>
std::string MessageOf(const Result<T>& result) {
  return result ? "no error" : result.error().message();
}

TEST(JsonParseTest, BuildsTheTreeThatTheTextDescribes) {
  const Json json = Parsed(
      R"( {"a": [1, -2, 2.5, "x", null, true, {"b": {}}, []], "": {"a": 18446744073709551615}} )");
  EXPECT_EQ(json["a"].size(), 8U);
  EXPECT_EQ(json["a"][1], -2);
  EXPECT_EQ(json["a"][2], 2.5);
  EXPECT_EQ(json["a"][3], "x");
  EXPECT_TRUE(json["a"][4].is_null());
  EXPECT_EQ(json["a"][5], true);
  EXPECT_EQ(json["a"][6]["b"], Json::object());
  EXPECT_EQ(json["a"][7], Json::array());
  EXPECT_EQ(json[""]["a"], UINT64_MAX);
  EXPECT_EQ(Parsed("7"), 7);
  EXPECT_EQ(Parsed(R"("\u00e9\n")"), "\xc3\xa9\n");
}

TEST(JsonParseTest, RefusesWhatIsNotJsonAndSaysWhere) {
  struct Case {
    const char* name;
    std::string text;
    const char* message_part;
  };
  const Case cases[] = {
      {"empty", "", "at byte 1:"},
      {"only blanks", "   ", "at byte 4:"},
      {"NaN", R"({"a": NaN})", "at byte 7:"},
      {"Infinity", "[-Infinity]", "at byte 3:"},
      {"number too large", "[1e999]", "at byte 6: number overflow"},
      {"cut off", R"({"a": [1, 2)", "unexpected end of input"},
      {"second value", "{} {}", "at byte 4:"},
      {"trailing comma", "[1,]", "at byte 4:"},
      {"comment", "[1] // one", "at byte 5:"},
      {"single quotes", "{'a': 1}", "at byte 2:"},
      {"control character in a string", "[\"a\nb\"]", "at byte 4:"},
      {"not UTF-8", "[\"a\xff\"]", "at byte 4:"},
      {"half a surrogate pair", R"(["\ud800"])", "surrogate"},
      {"key twice", R"({"a": {"b": 1, "b": 2}})", "with key \"b\" twice"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Result<Json> json = ParseJson(c.text, kBytesMax);
    ASSERT_FALSE(json.has_value());
    EXPECT_EQ(json.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(json.error().message().find(c.message_part), std::string::npos)
        << json.error().message();
  }
}

TEST(JsonParseTest, KeyMayOccurAgainInAnotherObject) {
  EXPECT_EQ(Parsed(R"([{"a": 1}, {"a": {"a": 2}}])")[1]["a"]["a"], 2);
}

TEST(JsonParseTest, BoundsNesting) {
  EXPECT_TRUE(ParseJson(Nested(kJsonDepthMax), kBytesMax).has_value());
  const std::string expected =
      "invalid JSON at byte " + std::to_string(kJsonDepthMax + 1) + ": more than 64 levels";
  for (const std::string& bomb : {Nested(kJsonDepthMax + 1), std::string(kBytesMax, '[')}) {
    EXPECT_EQ(MessageOf(ParseJson(bomb, kBytesMax)).substr(0, expected.size()), expected);
  }
}

TEST(JsonParseTest, BracketsInStringsAreNotNesting) {
  std::string text = R"(["\"" , ")" + std::string(kJsonDepthMax, '[') + R"(\\", "{"])";
  EXPECT_EQ(Parsed(text).size(), 3U);
}

TEST(JsonParseTest, BoundsTheSize) {
  EXPECT_TRUE(ParseJson("[10]", 4).has_value());
  const Result<Json> json = ParseJson("[100]", 4);
  ASSERT_FALSE(json.has_value());
  EXPECT_EQ(json.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(json.error().message(), "JSON text of 5 bytes; at most 4 are accepted");
}

TEST(JsonParseTest, MessageIsOneShortPrintableLineWhateverTheText) {
  std::string text = "[\"";
  for (int i = 0; i < 10'000; ++i) text += "\xc3\xa9";
  const std::string message = MessageOf(ParseJson(text + "\n", kBytesMax));
  EXPECT_LT(message.size(), 250U);
  for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~');
}

TEST(JsonMemberTest, ReadsEachType) {
  const Json json = Parsed(
      R"({"int": -5, "number": 1e-6, "bool": true, "string": "s", "ints": [3, 0], "object": {}})");
  EXPECT_EQ(JsonInt(json, "int", -5, -5).value(), -5);
  EXPECT_EQ(JsonInt(Parsed(R"({"a": 9223372036854775807})"), "a", 0, INT64_MAX).value(), INT64_MAX);
  EXPECT_EQ(JsonNumber(json, "number").value(), 1e-6);
  EXPECT_EQ(JsonNumber(json, "int").value(), -5);
  EXPECT_EQ(JsonBool(json, "bool").value(), true);
  EXPECT_EQ(JsonString(json, "string").value(), "s");
  EXPECT_EQ(JsonInts(json, "ints").value(), (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(JsonObject(json, "object").value(), &json["object"]);
  EXPECT_EQ(JsonFind(json, "string"), &json["string"]);
  EXPECT_EQ(JsonFind(json, "strin"), nullptr);
  EXPECT_EQ(JsonFind(json["string"], "string"), nullptr);
}

TEST(JsonMemberTest, ErrorNamesTheKeyAndWhatWasExpectedAndWhatCame) {
  const Json json = Parsed(R"({"i": 5, "f": 5.0, "s": "five", "l": [1, "x"], "o": {}, "n": null,
                               "b": false, "huge": 9223372036854775808})");
  const std::pair<std::string, const char*> cases[] = {
      {MessageOf(JsonInt(json, "i", 6, 9)),
       R"(key "i": expected a whole number from 6 to 9, got 5)"},
      {MessageOf(JsonInt(json, "i", 0, 4)),
       R"(key "i": expected a whole number from 0 to 4, got 5)"},
      {MessageOf(JsonInt(json, "f", 0, 9)),
       R"(key "f": expected a whole number from 0 to 9, got 5.0)"},
      {MessageOf(JsonInt(json, "huge", 0, INT64_MAX)),
       R"(key "huge": expected a whole number from 0 to 9223372036854775807, got 9223372036854775808)"},
      {MessageOf(JsonInt(json, "absent", 0, 9)),
       R"(key "absent": expected a whole number from 0 to 9, got no such key)"},
      {MessageOf(JsonNumber(json, "s")), R"(key "s": expected a number, got the string "five")"},
      {MessageOf(JsonBool(json, "i")), R"(key "i": expected true or false, got 5)"},
      {MessageOf(JsonString(json, "n")), R"(key "n": expected a string, got null)"},
      {MessageOf(JsonString(json, "b")), R"(key "b": expected a string, got false)"},
      {MessageOf(JsonInts(json, "o")),
       R"(key "o": expected an array of whole numbers, got an object)"},
      {MessageOf(JsonInts(json, "l")),
       R"(key "l": expected an array of whole numbers, got the string "x")"},
      {MessageOf(JsonObject(json, "l")), R"(key "l": expected an object, got an array)"},
      {MessageOf(JsonString(json["i"], "k")),
       R"(key "k": expected a string in an object, got 5 in its place)"},
  };
  for (const auto& [message, expected] : cases) EXPECT_EQ(message, expected);
}

TEST(JsonDumpTest, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(DumpJson(Json{{"a", "x\xffy"}}), "{\"a\":\"x\xef\xbf\xbdy\"}");
  EXPECT_EQ(DumpJson(Parsed(R"([1, {"b": null}, "\u00e9"])")), "[1,{\"b\":null},\"\xc3\xa9\"]");
}

}  // namespace
}  // namespace yoke
