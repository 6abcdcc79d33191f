// The best rows of a warp, where nothing is sampled.
#pragma once
#include "block.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/exact_bounds.cuh"
#include "select/key.cuh"
#include "select/offers.cuh"
#include "tiles.cuh"

namespace wts {

// Leaves the best of the warp for the service warps.
__device__ __forceinline__ void post_best(const Block& block, int warp, int lane, int round,
                                          const Offers& offers) {
#if WTS_EXACT
  if constexpr (plan::LANE_SLOTS > 0)
    lane_candidates(block, round, warp)[lane] = {offers.best[0].key, offers.best[0].second};
#endif
#pragma unroll
  for (int nth = 0; nth < plan::COLUMN_BLOCKS; ++nth) {
#pragma unroll
    for (int of_block = 0; of_block < BLOCK_REQUESTS; ++of_block) {
      Best best = offers.best[nth];
      const bool other = (lane & 3) % BLOCK_REQUESTS != of_block;
      if (other) best.key = NEVER;
      const Best winner = warp_best(best);
      if (lane == 0) post(block, round, 4 * nth + of_block, warp, winner.key, winner.row, 0.0f);
#if WTS_EXACT
      const bool wins = best.key == winner.key;
      const int others = other ? NEVER : wins ? best.second : best.key;
      const int next = warp_max(others);
      if constexpr (plan::LANE_SLOTS > 0) {
        if (lane == 0)
          post(block, round, 4 * nth + of_block, plan::SWEEP_WARPS + warp, next, 0, 0.0f);
        continue;
      }
      // A lane keeps its two best rows: where these are the warp's, its next may be as good as the
      // second.
      const int third = warp_max(other            ? NEVER
                                 : others != next ? others
                                 : wins           ? next
                                                  : best.second);
      if (lane == 0) {
        post(block, round, 4 * nth + of_block, plan::SWEEP_WARPS + warp, next, 0, 0.0f);
        post(block, round, 4 * nth + of_block, 2 * plan::SWEEP_WARPS + warp, third, 0, 0.0f);
      }
#endif
    }
  }
}

// The best of the candidates that the sweeping warps have offered for one column, in lane 0.
__device__ __forceinline__ Best block_best(const Block& block, int round, int column) {
  const int lane = lane_index(), slot = candidate_slot(round);
  Best best;
  if (lane < plan::CANDIDATES) {
    best.key = block.shared.candidate_key[slot][column][lane];
    if constexpr (plan::WIDE) best.row = block.shared.candidate_row[slot][column][lane];
  }
  return warp_best(best);
}

}  // namespace wts
