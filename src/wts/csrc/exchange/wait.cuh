// Waiting for other blocks: not for ever, and not too eagerly.
#pragma once
#include "args.cuh"
#include "block.cuh"

namespace wts {

// A block did not publish in time: say who and when, and let the walk run out without waiting.
__device__ __noinline__ void report_timeout(Status* status, int* abandoned, int missing, int step) {
  if (lane_index() == 0) {
    if (atomicCAS(&status->error, 0u, static_cast<u32>(missing) + 1u) == 0u) {
      status->error_block = blockIdx.x;
      status->error_step = static_cast<u32>(step);
    }
    *reinterpret_cast<volatile int*>(abandoned) = 1;
  }
  __syncwarp();
}

__device__ __forceinline__ bool is_abandoned(const Block& block) {
  return *reinterpret_cast<const volatile int*>(&block.shared.abandoned) != 0;
}

// Whether the exchange that began 256 polls or more ago has lasted too long. One lane keeps the
// time.
__device__ __forceinline__ bool out_of_time(const Block& block, u32 poll) {
  bool late = false;
  if (lane_index() == 0) {
    volatile u64& deadline = block.shared.deadline[warp_index()];
    if (poll == 256) deadline = global_timer() + 1000ull * block.args.timeout_us;
    late = global_timer() > deadline;
  }
  return __any_sync(0xffffffffu, late);
}

// After publishing: a poll that comes too early costs a whole round trip more than one a little
// late.
__device__ __forceinline__ void wait_before_polling(u32 published = clock_low()) {
  while (clock_low() - published < plan::FIRST_POLL_CYCLES) {
  }
}

}  // namespace wts
