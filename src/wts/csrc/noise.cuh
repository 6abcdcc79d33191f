// Gumbel noise of sampled rows: the Philox words of numerics.md, and logarithms that the emulator
// repeats bit for bit (wts/noise.py), which is why no operation here is fused.
#pragma once
#include "select.cuh"

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

// The best scores of a lane's rows, exactly, without computing all of them. The noise of a row is
// below -ln u, and log2 of a float is above its bits read as a number (a chord lies under the
// curve), so a few operations bound each score from above. The largest bound is computed first;
// rows whose bound is below a score that somebody has cannot win and never are.
template <int ROWS>
struct ScoreSearch {
  float bound[ROWS];  // -inf: done, or not to be drawn
  float logit[ROWS];

  __device__ __forceinline__ void add(int index, bool here, float x, u32 word, float temperature) {
    const float u = (__uint2float_rn(word) + 0.5f) * 2.3283064365386963e-10f;
    const float chord = __int2float_rn(__float_as_int(u) - 0x3f800000);  // 2^23 log2 u, or less
    const float mean = __fdividef(x, temperature);
    // The slack is far above all rounding errors: of the quotient, the bound and the score.
    float most = fmaf(chord, -0.69314718f / 8388608.0f, mean) + fmaf(fabsf(mean), 1e-5f, 1e-3f);
    if (!(most == most)) most = __int_as_float(0x7f800000);  // NaN, or an overflow: compute it
    bound[index] = here && x != minus_infinity() ? most : minus_infinity();
    logit[index] = x;
  }

  // Offers what can win; threshold is the best score seen by the lanes of the same request.
  template <typename RowOf>
  __device__ __forceinline__ void run(float temperature, float& threshold, Best& best,
                                      const RowOf& row_of, const u32* words) {
    for (;;) {
      float most = bound[0], x = logit[0];
      int index = 0;
#pragma unroll
      for (int i = 1; i < ROWS; ++i) {
        if (bound[i] > most) {
          most = bound[i];
          x = logit[i];
          index = i;
        }
      }
      const bool wanted = most > minus_infinity() && !(most < threshold);
      if (!__any_sync(0xffffffffu, wanted)) return;
      const int row = row_of(index);
      const float score = sampled_score(x, temperature, wanted ? words[row] : 0u);
      if (wanted) {
        best.offer(ordered_key(score), row);
        if (score > threshold) threshold = score;
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
        if (wanted && i == index) bound[i] = minus_infinity();
      if constexpr (plan::COLUMNS == 1) {
        threshold = score_of_key(warp_max(ordered_key(threshold)));
      } else {
#pragma unroll
        for (int distance = plan::COLUMNS; distance < 32; distance *= 2)
          threshold = fmaxf(threshold, __shfl_xor_sync(0xffffffffu, threshold, distance));
      }
    }
  }
};

}  // namespace wts
