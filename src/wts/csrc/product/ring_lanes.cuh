// What a warp that multiplies alone streams from L2: fragments, in the order of their use, through
// a ring in shared memory of its own. A place is filled anew once what it held has been multiplied,
// so copies are under way through the whole sweep and while blocks exchange. Here by copies of each
// lane; ring_bulk.cuh has others.
#pragma once
#include "block.cuh"
#include "ptx/memory.cuh"
#include "tiles.cuh"

namespace wts {

constexpr int RING = plan::RING_LENGTH;      // places
constexpr int UNIT = plan::COPIED_TOGETHER;  // fragments that a place has room for
constexpr bool BULK = UNIT > 1;
static_assert(plan::WARPGROUPS || BULK || plan::STREAMED_FRAGMENTS % RING == 0,
              "a fragment has the same place in every sweep");

// By copies of each lane: it asks for, waits for and reads its own 16 bytes of a fragment, so
// nothing else must agree.
struct LaneRing {
  u32 place;          // shared address of its bytes of the first one
  const Byte* next;   // its bytes of the fragment to be asked for
  // Distance of two fragments, hidden from the compiler: it would compute the address of each of
  // them before the sweep, and spill them.
  int distance;

  __device__ __forceinline__ LaneRing(const Block& block, int warp, int lane, int first)
      : place(shared_address(block.shared.ring[warp * RING]) + lane * 16),
        next(packed_tiles(block, warp) + lane * 16 + first * plan::FRAGMENT_BYTES),
        distance(plan::FRAGMENT_BYTES + (block.args.num_requests >> 30)) {}

  __device__ __forceinline__ u32 at(int index) const {
    return place + index % RING * plan::FRAGMENT_BYTES;
  }

  // Asks for the next streamed fragment: of this sweep, or, past its end, of the one that follows.
  __device__ __forceinline__ void ask(int index) {
    copy_16(at(index), next);
    commit_copies();
    next += index + 1 == plan::STREAMED_FRAGMENTS
                ? distance - plan::STREAMED_FRAGMENTS * plan::FRAGMENT_BYTES
                : distance;
  }

  // Waits for the oldest that was not waited for (at least the queue's have been read since), and
  // reads it.
  __device__ __forceinline__ void load(u32 (&held)[4], int index, int after) const {
    wait_copies<RING - plan::QUEUE_DEPTH>();
    load_shared_16(held, at(index) + after);
  }

  // A fragment has been multiplied.
  __device__ __forceinline__ void used(int index) { ask(index + RING); }
};

// Its sweeps, one after the other: asked for before the first, and landed after the last one.
struct LaneSweeps {
  using View = LaneRing;

  __device__ __forceinline__ void begin(const Block& block) {
    LaneRing ring(block, warp_index(), lane_index(), 0);
#pragma unroll
    for (int index = 0; index < RING; ++index) ring.ask(index);
  }
  __device__ __forceinline__ LaneRing sweep(const Block& block, int warp, int lane) {
    return {block, warp, lane, RING};
  }
  __device__ __forceinline__ void end(const Block&) { wait_copies<0>(); }
};

}  // namespace wts
