// Gumbel noise of sampled rows: the Philox words of numerics.md, and logarithms that the emulator
// repeats bit for bit (wts/noise.py), which is why no operation of a precise score is fused. Few
// scores need to be precise: approximations tell which.
#pragma once
#include "ptx/number.cuh"

namespace wts {

struct Words4 {
  u32 word[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
__device__ __forceinline__ Words4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const u32 high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

// The word of a token among those of the four consecutive tokens it belongs to.
__device__ __forceinline__ u32 word_of(const Words4& drawn, int token) {
  const u32 low = token & 1 ? drawn.word[1] : drawn.word[0];
  const u32 high = token & 1 ? drawn.word[3] : drawn.word[2];
  return token & 2 ? high : low;
}

// ln(1 + f) + exponent ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1]: the polynomial of Cephes' logf,
// in an order with few operations behind one another.
__device__ __forceinline__ float log_of_parts(float f, int exponent) {
  const auto step = [](float a, float x, float b) { return __fadd_rn(__fmul_rn(a, x), b); };
  const float z = __fmul_rn(f, f);
  const float quad = __fmul_rn(z, z);
  const float high = step(step(7.0376836292e-2f, f, -1.1514610310e-1f), z,
                          step(1.1676998740e-1f, f, -1.2420140846e-1f));
  const float low = step(step(1.4249322787e-1f, f, -1.6668057665e-1f), z,
                         step(2.0000714765e-1f, f, -2.4999993993e-1f));
  const float p = step(step(high, quad, low), f, 3.3333331174e-1f);
  const float e = __int2float_rn(exponent);
  float y = __fmul_rn(__fmul_rn(p, f), z);
  y = __fadd_rn(y, __fmul_rn(e, -2.12194440e-4f));
  y = __fadd_rn(y, __fmul_rn(z, -0.5f));
  return __fadd_rn(__fadd_rn(f, y), __fmul_rn(e, 0.693359375f));
}

constexpr int SQRT_HALF_BITS = 0x3f3504f3;

// ln of a positive normal number.
__device__ __forceinline__ float log_normal(float value) {
  const int bits = __float_as_int(value);
  const int exponent = (bits - SQRT_HALF_BITS) >> 23;
  return log_of_parts(__fadd_rn(__int_as_float(bits - (exponent << 23)), -1.0f), exponent);
}

// ln(-log1p(-u)) for u = (word + 1/2) 2^-32 in (0, 1]; for u = 1 the largest number rather than
// infinity, so that such a row still beats the masked ones, whose logits are -inf.
__device__ __forceinline__ float log_exponential(u32 word) {
  const float u = __fmul_rn(__fadd_rn(__uint2float_rn(word), 0.5f), 2.3283064365386963e-10f);
  const float rest = __fadd_rn(1.0f, -u);
  const int bits = __float_as_int(rest);
  const int exponent = (bits - SQRT_HALF_BITS) >> 23;
  // Near 1 the rounded rest has lost u's low bits; u itself is the exact argument there.
  const float f = exponent == 0 ? -u : __fadd_rn(__int_as_float(bits - (exponent << 23)), -1.0f);
  const float exponential = -log_of_parts(f, exponent);
  return rest > 0.0f ? log_normal(exponential) : __int_as_float(0x7f7fffff);
}

// The score a sampled row is drawn by. The temperature is at least 1e-5.
__device__ __forceinline__ float sampled_score(float logit, float temperature, u32 word) {
  return __fadd_rn(__fdiv_rn(logit, temperature), -log_exponential(word));
}

// Nearly the noise that sampled_score subtracts: from two logarithms of the special function unit
// (relative error 2^-22, absolute 2^-22 between 1/2 and 2). Near u = 0, where winners are, 1 - u
// would lose u's low bits: there a series is used.
__device__ __forceinline__ float approximate_noise(u32 word) {
  constexpr float LN_2 = 0.69314718f;
  const float u = fmaf(__uint2float_rn(word), 2.3283064365386963e-10f, 1.1641532182693481e-10f);
  const float series = u * fmaf(u, fmaf(u, 0.33333333f, 0.5f), 1.0f);
  const float exponential = u < 0.015625f ? series : fast_log2(__fadd_rn(1.0f, -u)) * -LN_2;
  return fmaxf(fast_log2(exponential) * -LN_2, -3.402823466e+38f);
}

// Scores are first judged by fused(x, 1 / T, approximate noise). That differs from the precise
// score by at most 1.8e-5 for the noise (1.1e-5 relative in the exponential at u = 1/64, then its
// logarithm: |noise| <= 23 unless the score is huge) and by a few roundings of x / T and of the
// sum; two scores further apart than this are in the same order.
__device__ __forceinline__ float score_slack(float score) {
  return fmaf(fabsf(score), 6e-7f, 5e-5f);
}

}  // namespace wts
