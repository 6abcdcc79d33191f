// Conversions, and arithmetic that C++ has no operators for.
#pragma once
#include "types.cuh"

namespace wts {

// 9.7.9.21: two fp32 to two bf16, round to nearest even; NaN becomes 0x7fff.
__device__ __forceinline__ u32 round_bf16x2(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two bf16 at once: -0 becomes +0, a NaN the positive one (9.7.4.1).
__device__ __forceinline__ u32 plus_zero_bf16x2(u32 pair) {
  u32 result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0x3f803f80u), "r"(0u));
  return result;
}

// Each half becomes all ones where its sign is set (9.7.9.7).
__device__ __forceinline__ u32 signs_of_halves(u32 pair) {
  u32 result;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(result) : "r"(pair));
  return result;
}

__device__ __forceinline__ float half_to_float(u32 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
  return value;
}

__device__ __forceinline__ u32 round_half(float value) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// 9.7.3.6: a * b + c rounded once; NaN comes out as 0x7fffffff.
__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }

// The smaller, or the larger one; a NaN stays (9.7.3.11, 9.7.3.12).
__device__ __forceinline__ float at_most(float x, float limit) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(limit));
  return result;
}
__device__ __forceinline__ float at_least(float x, float limit) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(limit));
  return result;
}

// 1 / value, within one place of the nearest (9.7.3.14).
__device__ __forceinline__ float approximate_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// Square root, within 2^-22 of it (9.7.3.15).
__device__ __forceinline__ float approximate_root(float value) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// 9.7.3.20: log2 of a normal number, or of 0, by the special function unit.
__device__ __forceinline__ float fast_log2(float value) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace wts
