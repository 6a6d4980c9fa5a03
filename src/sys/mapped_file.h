// A file mapped for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace yoke {

// Owns the mapping; move-only. A file that shrinks while mapped is not supported.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that the whole pages inside these bytes will not be read again.
  void DropPages(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file as text; a file of more than bytes_max is an error.
Result<std::string> ReadTextFile(const std::string& path, uint64_t bytes_max);

}  // namespace yoke
