// What a warp's lanes find out together.
#pragma once
#include "types.cuh"

namespace wts {

// 9.7.13.9: the largest of a warp's 32 signed values, in all lanes.
__device__ __forceinline__ int warp_max(int value) {
  int result;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}

__device__ __forceinline__ u32 warp_max_unsigned(u32 value) {
  u32 result;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}

// The sum of a warp's 32 values, in all lanes.
__device__ __forceinline__ u32 warp_add(u32 value) {
  u32 result;
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}

// 9.7.9.6: the value of the lane whose number differs in these bits.
__device__ __forceinline__ int lane_across(int value, int bits) {
  int result;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
               : "=r"(result)
               : "r"(value), "r"(bits));
  return result;
}

// The largest value of COUNT lanes STRIDE apart, in all of them; both are powers of two.
template <int COUNT, int STRIDE>
__device__ __forceinline__ int strided_max(int value) {
  if constexpr (COUNT == 32) return warp_max(value);
#pragma unroll
  for (int bits = STRIDE; bits < COUNT * STRIDE; bits *= 2)
    value = max(value, lane_across(value, bits));
  return value;
}

}  // namespace wts
