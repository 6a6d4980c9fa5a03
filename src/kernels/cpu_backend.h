// The backend that computes on this process's cores, in f32, with SIMD chosen at run time.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/backend.h"

namespace yoke::kernels {

struct CpuBackendOptions {
  size_t num_threads = 1;  // the caller's included
  // More threads, over all ranks of this machine, than cores: waiting threads yield at once.
  bool oversubscribed = false;
};

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace yoke::kernels
