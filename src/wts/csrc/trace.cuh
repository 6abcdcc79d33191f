// Time stamps, only in kernels built to be traced.
#pragma once
#include "block.cuh"

namespace wts {

// Into args.trace[NUM_BLOCKS][TRACED_ROUNDS][NUM_EVENTS].
__device__ __forceinline__ void mark(const Block& block, int round, Event event) {
  if constexpr (plan::TRACE) {
    if ((threadIdx.x & 31) == 0 && round < TRACED_ROUNDS) {
      const long long slot =
          (static_cast<long long>(blockIdx.x) * TRACED_ROUNDS + round) * NUM_EVENTS + event;
      block.args.trace[slot] = clock64();
    }
  }
}

}  // namespace wts
