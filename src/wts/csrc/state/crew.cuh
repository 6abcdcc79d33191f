// Warps that do a piece of work together.
#pragma once
#include "ptx/barrier.cuh"
#include "ptx/base.cuh"

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

}  // namespace wts
