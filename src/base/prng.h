// A small seeded generator (SplitMix64): the same numbers on every machine and compiler.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace yoke {

// A value: copies continue independently. Not for secrets.
class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(seed) {}

  // Uniform over all 64-bit numbers.
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Uniform over [0, 1), with all bits of a double or a float.
  double UniformDouble() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-24F; }
  // Uniform over [low, high], up to rounding.
  float Uniform(float low, float high) { return low + (high - low) * Uniform(); }

  // Uniform over 0 .. bound - 1, without bias.
  uint64_t Below(uint64_t bound) {
    YOKE_CHECK(bound > 0);
    // The lowest 2^64 mod bound numbers would make the first results too frequent.
    const uint64_t first_fair = (0 - bound) % bound;
    uint64_t number = Next();
    while (number < first_fair) number = Next();
    return number % bound;
  }

 private:
  uint64_t state_;
};

}  // namespace yoke
