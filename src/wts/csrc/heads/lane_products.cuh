// Products with states and hidden states.
#pragma once
#include "numbers.cuh"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"

namespace wts {

// A row's four sums of a lane, added up.
__device__ __forceinline__ float add_sums(float (&sums)[4]) {
#pragma unroll
  for (int half = 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] = __fadd_rn(sums[i], sums[i + half]);
  return sums[0];
}

// Rows of weights times vectors, both bf16, as the emulator's lane_product sums them: element i is
// of sum i mod 4 of lane i / 8 mod 32; then trees over sums and lanes. The same in all lanes. Rows
// lie `apart` elements apart, vectors LENGTH; what is read of a row serves all vectors.
template <int ROWS, int LENGTH, int VECTORS>
__device__ __forceinline__ void lane_products(const u16* weight, int apart, const u16* vector,
                                              int lane, float (&sum)[VECTORS][ROWS]) {
  const u32 weights = shared_address(weight), elements = shared_address(vector);
  float sums[VECTORS][ROWS][4] = {};
  constexpr int AT_ONCE = ROWS * VECTORS > 1 ? 1 : 2;  // registers are few
#pragma unroll AT_ONCE
  for (int turn = 0; turn < (LENGTH + 255) / 256; ++turn) {
    const int first = (turn * 32 + lane) * 8;
    if (LENGTH % 256 != 0 && first >= LENGTH) break;
    u32 of_vector[VECTORS][4];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
      load_shared_16(of_vector[v], elements + (v * LENGTH + first) * 2);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      u32 of_row[4];
      load_shared_16(of_row, weights + (row * apart + first) * 2);
#pragma unroll
      for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          sums[v][row][i % 4] = fmaf(bf16_of_pair(of_row[i / 2], i),
                                     bf16_of_pair(of_vector[v][i / 2], i), sums[v][row][i % 4]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int v = 0; v < VECTORS; ++v)
#pragma unroll
    for (int row = 0; row < ROWS; ++row) sum[v][row] = add_sums(sums[v][row]);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2)
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
      for (int row = 0; row < ROWS; ++row)
        sum[v][row] =
            __fadd_rn(sum[v][row], __int_as_float(lane_across(__float_as_int(sum[v][row]), bit)));
}

template <int ROWS, int LENGTH>
__device__ __forceinline__ void lane_products(const u16* weight, int apart, const u16* vector,
                                              int lane, float (&sum)[ROWS]) {
  lane_products<ROWS, LENGTH, 1>(weight, apart, vector, lane,
                                 reinterpret_cast<float (&)[1][ROWS]>(sum));
}

}  // namespace wts
