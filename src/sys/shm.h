// Shared memory without a name: memfd on Linux, shm_open and unlink at once on macOS. Nothing is
// left behind, however a process ends.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "sys/fd.h"

namespace yoke {

// Owns a descriptor and a mapping; move-only. Fresh segments are zeroed.
class ShmSegment {
 public:
  static Result<ShmSegment> Create(size_t num_bytes);
  // Maps a descriptor that was inherited; takes it over. The file must have num_bytes at least.
  static Result<ShmSegment> Attach(Fd fd, size_t num_bytes);
  ~ShmSegment();
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::byte* data() { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  ShmSegment(Fd fd, std::byte* data, size_t size);
  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace yoke
