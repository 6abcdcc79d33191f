// sigmoid, tanh and SiLU in the operations of wts/activations.py, one by one: the emulator repeats
// every bit. The page there says how exp is made and how far from the truth it is.
#pragma once
#include "ptx.cuh"

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
// far from the ends of fp32 (wts/activations.py sees to that), an approximate reciprocal, made better
// once, gives a quotient whose exact remainder puts right what is wrong with it (Markstein). Where b is
// infinite or NaN, or a is, NaN.
__device__ __forceinline__ float divided(float a, float b) {
  float inverse = approximate_reciprocal(b);
  inverse = fmaf(fmaf(-b, inverse, 1.0f), inverse, inverse);
  float quotient = __fmul_rn(a, inverse);
  quotient = fmaf(fmaf(-b, quotient, a), inverse, quotient);
  return fmaf(fmaf(-b, quotient, a), inverse, quotient);
}

// The smaller one; a NaN stays.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }

// exp(y) = one * other * (1 + q), for |y| up to 104.
struct Reduced {
  float q, one, other;

  __device__ __forceinline__ explicit Reduced(float y) {
    const float n = rintf(__fmul_rn(y, 1.4426950408889634f));
    const float f = __fadd_rn(__fadd_rn(y, -__fmul_rn(n, 0.693359375f)),
                              -__fmul_rn(n, -2.12194440054690583e-4f));
    float p = 1.0f / 5040;
    const auto take = [&](float coefficient) { p = __fadd_rn(__fmul_rn(p, f), coefficient); };
    take(1.0f / 720);
    take(1.0f / 120);
    take(1.0f / 24);
    take(1.0f / 6);
    take(1.0f / 2);
    q = __fadd_rn(__fmul_rn(__fmul_rn(p, f), f), f);
    // 2^150 is no fp32 number: two factors.
    const int whole = n == n ? static_cast<int>(n) : 0, half = whole >> 1;
    one = power_of_two(half);
    other = power_of_two(whole - half);
  }

  __device__ __forceinline__ static float power_of_two(int n) {
    return __int_as_float((n + 127) << 23);
  }
};

__device__ __forceinline__ float exponential(float y) {
  const Reduced reduced(-at_most(-at_most(y, 104.0f), 104.0f));
  return __fmul_rn(__fmul_rn(__fadd_rn(1.0f, reduced.q), reduced.one), reduced.other);
}

__device__ __forceinline__ float sigmoid(float x) {
  return divided(1.0f, __fadd_rn(1.0f, exponential(at_most(-x, 80.0f))));
}

__device__ __forceinline__ float silu(float x) {
  const float infinity = __int_as_float(0x7f800000);
  const float least = -at_most(-x, 80.0f);
  const float result = divided(least, __fadd_rn(1.0f, exponential(-least)));
  return fabsf(x) < infinity ? result : __fadd_rn(x, infinity);
}

__device__ __forceinline__ float tanh_of(float x) {
  const float size = fabsf(x);
  const Reduced reduced(at_most(__fadd_rn(size, size), 32.0f));
  const float power = __fmul_rn(reduced.one, reduced.other);
  const float m = __fadd_rn(__fmul_rn(power, reduced.q), __fadd_rn(power, -1.0f));
  constexpr float FAR = 18446744073709551616.0f;  // 2^64
  const float quotient = divided(__fmul_rn(m, FAR), __fadd_rn(m, 2.0f));
  return copysignf(__fmul_rn(quotient, 1.0f / FAR), x);
}

}  // namespace wts
