// Weights and latents in bf16, as the head has them.
#pragma once
#include "block.cuh"
#include "heads/runs.cuh"
#include "numbers.cuh"
#include "ptx/mma.cuh"

namespace wts {

#if !WTS_QUANTISED
using Sum = float;      // of an accumulator
using PairScale = u32;  // a bit for each of two consecutive rows

__device__ __forceinline__ PairScale load_pair_scale(const Block& block, int row) {
  return block.shared.row_scale[row >> 5] >> (row & 31);
}
#endif
__device__ __forceinline__ void multiply_fragment(float (&sum)[4], const u32* a, u32 b0, u32 b1,
                                                  bool first) {
  if (first) {
    mma_bf16_first(sum, a, b0, b1);
  } else {
    mma_bf16(sum, a, b0, b1);
  }
}
__device__ __forceinline__ int bits_of(float sum) { return __float_as_int(sum); }

__device__ __forceinline__ void step_pair(const float (&sum)[4], int request, u32 scale, float,
                                          float2 base, float, float (&logits)[2]) {
  const float nan = __int_as_float(0x7fffffff);
  float first = scale & 1u ? nan : sum[request], second = scale & 2u ? nan : sum[2 + request];
  round_pair(first, second);
  logits[0] = __fadd_rn(base.x, first);
  logits[1] = __fadd_rn(base.y, second);
}

// A run of a latent, whose elements are bf16 numbers already.
__device__ __forceinline__ void pack_bf16_run(const float (&latent)[RUN], u32 (&words)[RUN / 2]) {
#pragma unroll
  for (int i = 0; i < RUN / 2; ++i)
    words[i] = bf16_bits(latent[2 * i]) | static_cast<u32>(bf16_bits(latent[2 * i + 1])) << 16;
}

}  // namespace wts
