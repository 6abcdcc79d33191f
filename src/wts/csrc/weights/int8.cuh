// Quantised weights and latents: int8 rows with a scale, latents of two int8 planes (wts/pack.py).
#pragma once
#include "block.cuh"
#include "heads/runs.cuh"
#include "numbers.cuh"
#include "ptx/mma.cuh"
#include "ptx/warp.cuh"

namespace wts {

#if WTS_QUANTISED
using Sum = int;           // of an accumulator
using PairScale = float2;  // scales of two consecutive rows

__device__ __forceinline__ PairScale load_pair_scale(const Block& block, int row) {
  return *reinterpret_cast<const float2*>(&block.shared.row_scale[row]);
}
#endif

// D = A * B, or added to D, by the instruction of the weights.
__device__ __forceinline__ void multiply_fragment(int (&sum)[4], const u32* a, u32 b0, u32 b1,
                                                  bool first) {
  if (first) {
    mma_s8_first(sum, a, b0, b1);
  } else {
    mma_s8(sum, a, b0, b1);
  }
}
__device__ __forceinline__ int bits_of(int sum) { return sum; }

// z = base + dot * scale, scale = row scale * latent scale; each operation rounded to fp32, none
// fused. In an exact walk the dot is raised by `slack`, and z is not below the unquantised head's
// sum.
__device__ __forceinline__ float step_sum(int high, int low, float scale, float base, float slack) {
  const int dot = 256 * high + low;  // exact: |dot| < 2^31 for ranks up to 512
  float level = __int2float_rn(dot);
  if constexpr (plan::EXACT) level = __fadd_rn(level, slack);
  return __fadd_rn(base, __fmul_rn(level, scale));
}

// Step logits of two consecutive rows for one request, all but the last rounding: a lane's sums of
// a product hold, for each row, those of an int8 latent's two planes, or those of two requests.
__device__ __forceinline__ void step_pair(const int (&sum)[4], int, float2 scale,
                                          float latent_scale, float2 base, float slack,
                                          float (&logits)[2]) {
  logits[0] = step_sum(sum[0], sum[1], __fmul_rn(scale.x, latent_scale), base.x, slack);
  logits[1] = step_sum(sum[2], sum[3], __fmul_rn(scale.y, latent_scale), base.y, slack);
}

constexpr int LATENT_LEVELS = 127 * 256 + 127;

// The largest absolute value of a warp's part of a latent, as bits: they are in order, NaN above
// all.
__device__ __forceinline__ u32 largest_of(const float (&latent)[RUNS][RUN]) {
  u32 largest = 0;
#pragma unroll
  for (int run = 0; run < RUNS; ++run)
#pragma unroll
    for (int i = 0; i < RUN; ++i)
      largest = max(largest, __float_as_uint(latent[run][i]) & 0x7fffffffu);
  return warp_max_unsigned(largest);
}

// The scale of a latent: its largest element over LATENT_LEVELS; NaN where one is not finite.
__device__ __forceinline__ float latent_scale_of(u32 largest) {
  const float scale = divided(__uint_as_float(largest), static_cast<float>(LATENT_LEVELS));
  if (!(fabsf(scale) < __int_as_float(0x7f800000))) return __int_as_float(0x7fffffff);
  return scale < 1e-30f ? 1e-30f : scale;
}

// value / scale to the nearest integer, within +-LATENT_LEVELS; 0 where that is not finite. What is
// so small that `divided` is not exact is nearest to 0.
__device__ __forceinline__ int latent_level(float value, float scale) {
  const float level = divided(value, scale);
  if (!(fabsf(level) < __int_as_float(0x7f800000))) return 0;
  const float nearest = rintf(level), most = static_cast<float>(LATENT_LEVELS);
  return static_cast<int>(nearest > most ? most : nearest < -most ? -most : nearest);
}

// The two int8 planes of a run, one byte each element.
struct PlaneRun {
  u32 word[RUN > 4 ? 2 : 1];

  __device__ __forceinline__ void put(int i, int level) {
    word[i / 4] |= (static_cast<u32>(level) & 0xffu) << 8 * (i % 4);
  }
};

// In an exact walk the squares of what is not below a sixteenth of an element, in levels, are
// summed up: of RANK elements they stay below 2^32.
__device__ __forceinline__ void quantise_run(const float (&latent)[RUN], float scale,
                                             PlaneRun& high, PlaneRun& low, u32& squares) {
  high = low = PlaneRun{};
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const int level = latent_level(latent[i], scale), rest = ((level + 128) & 255) - 128;
    high.put(i, (level - rest) >> 8);
    low.put(i, rest);
    if constexpr (plan::EXACT) {
      const u32 sixteenth = static_cast<u32>(level < 0 ? -level : level) / 16 + 1;
      squares += sixteenth * sixteenth;
    }
  }
}

}  // namespace wts
