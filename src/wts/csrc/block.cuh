// A thread's view of its block: what the launch was given, what is in the block's shared memory,
// and who asks. Functions get a reference: with a copy each the compiler orders instructions anew.
#pragma once
#include "args.cuh"
#include "plan_constants.h"
#include "ptx/base.cuh"
#include "shared.cuh"
#include "teams.cuh"

namespace wts {

struct Block {
  const WalkArgs& args;
  Shared& shared;

  // The shard: its first row, and how many rows of it are inside the vocabulary.
  __device__ __forceinline__ static int first_row() {
    return static_cast<int>(blockIdx.x) * plan::ROWS;
  }
  __device__ __forceinline__ static int rows_here() {
    return min(plan::ROWS, max(0, plan::VOCAB - first_row()));
  }

  // What a token fetches, and the id that the caller knows it by.
  __device__ __forceinline__ const Byte* table_row(int token) const {
    return args.table + static_cast<long long>(token) * plan::TABLE_ROW_BYTES;
  }
  __device__ __forceinline__ int target_of(int token) const {
    if constexpr (plan::MAPPED) return __ldg(args.draft_to_target + token);
    return token;
  }

  // The exchange of a step: one after the other since the workspace was cleared.
  __device__ __forceinline__ u32 sequence_of(int step) const {
    return *reinterpret_cast<const volatile u32*>(&shared.sequence) + static_cast<u32>(step);
  }

  // A service warp, its team and the columns that it serves. Few registers: what is cheap to work
  // out again is not kept.
  __device__ __forceinline__ static int service() { return warp_index() - plan::SWEEP_WARPS; }
  __device__ __forceinline__ static int team() { return service() / TEAM; }
  __device__ __forceinline__ static int column(int served) { return team() * SERVED + served; }
  // Of a team that makes a latent, one leads: it does all the rest.
  __device__ __forceinline__ static int member() { return service() % TEAM; }
  __device__ __forceinline__ static bool leads() { return member() == 0; }
  __device__ __forceinline__ static int team_lane() { return member() * 32 + lane_index(); }
};

}  // namespace wts
