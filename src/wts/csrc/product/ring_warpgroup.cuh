// What a warpgroup streams from L2: half tiles, in the order of their use, through a ring in shared
// memory. A half tile's copy begins when the last of the four warps has read what was in its place,
// so copies are under way through the whole sweep and while blocks exchange.
#pragma once
#include "block.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "tiles.cuh"

namespace wts {

constexpr int UNIT_SLABS = SLABS / 2;
constexpr int UNIT_FRAGMENTS = UNIT_SLABS;  // of each warp
constexpr int UNIT_BYTES = UNIT_FRAGMENTS * OPERAND_BYTES;
constexpr int STREAMED_UNITS = plan::STREAMED_FRAGMENTS / UNIT_FRAGMENTS;
constexpr int RING = plan::RING_LENGTH;
static_assert(STREAMED_UNITS == 0 || STREAMED_UNITS >= RING,
              "a ring holds some of what is streamed");

// The uses of the ring, one after the other through all sweeps: the next one to be multiplied, and
// the oldest whose place is not free yet. Both modulo 2 RING: the place, and the phase of its
// barrier.
struct Ring {
  int next = 0, oldest = 0;

  __device__ __forceinline__ static int place_of(int turn) {
    return turn >= RING ? turn - RING : turn;
  }
  __device__ __forceinline__ static int after(int turn) {
    return turn + 1 == 2 * RING ? 0 : turn + 1;
  }

  __device__ __forceinline__ static void copy(const Block& block, int warpgroup, int place,
                                              int unit) {
    u64* landed = &block.shared.ring_landed[warpgroup][place];
    barrier_arrive_expect(landed, UNIT_BYTES);
    bulk_copy(block.shared.ring[warpgroup * RING + place],
              packed_tiles(block, warpgroup) + away_source(unit * UNIT_FRAGMENTS), UNIT_BYTES,
              landed);
  }

  __device__ __forceinline__ static bool asks() {  // one lane of a warpgroup
    return threadIdx.x % (plan::OPERAND_WARPS * 32) == 0;
  }

  // Asks for the first units.
  __device__ __forceinline__ void begin(const Block& block) {
#pragma unroll
    for (int unit = 0; unit < RING; ++unit)
      if (asks()) copy(block, warp_index() / plan::OPERAND_WARPS, unit, unit);
  }

  // Waits until the next unit has landed, and says in which place.
  __device__ __forceinline__ int take(const Block& block, int warpgroup) {
    const int place = place_of(next);
    barrier_wait(&block.shared.ring_landed[warpgroup][place], next >= RING ? 1u : 0u);
    next = after(next);
    return place;
  }

  // The warp has read the oldest use, a sweep's `unit`. The last one of the four has its place
  // filled anew.
  __device__ __forceinline__ void release(const Block& block, int warpgroup, int lane, int unit) {
    const int place = place_of(oldest);
    if (lane == 0) {
      const u32 before = count_shared(&block.shared.ring_readers[warpgroup][place]);
      if (before % plan::OPERAND_WARPS == plan::OPERAND_WARPS - 1)
        copy(block, warpgroup, place, (unit + RING) % STREAMED_UNITS);
    }
    oldest = after(oldest);
  }

  // What was asked for a sweep that does not come must land before the block ends.
  __device__ __forceinline__ void end(const Block& block) {
#pragma unroll 1
    for (int unit = 0; unit < RING; ++unit)
      if (asks()) take(block, warp_index() / plan::OPERAND_WARPS);
  }
};

}  // namespace wts
