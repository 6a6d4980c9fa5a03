// The op interface in plain double precision: one thread, one loop per sum, no SIMD, formulas as
// docs/kimi-k3.md writes them. The oracle of the kernel tests, and `--backend reference`.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace yoke::kernels {

// Ops run at once when enqueued. Buffers hold doubles; Read and Write convert. Where there are two
// forms of a formula it takes the one that the CPU backend does not: KDA is always recurrent, MLA
// expands K and V of every head.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace yoke::kernels
