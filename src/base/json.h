// JSON from outside, as values: the one place that knows how nlohmann-json fails.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace yoke {

using Json = nlohmann::json;

// Parses text of at most `bytes_max` bytes and nesting of at most 64. The error has the byte where
// parsing stopped.
Result<Json> ParseJson(std::string_view text, size_t bytes_max);

// Members of an object; the error names the key, what was expected and what came.
Result<int64_t> JsonInt(const Json& object, std::string_view key, int64_t min, int64_t max);
Result<double> JsonNumber(const Json& object, std::string_view key);
Result<bool> JsonBool(const Json& object, std::string_view key);
Result<std::string> JsonString(const Json& object, std::string_view key);
Result<std::vector<int64_t>> JsonInts(const Json& object, std::string_view key);
// The member itself, which must be an object.
Result<const Json*> JsonObject(const Json& object, std::string_view key);
// nullptr when absent.
const Json* JsonFind(const Json& object, std::string_view key);

// Compact text; bytes that are not UTF-8 become U+FFFD.
std::string DumpJson(const Json& json);

}  // namespace yoke
