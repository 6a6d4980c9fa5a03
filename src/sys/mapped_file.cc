#include "sys/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "sys/errno_error.h"
#include "sys/fd.h"
#include "sys/process.h"

namespace yoke {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;

// O_NONBLOCK would keep a pipe without a writer from blocking the open; files ignore it.
Result<Fd> OpenForReading(const std::string& path, int extra_flags) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | extra_flags));
  if (!fd.valid()) return ErrnoError("cannot open " + path, errno);
  return fd;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  YOKE_TRY(const Fd fd, OpenForReading(path, O_NONBLOCK));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError("cannot stat " + path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error(ErrorCode::kInvalidArgument,
                 path + ": expected a regular file, got " +
                     (S_ISDIR(info.st_mode) ? "a directory" : "something else"));
  }
  if (info.st_size == 0) return Error(ErrorCode::kCorrupt, path + ": the file is empty");
  MappedFile file;
  file.size_ = static_cast<size_t>(info.st_size);
  void* const mapped = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoError("cannot map " + path, errno);
  file.data_ = static_cast<const std::byte*>(mapped);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

void MappedFile::DropPages(std::span<const std::byte> part) const {
  if (part.empty()) return;
  YOKE_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<size_t>(part.data() - data_);
  const size_t end = begin + part.size();
  const size_t first = (begin + page - 1) / page * page;
  // Behind the end of the file there is nothing that its last page could be kept for.
  const size_t last = end == size_ ? end : end / page * page;
  if (first >= last) return;
  // Dropped pages are read from the file again if someone touches them after all, so a refusal
  // costs memory only.
  (void)::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

Result<std::string> ReadTextFile(const std::string& path, uint64_t bytes_max) {
  YOKE_TRY(const Fd fd, OpenForReading(path, 0));
  std::string text;
  for (;;) {
    const size_t begin = text.size();
    text.resize(begin + kReadBytes);
    const ssize_t got = ::read(fd.get(), text.data() + begin, kReadBytes);
    const int read_errno = errno;
    text.resize(begin + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (got < 0 && read_errno == EINTR && !Interrupted()) continue;
    if (got < 0 && read_errno == EINTR) {
      return Error(ErrorCode::kCancelled, "reading " + path + ": interrupted");
    }
    if (got < 0) return ErrnoError("cannot read " + path, read_errno);
    if (text.size() > bytes_max) {
      return Error(ErrorCode::kInvalidArgument,
                   path + ": expected at most " + std::to_string(bytes_max) + " bytes, got more");
    }
  }
}

}  // namespace yoke
