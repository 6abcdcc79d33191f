// Rounds, each of which is a step of a group, and arrivals at a block's barriers.
#pragma once
#include "plan_constants.h"
#include "ptx/barrier.cuh"
#include "ptx/base.cuh"

namespace wts {

// A warp's one arrival: what its lanes wrote before is seen by whoever waits, since __syncwarp
// orders it before the release of lane 0. A tool that does not follow that order is given a build
// in which every lane arrives for itself.
#ifndef WTS_EACH_LANE_ARRIVES
#define WTS_EACH_LANE_ARRIVES 0
#endif
constexpr u32 WARP_ARRIVALS = WTS_EACH_LANE_ARRIVES ? 32 : 1;

__device__ __forceinline__ void warp_arrive(u64* barrier) {
  __syncwarp();
  if (WTS_EACH_LANE_ARRIVES || lane_index() == 0) barrier_arrive(barrier);
}

// A round is one (step, group); all that depends on it is worked out anew rather than kept, because
// registers are few.
__device__ __forceinline__ int round_step(int round) { return round / plan::GROUPS; }
__device__ __forceinline__ int round_group(int round) { return round % plan::GROUPS; }
__device__ __forceinline__ int round_slot(int round) { return round % plan::BASE_SLOTS; }
// Phase, modulo 2, of the slot's barrier in this round: each use of the slot is one phase.
__device__ __forceinline__ u32 round_slot_parity(int round) {
  return (round / plan::BASE_SLOTS) & 1;
}

// Where a round's candidates lie.
__device__ __forceinline__ int candidate_slot(int round) { return round % plan::CANDIDATE_SLOTS; }

// Latents of LATENT_SLOTS rounds are held, those being swept and those to come.
__device__ __forceinline__ int latent_slot(int round) { return round % plan::LATENT_SLOTS; }
__device__ __forceinline__ u32 latent_parity(int round) {
  return (round / plan::LATENT_SLOTS) & 1;
}

// A group's requests are its columns.
__device__ __forceinline__ int request_in(int group, int column) {
  return group * plan::COLUMNS + column;
}
__device__ __forceinline__ int request_of(int round, int column) {
  return request_in(round_group(round), column);
}

}  // namespace wts
