// Page-aligned, zeroed anonymous memory.
#pragma once

#include <cstddef>
#include <span>

namespace yoke {

// Owns an anonymous mapping; move-only; empty after a move. Sizes of at least 2 MiB ask for
// transparent huge pages. Out of memory ends the process.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(size_t num_bytes);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  size_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace yoke
