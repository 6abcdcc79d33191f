// The sweeping warps: each holds its tiles of W for the whole walk and, once per (step, group),
// multiplies them with the latents of the group's requests and offers its best rows.
#pragma once
#include "args.cuh"
#include "heads/kind.cuh"
#include "plan_constants.h"
#include "product/tcgen05.cuh"
#include "ptx/barrier.cuh"
#include "ptx/base.cuh"
#include "rounds.cuh"
#include "select/greedy.cuh"
#include "select/key.cuh"
#include "select/offers.cuh"
#include "select/token_race.cuh"
#include "shared.cuh"
#include "state/exchanged_sums.cuh"
#include "state/sharded.cuh"
#include "tiles.cuh"
#include "trace.cuh"
#if WTS_WARPGROUPS
#include "product/wgmma.cuh"
#else
#include "product/mma.cuh"
#endif

namespace wts {

// Whether a round must be judged again, precisely: all warps that multiply together say the same.
__device__ __forceinline__ bool again(int warp, bool settled) {
  if constexpr (plan::WARPGROUPS) return warpgroup_any(warp / plan::OPERAND_WARPS, !settled);
  return !settled;
}

// Multiplies once and leaves the warp's best rows; false where approximate scores are too close.
template <typename Precise>
__device__ __forceinline__ bool sweep_once(const WalkArgs& args, Shared& shared,
                                           const ResidentWeights& weights, Ring& ring, int round,
                                           Precise precise, float (&limit)[plan::COLUMN_BLOCKS]) {
  Offers offers;
  multiply(args, shared, weights, ring, round, precise, limit, offers);
  if constexpr (plan::SAMPLED)
    return post_contests(shared, warp_index(), lane_index(), round, offers, precise, limit);
  post_best(shared, warp_index(), lane_index(), round, offers);
  return true;
}

__device__ __forceinline__ void sweep_round(const WalkArgs& args, Shared& shared,
                                            const ResidentWeights& weights, Ring& ring, int round) {
  float limit[plan::COLUMN_BLOCKS];  // an approximate score below this cannot be the best
#pragma unroll
  for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) limit[block] = -minus_infinity();
  if constexpr (!plan::SAMPLED) {
    sweep_once(args, shared, weights, ring, round, Roughly{}, limit);
  } else if constexpr (plan::PRECISE_APART) {
    const bool settled = sweep_once(args, shared, weights, ring, round, Roughly{}, limit);
    if (again(warp_index(), settled))
      sweep_once(args, shared, weights, ring, round, Precisely{}, limit);
  } else {
#pragma unroll 1
    for (bool precise = false;; precise = true) {
      const bool settled = sweep_once(args, shared, weights, ring, round, precise, limit);
      if (precise || !again(warp_index(), settled)) break;
    }
  }
  warp_arrive(&shared.candidates_ready[round_slot(round)]);
  __syncwarp();
  mark(args, round, OFFERED);
}

__device__ __forceinline__ void sweep_role(const WalkArgs& args, Shared& shared) {
  ResidentWeights weights;
  Ring ring;
  if constexpr (plan::STREAMED_FRAGMENTS > 0) ring.begin(args, shared);
  fill_tensor_tiles(args, shared);
  load_register_fragments(args, weights);
#if WTS_OWNED
  begin_own_units(args, shared);
#endif
  barrier_wait(&shared.weights_landed, 0);
  const int rounds = args.num_steps * plan::GROUPS;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    if constexpr (SWEEPERS_TAKE_IN) work_before_sweep(args, shared, round);
#if WTS_OWNED
    if (HEAD == Head::DOMINO && round_group(round) == 0)
      project_step(args, shared, round_step(round));
#endif
    sweep_round(args, shared, weights, ring, round);
    if constexpr (EARLY) work_behind_sweep(args, shared, round);
#if WTS_OWNED
    make_next_own_sums(args, shared, round);
#endif
  }
  if constexpr (plan::STREAMED_FRAGMENTS > 0) ring.end(shared);
  end_tensor_memory(shared);
}

}  // namespace wts
