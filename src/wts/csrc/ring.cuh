// What a warpgroup streams from L2: half tiles, in the order of their use, through a ring in shared
// memory. A half tile's copy begins when the last of the four warps has read what was in its place, so
// copies are under way through the whole sweep and while blocks exchange.
#pragma once
#include "rounds.cuh"

namespace wts {

constexpr int UNIT_SLABS = SLABS / 2;
constexpr int UNIT_FRAGMENTS = UNIT_SLABS;  // of each warp
constexpr int UNIT_BYTES = UNIT_FRAGMENTS * OPERAND_BYTES;
constexpr int STREAMED_UNITS = plan::WARPGROUPS ? plan::STREAMED_FRAGMENTS / UNIT_FRAGMENTS : 0;
constexpr int RING = plan::RING_UNITS > 0 ? plan::RING_UNITS : 1;
static_assert(STREAMED_UNITS == 0 || STREAMED_UNITS >= RING, "a ring holds some of what is streamed");

// A streamed unit is the s-th of each sweep; its place is that of all uses so far, modulo RING.
struct Ring {
  int uses = 0;  // in the sweeps before this one, modulo 2 RING: place and phase

  __device__ __forceinline__ int turn(int unit) const {
    const int turn = uses + unit % (2 * RING);
    return turn >= 2 * RING ? turn - 2 * RING : turn;
  }
  __device__ __forceinline__ int place(int unit) const {
    const int turn = this->turn(unit);
    return turn >= RING ? turn - RING : turn;
  }

  __device__ __forceinline__ static void copy(const WalkArgs& args, Shared& shared, int warpgroup,
                                              int place, int unit) {
    u64* landed = &shared.ring_landed[warpgroup][place];
    barrier_arrive_expect(landed, UNIT_BYTES);
    bulk_copy(shared.ring[warpgroup * RING + place],
              packed_tiles(args, warpgroup) + away_source(unit * UNIT_FRAGMENTS), UNIT_BYTES,
              landed);
  }

  // The first RING units, by one lane of a warpgroup.
  __device__ __forceinline__ static void begin(const WalkArgs& args, Shared& shared,
                                               int warpgroup) {
#pragma unroll
    for (int unit = 0; unit < RING && unit < STREAMED_UNITS; ++unit)
      copy(args, shared, warpgroup, unit, unit);
  }

  // Waits until a unit has landed.
  __device__ __forceinline__ void wait(Shared& shared, int warpgroup, int unit) const {
    barrier_wait(&shared.ring_landed[warpgroup][place(unit)], turn(unit) >= RING ? 1u : 0u);
  }

  // A lane of each warp says that its warp has read a unit; the last one has the place filled anew.
  __device__ __forceinline__ void release(const WalkArgs& args, Shared& shared, int warpgroup,
                                          int unit) const {
    const int place = this->place(unit);
    const u32 before = count_shared(&shared.ring_readers[warpgroup][place]);
    if (before % plan::OPERAND_WARPS == plan::OPERAND_WARPS - 1)
      copy(args, shared, warpgroup, place, (unit + RING) % STREAMED_UNITS);
  }

  __device__ __forceinline__ void end_sweep() {
    uses += STREAMED_UNITS % (2 * RING);
    if (uses >= 2 * RING) uses -= 2 * RING;
  }

  // What was asked for a sweep that does not come must land before the block ends.
  __device__ __forceinline__ void end_walk(Shared& shared, int warpgroup) const {
#pragma unroll 1
    for (int unit = 0; unit < RING; ++unit) wait(shared, warpgroup, unit);
  }
};

}  // namespace wts
