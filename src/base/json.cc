#include "base/json.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/limits.h"

namespace yoke {
namespace {

// Text that may hold anything, made fit for one line of a message.
std::string Printable(std::string_view text) {
  std::string out(text.substr(0, kQuotedBytesMax));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > kQuotedBytesMax) out += "...";
  return out;
}

// "the string \"abc\"", "an array", "-3".
std::string Describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the string \"" + Printable(value.get_ref<const std::string&>()) + "\"";
    default:
      return Printable(DumpJson(value));
  }
}

Error BadMember(std::string_view key, const std::string& expected, const std::string& got) {
  return {ErrorCode::kInvalidArgument,
          "key \"" + Printable(key) + "\": expected " + expected + ", got " + got};
}

Result<const Json*> Member(const Json& object, std::string_view key, const std::string& expected) {
  if (!object.is_object()) {
    return BadMember(key, expected + " in an object", Describe(object) + " in its place");
  }
  const Json* member = JsonFind(object, key);
  if (member == nullptr) return BadMember(key, expected, "no such key");
  return member;
}

// Builds the tree from parser events. Unlike the library's own builder it refuses a key that occurs
// twice, which would hide one of the two values, and it reports errors without exceptions.
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(Json& root) : root_(root) {}

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(int64_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Add(value) != nullptr; }
  bool number_float(double value, const std::string& /*text*/) override {
    return Add(value) != nullptr;
  }
  bool string(std::string& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t& /*value*/) override { return false; }  // does not occur in text
  bool start_object(size_t /*size*/) override { return Open(Json::object()); }
  bool start_array(size_t /*size*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& value) override {
    if (open_.back()->contains(value)) {
      problem_ = "with key \"" + Printable(value) + "\" twice in one object";
      return false;
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(size_t byte, const std::string& /*last_token*/,
                   const Json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
    std::string_view what = error.what();
    what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    if (what.starts_with("parse error at ")) what.remove_prefix(what.find(": ") + 2);
    problem_ = "at byte " + std::to_string(byte) + ": " + Printable(what);
    return false;
  }

  const std::string& problem() const { return problem_; }

 private:
  Json* Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[std::exchange(key_, {})] = std::move(value));
    return &parent.emplace_back(std::move(value));
  }
  // An open container's parent does not change until it is closed, so the pointer stays valid.
  bool Open(Json value) {
    open_.push_back(Add(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  std::vector<Json*> open_;  // from the root to the innermost open container
  std::string key_;
  std::string problem_;
};

// The byte of the first bracket that opens more than kJsonDepthMax levels, or npos. Up to the first
// syntax error it sees brackets and strings as the parser does.
size_t FindTooDeep(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '[' || c == '{') && ++depth > kJsonDepthMax) return i;
    if ((c == ']' || c == '}') && depth > 0) --depth;
  }
  return std::string_view::npos;
}

Result<int64_t> WholeNumber(const Json& value, std::string_view key, const std::string& expected) {
  const bool fits = !value.is_number_unsigned() ||
                    value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  if (!value.is_number_integer() || !fits) return BadMember(key, expected, Describe(value));
  return value.get<int64_t>();
}

}  // namespace

Result<Json> ParseJson(std::string_view text, size_t bytes_max) {
  if (text.size() > bytes_max) {
    return Error(ErrorCode::kInvalidArgument, "JSON text of " + std::to_string(text.size()) +
                                                  " bytes; at most " + std::to_string(bytes_max) +
                                                  " are accepted");
  }
  if (const size_t byte = FindTooDeep(text); byte != std::string_view::npos) {
    return Error(ErrorCode::kCorrupt, "invalid JSON at byte " + std::to_string(byte + 1) +
                                          ": more than " + std::to_string(kJsonDepthMax) +
                                          " levels of nesting");
  }
  Json root;
  TreeBuilder builder(root);
  if (!Json::sax_parse(text, &builder)) {
    return Error(ErrorCode::kCorrupt, "invalid JSON " + builder.problem());
  }
  return root;
}

Result<int64_t> JsonInt(const Json& object, std::string_view key, int64_t min, int64_t max) {
  const std::string expected =
      "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  YOKE_TRY(const Json* const member, Member(object, key, expected));
  YOKE_TRY(const int64_t value, WholeNumber(*member, key, expected));
  if (value < min || value > max) return BadMember(key, expected, Describe(*member));
  return value;
}

Result<double> JsonNumber(const Json& object, std::string_view key) {
  YOKE_TRY(const Json* const member, Member(object, key, "a number"));
  if (!member->is_number()) return BadMember(key, "a number", Describe(*member));
  return member->get<double>();
}

Result<bool> JsonBool(const Json& object, std::string_view key) {
  YOKE_TRY(const Json* const member, Member(object, key, "true or false"));
  if (!member->is_boolean()) return BadMember(key, "true or false", Describe(*member));
  return member->get<bool>();
}

Result<std::string> JsonString(const Json& object, std::string_view key) {
  YOKE_TRY(const Json* const member, Member(object, key, "a string"));
  if (!member->is_string()) return BadMember(key, "a string", Describe(*member));
  return member->get<std::string>();
}

Result<std::vector<int64_t>> JsonInts(const Json& object, std::string_view key) {
  const std::string expected = "an array of whole numbers";
  YOKE_TRY(const Json* const member, Member(object, key, expected));
  if (!member->is_array()) return BadMember(key, expected, Describe(*member));
  std::vector<int64_t> values;
  values.reserve(member->size());
  for (const Json& element : *member) {
    YOKE_TRY(const int64_t value, WholeNumber(element, key, expected));
    values.push_back(value);
  }
  return values;
}

Result<const Json*> JsonObject(const Json& object, std::string_view key) {
  YOKE_TRY(const Json* const member, Member(object, key, "an object"));
  if (!member->is_object()) return BadMember(key, "an object", Describe(*member));
  return member;
}

const Json* JsonFind(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace yoke
