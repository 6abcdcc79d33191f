// Numbers of few bits as fp32 and back: those of bf16, and the types of base and step logits.
#pragma once
#include "plan_constants.h"
#include "ptx/number.cuh"

namespace wts {

// A bf16 number as fp32: alone, or the i-th of two in a word; and the bits of one that is rounded.
__device__ __forceinline__ float bf16_value(u32 bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float bf16_of_pair(u32 pair, int i) {
  return i & 1 ? __uint_as_float(pair & 0xffff0000u) : bf16_value(pair);
}
__device__ __forceinline__ u16 bf16_bits(float value) {
  return static_cast<u16>(__float_as_uint(value) >> 16);
}

// R(): rounded once to bf16, as fp32.
__device__ __forceinline__ float rounded(float value) {
  return bf16_value(round_bf16x2(value, 0.0f));
}

// a / b, rounded as a division is, without a branch: where b, the quotient and a's last places are
// far from the ends of fp32 (wts/activations.py sees to that), an approximate reciprocal, made
// better once, gives a quotient whose exact remainder puts right what is wrong with it (Markstein).
// Where b is infinite or NaN, or a is, NaN.
__device__ __forceinline__ float divided(float a, float b) {
  float inverse = approximate_reciprocal(b);
  inverse = fmaf(fmaf(-b, inverse, 1.0f), inverse, inverse);
  float quotient = __fmul_rn(a, inverse);
  quotient = fmaf(fmaf(-b, quotient, a), inverse, quotient);
  return fmaf(fmaf(-b, quotient, a), inverse, quotient);
}

enum class Number { BF16, FP16, FP32 };

constexpr Number BASE_TYPE = static_cast<Number>(plan::BASE_TYPE);
constexpr Number STEP_TYPE = static_cast<Number>(plan::STEP_TYPE);
constexpr int BASE_BYTES = BASE_TYPE == Number::FP32 ? 4 : 2;
constexpr int STEP_BYTES = STEP_TYPE == Number::FP32 ? 4 : 2;

// Two step logits, rounded once to the step's number type and given back as fp32.
__device__ __forceinline__ void round_pair(float& first, float& second) {
  if constexpr (STEP_TYPE == Number::BF16) {
    const u32 packed = round_bf16x2(first, second);
    first = __uint_as_float(packed << 16);
    second = __uint_as_float(packed & 0xffff0000u);
  } else if constexpr (STEP_TYPE == Number::FP16) {
    first = half_to_float(round_half(first));
    second = half_to_float(round_half(second));
  }
}

// A rounded step logit, as the step's number type stores it, and back.
__device__ __forceinline__ u32 step_bits(float x) {
  if constexpr (STEP_TYPE == Number::FP32) return __float_as_uint(x);
  if constexpr (STEP_TYPE == Number::FP16) return round_half(x);
  return __float_as_uint(x) >> 16;
}

__device__ __forceinline__ float step_value(u32 bits) {
  if constexpr (STEP_TYPE == Number::FP32) return __uint_as_float(bits);
  if constexpr (STEP_TYPE == Number::FP16) return half_to_float(bits);
  return __uint_as_float(bits << 16);
}

__device__ __forceinline__ void store_step_logit(Byte* at, float x) {
  if constexpr (STEP_TYPE == Number::FP32) {
    *reinterpret_cast<u32*>(at) = step_bits(x);
  } else {
    *reinterpret_cast<u16*>(at) = static_cast<u16>(step_bits(x));
  }
}

// Two of them, at a multiple of the size of both.
__device__ __forceinline__ void store_step_logits(Byte* at, float x0, float x1) {
  if constexpr (STEP_TYPE == Number::FP32) {
    *reinterpret_cast<u64*>(at) = step_bits(x0) | static_cast<u64>(step_bits(x1)) << 32;
  } else {
    *reinterpret_cast<u32*>(at) = step_bits(x0) | step_bits(x1) << 16;
  }
}

}  // namespace wts
