// Limits on what comes from outside, each with its name and the reason for its size.
#pragma once

#include <cstddef>

namespace yoke {

// Nesting of JSON objects and arrays. Real files stay under 10; writing JSON out again recurses.
constexpr size_t kJsonDepthMax = 64;

// Bytes of foreign text that an error message repeats.
constexpr size_t kQuotedBytesMax = 160;

}  // namespace yoke
