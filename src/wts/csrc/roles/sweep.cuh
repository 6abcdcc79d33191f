// The sweeping warps: each holds its tiles of W for the whole walk and, once per (step, group),
// multiplies them with the latents of the group's requests and offers its best rows.
#pragma once
#include "block.cuh"
#include "heads/kind.cuh"
#include "product/tcgen05.cuh"
#include "ptx/barrier.cuh"
#include "rounds.cuh"
#include "select/greedy.cuh"
#include "select/key.cuh"
#include "select/offers.cuh"
#include "select/token_race.cuh"
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
__device__ __forceinline__ bool sweep_once(const Block& block, const ResidentWeights& weights,
                                           Ring& ring, int round, Precise precise,
                                           float (&limit)[plan::COLUMN_BLOCKS]) {
  Offers offers;
  multiply(block, weights, ring, round, precise, limit, offers);
  if constexpr (plan::SAMPLED)
    return post_contests(block, warp_index(), lane_index(), round, offers, precise, limit);
  post_best(block, warp_index(), lane_index(), round, offers);
  return true;
}

__device__ __forceinline__ void sweep_round(const Block& block, const ResidentWeights& weights,
                                            Ring& ring, int round) {
  float limit[plan::COLUMN_BLOCKS];  // an approximate score below this cannot be the best
#pragma unroll
  for (int nth = 0; nth < plan::COLUMN_BLOCKS; ++nth) limit[nth] = -minus_infinity();
  if constexpr (!plan::SAMPLED) {
    sweep_once(block, weights, ring, round, Roughly{}, limit);
  } else if constexpr (plan::PRECISE_APART) {
    const bool settled = sweep_once(block, weights, ring, round, Roughly{}, limit);
    if (again(warp_index(), settled)) sweep_once(block, weights, ring, round, Precisely{}, limit);
  } else {
#pragma unroll 1
    for (bool precise = false;; precise = true) {
      const bool settled = sweep_once(block, weights, ring, round, precise, limit);
      if (precise || !again(warp_index(), settled)) break;
    }
  }
  warp_arrive(&block.shared.candidates_ready[round_slot(round)]);
  __syncwarp();
  mark(block, round, OFFERED);
}

__device__ __forceinline__ void sweep_role(const Block& block) {
  ResidentWeights weights;
  Ring ring;
  if constexpr (plan::STREAMED_FRAGMENTS > 0) ring.begin(block);
  fill_tensor_tiles(block);
  load_register_fragments(block, weights);
#if WTS_OWNED
  begin_own_units(block);
#endif
  barrier_wait(&block.shared.weights_landed, 0);
  const int rounds = block.args.num_steps * plan::GROUPS;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    if constexpr (SWEEPERS_TAKE_IN) work_before_sweep(block, round);
#if WTS_OWNED
    if (HEAD == Head::DOMINO && round_group(round) == 0) project_step(block, round_step(round));
#endif
    sweep_round(block, weights, ring, round);
    if constexpr (EARLY) work_behind_sweep(block, round);
#if WTS_OWNED
    make_next_own_sums(block, round);
#endif
  }
  if constexpr (plan::STREAMED_FRAGMENTS > 0) ring.end(block);
  end_tensor_memory(block);
}

}  // namespace wts
