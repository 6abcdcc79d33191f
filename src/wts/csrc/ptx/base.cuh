// Who a thread is and what time it is. All inline asm of the project is in this folder, one
// function for each machine instruction; section numbers are those of the PTX ISA manual,
// version 9.0.
#pragma once
#include "types.cuh"

namespace wts {

// 10.21 special registers: cycles of this SM, 32 bits.
__device__ __forceinline__ u32 clock_low() {
  u32 value;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(value));
  return value;
}

// 10.26: nanoseconds of the global timer.
__device__ __forceinline__ u64 global_timer() {
  u64 value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

// The block's dynamic shared memory.
__device__ __forceinline__ void* dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char storage[];
  return storage;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Read anew each time: a lane number is cheaper to read than to keep beside 192 weights.
__device__ __forceinline__ int lane_index() {
  int value;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(value));
  return value;
}

__device__ __forceinline__ int warp_index() {
  int value;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
  return value >> 5;
}

// A value that the compiler may not put off, to where there is less time for it.
__device__ __forceinline__ void made_here(u32& value) { asm volatile("" : "+r"(value)); }

// Register budgets (9.7.19.5) take effect for a whole warpgroup.

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace wts
