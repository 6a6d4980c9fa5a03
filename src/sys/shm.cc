#include "sys/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/check.h"
#include "sys/errno_error.h"

#ifdef __APPLE__
#include <atomic>
#endif

namespace yoke {
namespace {

#ifdef __APPLE__

Result<Fd> OpenNameless() {
  static std::atomic<unsigned> num_opened = 0;
  // At most 31 bytes on this system.
  const std::string name =
      "/yoke-" + std::to_string(::getpid()) + "-" + std::to_string(num_opened++);
  Fd fd(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR));
  if (!fd.valid()) return ErrnoError("cannot make shared memory", errno);
  if (::shm_unlink(name.c_str()) != 0) return ErrnoError("cannot unlink shared memory", errno);
  return fd;
}

#else

Result<Fd> OpenNameless() {
  Fd fd(::memfd_create("yoke", MFD_CLOEXEC));  // a label for /proc/PID/maps, not a name
  if (!fd.valid()) return ErrnoError("cannot make shared memory", errno);
  return fd;
}

#endif

Result<std::byte*> Map(const Fd& fd, size_t num_bytes) {
  void* const mapped = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoError("cannot map shared memory", errno);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

Result<ShmSegment> ShmSegment::Create(size_t num_bytes) {
  YOKE_CHECK(num_bytes > 0);
  YOKE_TRY(Fd fd, OpenNameless());
  if (::ftruncate(fd.get(), static_cast<off_t>(num_bytes)) != 0) {
    return ErrnoError("cannot give shared memory " + std::to_string(num_bytes) + " bytes", errno);
  }
  YOKE_TRY(std::byte* const data, Map(fd, num_bytes));
  return ShmSegment(std::move(fd), data, num_bytes);
}

Result<ShmSegment> ShmSegment::Attach(Fd fd, size_t num_bytes) {
  YOKE_CHECK(num_bytes > 0);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError("cannot attach to shared memory", errno);
  // Reading a page behind the end would be SIGBUS.
  if (info.st_size < 0 || static_cast<size_t>(info.st_size) < num_bytes) {
    return Error(ErrorCode::kCorrupt, "shared memory: expected " + std::to_string(num_bytes) +
                                          " bytes at least, got " + std::to_string(info.st_size));
  }
  YOKE_TRY(std::byte* const data, Map(fd, num_bytes));
  return ShmSegment(std::move(fd), data, num_bytes);
}

ShmSegment::ShmSegment(Fd fd, std::byte* data, size_t size)
    : fd_(std::move(fd)), data_(data), size_(size) {}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  ShmSegment taken(std::move(other));
  std::swap(fd_, taken.fd_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

}  // namespace yoke
