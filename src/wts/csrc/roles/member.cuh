// Who a service warp is among those that serve a group's requests.
#pragma once
#include "args.cuh"
#include "exchange/slots.cuh"
#include "heads/runs.cuh"
#include "plan_constants.h"
#include "ptx/base.cuh"
#include "shared.cuh"
#include "state/crew.cuh"
#include "teams.cuh"

namespace wts {

// What each service warp has.
struct ServiceMember {
  const WalkArgs& args;
  Shared& shared;

  // Few registers: what is cheap to work out again is not kept.
  __device__ __forceinline__ int service() const { return warp_index() - plan::SWEEP_WARPS; }
  __device__ __forceinline__ int team() const { return service() / TEAM; }
  __device__ __forceinline__ int column(int served) const { return team() * SERVED + served; }
  // Of a team that makes a latent, one leads: it does all the rest.
  __device__ __forceinline__ int member() const { return service() % TEAM; }
  __device__ __forceinline__ bool leads() const { return member() == 0; }
  __device__ __forceinline__ int team_lane() const { return member() * 32 + lane_index(); }
  __device__ __forceinline__ Crew<TEAM> crew() const {
    return {member(), plan::SWEEP_WARPS / 4 + 1 + team()};  // barriers behind the warpgroups'
  }
  __device__ __forceinline__ void team_sync() const { crew().sync(); }
  __device__ __forceinline__ int request(int group, int column) const {
    return group * plan::COLUMNS + column;
  }
  __device__ __forceinline__ u32 sequence_of(int step) const {
    return sequence_of_step(shared, step);
  }

  __device__ __forceinline__ const Byte* table_row(int token) const {
    return wts::table_row(args, token);
  }
};

}  // namespace wts
