#include "sys/errno_error.h"

#include <cerrno>
#include <string>
#include <system_error>

namespace yoke {
namespace {

ErrorCode CodeOf(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EISDIR:
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case EROFS:
    case ENOEXEC:
      return ErrorCode::kInvalidArgument;
    case ENOSYS:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

Error ErrnoError(std::string_view what, int errno_value) {
  return {CodeOf(errno_value),
          std::string(what) + ": " + std::generic_category().message(errno_value)};
}

}  // namespace yoke
