// The state and the latent function of a Domino head.
#pragma once
#include "heads/activations.cuh"
#include "heads/runs.cuh"
#include "numbers.cuh"
#include "plan_constants.h"
#include "ptx/memory.cuh"

namespace wts {

// The new state of a unit of a Domino head: R(W_ih e) and R(W_hh h) of resets, updates and
// candidates, and the old one.
template <typename Input, typename Sum>
__device__ __forceinline__ u16 domino_state(Input input, Sum sum, const u16& state) {
  const float reset = sigmoid(__fadd_rn(input(0), sum(0)));
  const float update = sigmoid(__fadd_rn(input(1), sum(1)));
  const float fresh = tanh_of(__fadd_rn(input(2), __fmul_rn(reset, sum(2))));
  const float old = bf16_value(state);
  const float next = __fadd_rn(fresh, __fmul_rn(update, __fadd_rn(old, -fresh)));
  return bf16_bits(rounded(next));
}

// A Domino head takes in a token: the GRU of one request, in place; row: R(W_ih e) in bf16, resets,
// updates and candidates STATE apart; early: R(W_hh h) of a unit's three in one word, resets
// lowest. A lane has four units at a time.
template <int LANES>
__device__ __forceinline__ void take_in_token(const Byte* row, const u64* early, u16* state,
                                              int lane) {
  const u16* inputs = reinterpret_cast<const u16*>(row);
#pragma unroll 1
  for (int first = 4 * lane; first < plan::STATE; first += 4 * LANES) {
    u32 input[3][2];
#pragma unroll
    for (int kind = 0; kind < 3; ++kind)
      load_global_words(input[kind], inputs + kind * plan::STATE + first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto of_row = [&](int kind) { return bf16_of_pair(input[kind][i / 2], i); };
      const u64 word = early[first + i];
      const u32 low = static_cast<u32>(word), high = static_cast<u32>(word >> 32);
      const auto sum = [&](int kind) {
        return kind == 1 ? bf16_of_pair(low, 1) : bf16_value(kind == 0 ? low : high);
      };
      state[first + i] = domino_state(of_row, sum, state[first + i]);
    }
  }
}

// R(SiLU(R(part + P_h h))) of one run; projections: part + P_h h.
__device__ __forceinline__ void projected_run(const float* projections, int first,
                                              float (&latent)[RUN]) {
#pragma unroll
  for (int i = 0; i < RUN; ++i) latent[i] = rounded(silu(rounded(projections[first + i])));
}

}  // namespace wts
