// What a thread does between two looks in a spinning wait.
#pragma once

namespace yoke {

// 10 to 60 ns, in which the core's other hardware thread can run and less power is drawn.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // waits some ten ns; `yield` is a no-op on most cores
#endif
}

}  // namespace yoke
