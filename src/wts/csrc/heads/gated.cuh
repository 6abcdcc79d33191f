// The latent function of a gated head.
#pragma once
#include "heads/activations.cuh"
#include "heads/runs.cuh"
#include "numbers.cuh"
#include "plan_constants.h"

namespace wts {

// R(R(sigmoid(R(part + G_e e))) e) of one run; row: G_e e in fp32, then e in bf16; early: the part
// of the run, where it was made here. What is asked for comes while `wait` waits.
template <typename Wait>
__device__ __forceinline__ void gated_run(const Byte* row, const float* part, const float* early,
                                          int first, Wait wait, float (&latent)[RUN]) {
  float product[RUN], before[RUN], element[RUN];
  load_run(product, reinterpret_cast<const float*>(row) + first);
  load_run(element, reinterpret_cast<const u16*>(row + 4 * plan::RANK) + first);
  if constexpr (plan::HIDDEN_INSIDE) {
    wait();
#pragma unroll
    for (int i = 0; i < RUN; ++i) before[i] = early[first + i];
  } else {
    load_run(before, part + first);
  }
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const float gate = rounded(sigmoid(rounded(__fadd_rn(before[i], product[i]))));
    latent[i] = rounded(__fmul_rn(gate, element[i]));
  }
}

}  // namespace wts
