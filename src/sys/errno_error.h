// A failed system call as an Error.
#pragma once

#include <string_view>

#include "base/error.h"

namespace yoke {

// "cannot open x: No such file or directory". `what` comes first; `errno_value` also chooses the
// code: a missing file is kNotFound, a forbidden or unsuitable one kInvalidArgument.
Error ErrnoError(std::string_view what, int errno_value);

}  // namespace yoke
