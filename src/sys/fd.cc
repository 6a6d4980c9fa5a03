#include "sys/fd.h"

#include <unistd.h>

#include <utility>

namespace yoke {

Fd::~Fd() {
  if (valid()) ::close(fd_);
}

Fd::Fd(Fd&& other) noexcept : fd_(other.Release()) {}

Fd& Fd::operator=(Fd&& other) noexcept {
  Fd old(std::exchange(fd_, other.Release()));
  return *this;
}

int Fd::Release() {
  return std::exchange(fd_, -1);
}

}  // namespace yoke
