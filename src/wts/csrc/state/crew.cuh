// Warps that do a piece of work together.
#pragma once
#include "block.cuh"
#include "ptx/barrier.cuh"

namespace wts {

template <int MEMBERS_>
struct Crew {
  static constexpr int MEMBERS = MEMBERS_, LANES = 32 * MEMBERS_;
  int member, barrier;

  __device__ __forceinline__ int lane() const { return member * 32 + lane_index(); }
  __device__ __forceinline__ void sync() const {
    if constexpr (MEMBERS == 1) {
      __syncwarp();
    } else {
      named_barrier(barrier, LANES);
    }
  }
};

// The service warps that make a latent together; their barriers are behind the warpgroups'.
using Team = Crew<TEAM>;
__device__ __forceinline__ Team team_of(const Block& block) {
  return {block.member(), plan::SWEEP_WARPS / 4 + 1 + block.team()};
}

}  // namespace wts
