// Bytes of the step protocol: little-endian fields one after the other. Both ends are one binary on
// one kind of machine; a length is checked before it is used.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace yoke::engine {

static_assert(std::endian::native == std::endian::little);

class WireWriter {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  // u32 count, then the elements.
  template <typename T>
  void PutAll(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put(static_cast<uint32_t>(values.size()));
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  Status Get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() < sizeof(T)) return Short();
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return Ok{};
  }
  template <typename T>
  Status GetAll(std::vector<T>& values, size_t count_max) {
    uint32_t count = 0;
    YOKE_RETURN_IF_ERROR(Get(count));
    if (count > count_max || count > bytes_.size() / sizeof(T)) return Short();
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data(), count * sizeof(T));
    bytes_ = bytes_.subspan(count * sizeof(T));
    return Ok{};
  }
  Status End() const {
    if (bytes_.empty()) return Ok{};
    return Error(ErrorCode::kCorrupt, "step message: " + std::to_string(bytes_.size()) +
                                          " bytes are left over after the last field");
  }

 private:
  static Error Short() {
    return Error(ErrorCode::kCorrupt, "step message: a field runs past its end or its limit");
  }
  std::span<const std::byte> bytes_;
};

}  // namespace yoke::engine
