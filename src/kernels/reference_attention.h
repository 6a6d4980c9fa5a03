// The two attention ops of the reference backend. Internal to reference_*.cc.
#pragma once

#include <cmath>

#include "kernels/backend.h"
#include "kernels/reference_memory.h"

namespace yoke::kernels::reference {

inline double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

void Kda(Memory& memory, const KdaArgs& args);
void Mla(Memory& memory, const MlaArgs& args);

}  // namespace yoke::kernels::reference
