// The latent function and the state of an RNN head.
#pragma once
#include "heads/activations.cuh"
#include "heads/runs.cuh"
#include "numbers.cuh"
#include "plan_constants.h"

namespace wts {

// The latent of one run of an RNN head; row: J_e e in fp32, early: the part + J_s state. Of each,
// gates, candidates and outputs lie RANK apart. The first two, rounded, are left in `left` for the
// state, which has time until the latent is sent.
template <typename Wait>
__device__ __forceinline__ void rnn_run(const Byte* row, const float* early, int first, u16* left,
                                        Wait wait, float (&latent)[RUN]) {
  float joint[3][RUN];
#pragma unroll
  for (int kind = 0; kind < 3; ++kind)
    load_run(joint[kind], reinterpret_cast<const float*>(row) + kind * plan::RANK + first);
  wait();
#pragma unroll
  for (int kind = 2; kind >= 0; --kind) {
    const int start = kind * plan::RANK + first;
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
      const float sum = rounded(__fadd_rn(early[start + i], joint[kind][i]));
      if (kind == 2) {
        latent[i] = rounded(tanh_of(sum));
      } else {
        left[start + i] = bf16_bits(sum);
      }
    }
  }
}

// The new state of a unit of an RNN, from its rounded sums and the old one.
__device__ __forceinline__ u16 rnn_state(float gate_sum, float candidate_sum, const u16& old) {
  const float gate = rounded(sigmoid(gate_sum));
  const float candidate = rounded(tanh_of(candidate_sum));
  const float kept = rounded(__fmul_rn(gate, bf16_value(old)));
  const float taken = rounded(__fmul_rn(rounded(__fadd_rn(1.0f, -gate)), candidate));
  return bf16_bits(rounded(__fadd_rn(kept, taken)));
}

// The new state of a run, in place, from what rnn_run has left, RANK apart.
__device__ __forceinline__ void rnn_state_run(const u16* left, int first, u16* state) {
#pragma unroll
  for (int i = first; i < first + RUN; ++i)
    state[i] = rnn_state(bf16_value(left[i]), bf16_value(left[plan::RANK + i]), state[i]);
}

}  // namespace wts
