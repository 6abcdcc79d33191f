// The latent functions of heads that read hidden states, as wts/cells.py writes them: what is left
// to do once a token is known, by one warp or a team of warps for one request. They hold vectors of
// RANK elements in runs of RUN: run i of lane l (of the team) is elements RUN (TEAM_LANES i + l)
// and on, where there are so many.
#pragma once
#include "numbers.cuh"
#include "plan_constants.h"
#include "ptx/memory.cuh"
#include "teams.cuh"

namespace wts {

constexpr int RUN = 8 / TEAM;
constexpr int RUNS = (plan::RANK / RUN + TEAM_LANES - 1) / TEAM_LANES;

// Where a lane's run of the RANK elements begins, and whether there is one.
__device__ __forceinline__ int run_start(int run, int lane) {
  return (TEAM_LANES * run + lane) * RUN;
}
__device__ __forceinline__ bool run_exists(int run, int lane) {
  return plan::RANK % (TEAM_LANES * RUN) == 0 || run_start(run, lane) < plan::RANK;
}

// Consecutive fp32 or bf16 numbers at a multiple of their size.
__device__ __forceinline__ void load_run(float (&values)[RUN], const float* at) {
  constexpr int PIECE = RUN < 4 ? RUN : 4;
  u32 words[RUN / PIECE][PIECE];
#pragma unroll
  for (int i = 0; i < RUN / PIECE; ++i) load_global_words(words[i], at + PIECE * i);
#pragma unroll
  for (int i = 0; i < RUN; ++i) values[i] = __uint_as_float(words[i / PIECE][i % PIECE]);
}

__device__ __forceinline__ void load_run(float (&values)[RUN], const u16* at) {
  u32 words[RUN / 2];
  load_global_words(words, at);
#pragma unroll
  for (int i = 0; i < RUN; ++i) values[i] = bf16_of_pair(words[i / 2], i);
}

}  // namespace wts
