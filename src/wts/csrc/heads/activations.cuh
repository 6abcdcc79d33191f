// sigmoid, tanh and SiLU in the operations of wts/activations.py, one by one: the emulator repeats
// every bit. The page there says how exp is made and how far from the truth it is.
#pragma once
#include "numbers.cuh"
#include "ptx/number.cuh"

namespace wts {

// exp(y) = power (1 + q), for y within 80 of 0; q of a NaN is one.
struct Reduced {
  float q, power;

  __device__ __forceinline__ explicit Reduced(float y) {
    // 1.5 2^23: a sum with it is rounded to integers
    constexpr float LOW_PLACE_IS_ONE = 12582912.0f;
    const float shifted = __fadd_rn(__fmul_rn(y, 1.4426950408889634f), LOW_PLACE_IS_ONE);
    const float n = __fadd_rn(shifted, -LOW_PLACE_IS_ONE);
    const float high = fmaf(n, -0.693359375f, y);  // the product is exact
    const float f = __fadd_rn(high, -__fmul_rn(n, -2.12194440054690583e-4f));
    float p = 1.0f / 5040;
    const auto take = [&](float coefficient) { p = __fadd_rn(__fmul_rn(p, f), coefficient); };
    take(1.0f / 720);
    take(1.0f / 120);
    take(1.0f / 24);
    take(1.0f / 6);
    take(1.0f / 2);
    q = __fadd_rn(__fmul_rn(__fmul_rn(p, f), f), f);
    power = __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
  }
};

// 1 + exp(y): what is smaller than exp(-80) adds nothing.
__device__ __forceinline__ float one_and_exponential(float y) {
  const Reduced reduced(at_most(at_least(y, -80.0f), 80.0f));
  return __fadd_rn(1.0f, __fmul_rn(__fadd_rn(1.0f, reduced.q), reduced.power));
}

__device__ __forceinline__ float sigmoid(float x) {
  return divided(1.0f, one_and_exponential(-x));
}

__device__ __forceinline__ float silu(float x) {
  const float infinity = __int_as_float(0x7f800000);
  const float result = divided(at_least(x, -80.0f), one_and_exponential(-x));
  return fabsf(x) < infinity ? result : __fadd_rn(x, infinity);
}

__device__ __forceinline__ float tanh_of(float x) {
  const float size = fabsf(x);
  const Reduced reduced(at_most(__fadd_rn(size, size), 32.0f));
  const float m =
      __fadd_rn(__fmul_rn(reduced.power, reduced.q), __fadd_rn(reduced.power, -1.0f));
  constexpr float FAR = 18446744073709551616.0f;  // 2^64
  const float quotient = divided(__fmul_rn(m, FAR), __fadd_rn(m, 2.0f));
  return copysignf(__fmul_rn(quotient, 1.0f / FAR), x);
}

}  // namespace wts
