// The best rows of a warp, where nothing is sampled.
#pragma once
#include "plan_constants.h"
#include "ptx/warp.cuh"
#include "select/exact_bounds.cuh"
#include "select/key.cuh"
#include "select/offers.cuh"
#include "shared.cuh"
#include "tiles.cuh"

namespace wts {

// Leaves the best of the warp for the service warps.
__device__ __forceinline__ void post_best(Shared& shared, int warp, int lane, int round,
                                          const Offers& offers) {
#if WTS_EXACT
  if constexpr (plan::LANE_SLOTS > 0)
    lane_candidates(shared, round, warp)[lane] = {offers.best[0].key, offers.best[0].second};
#endif
#pragma unroll
  for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
#pragma unroll
    for (int of_block = 0; of_block < BLOCK_REQUESTS; ++of_block) {
      Best best = offers.best[block];
      const bool other = (lane & 3) % BLOCK_REQUESTS != of_block;
      if (other) best.key = NEVER;
      const Best winner = warp_best(best);
      if (lane == 0)
        post(shared, round, 4 * block + of_block, warp, winner.key, winner.row, 0.0f);
#if WTS_EXACT
      const bool wins = best.key == winner.key;
      const int others = other ? NEVER : wins ? best.second : best.key;
      const int next = warp_max(others);
      if constexpr (plan::LANE_SLOTS > 0) {
        if (lane == 0)
          post(shared, round, 4 * block + of_block, plan::SWEEP_WARPS + warp, next, 0, 0.0f);
        continue;
      }
      // A lane keeps its two best rows: where these are the warp's, its next may be as good as the
      // second.
      const int third = warp_max(other            ? NEVER
                                 : others != next ? others
                                 : wins           ? next
                                                  : best.second);
      if (lane == 0) {
        post(shared, round, 4 * block + of_block, plan::SWEEP_WARPS + warp, next, 0, 0.0f);
        post(shared, round, 4 * block + of_block, 2 * plan::SWEEP_WARPS + warp, third, 0, 0.0f);
      }
#endif
    }
  }
}

}  // namespace wts
