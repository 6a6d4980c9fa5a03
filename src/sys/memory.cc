#include "sys/memory.h"

#include <sys/mman.h>

#include <utility>

#include "base/check.h"

namespace yoke {
namespace {

[[maybe_unused]] constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

PageBuffer::PageBuffer(size_t num_bytes) : size_(num_bytes) {
  if (num_bytes == 0) return;
  void* const mapped =
      ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  const bool out_of_memory = mapped == MAP_FAILED;
  YOKE_CHECK(!out_of_memory);
  data_ = static_cast<std::byte*>(mapped);
#ifdef MADV_HUGEPAGE  // Linux; macOS has no such request
  // Only a wish: without huge pages everything works, with more misses of the TLB.
  if (num_bytes >= kHugePageBytes) (void)::madvise(mapped, num_bytes, MADV_HUGEPAGE);
#endif
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  PageBuffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

}  // namespace yoke
