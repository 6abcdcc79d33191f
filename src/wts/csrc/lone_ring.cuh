// What a warp that multiplies alone streams from L2: fragments, in the order of their use, through a ring
// in shared memory of its own. A place is filled anew once what it held has been multiplied, so copies
// are under way through the whole sweep and while blocks exchange.
#pragma once
#include "rounds.cuh"

namespace wts {

constexpr int RING = plan::RING_LENGTH;      // places
constexpr int UNIT = plan::COPIED_TOGETHER;  // fragments of a place
constexpr int STREAMED_UNITS =
    plan::STREAMED_FRAGMENTS > 0 ? plan::STREAMED_FRAGMENTS / UNIT : RING;
static_assert(plan::WARPGROUPS || plan::STREAMED_FRAGMENTS % (UNIT * RING) == 0,
              "a fragment has the same place in every sweep");

// By copies of each lane: it asks for, waits for and reads its own 16 bytes of a fragment, so nothing else
// must agree.
struct LaneRing {
  u32 place;          // shared address of its bytes of the first one
  const Byte* next;   // its bytes of the fragment to be asked for
  // Distance of two fragments, hidden from the compiler: it would compute the address of each of them
  // before the sweep, and spill them.
  int distance;

  __device__ __forceinline__ LaneRing(const WalkArgs& args, const Shared& shared, int warp, int lane,
                                      int first)
      : place(shared_address(shared.ring[warp * RING]) + lane * 16),
        next(packed_tiles(args, warp) + lane * 16 + first * plan::FRAGMENT_BYTES),
        distance(plan::FRAGMENT_BYTES + (args.num_requests >> 30)) {}

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

  // Waits for the oldest that was not waited for (at least the queue's have been read since), and reads
  // it.
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

  __device__ __forceinline__ void begin(const WalkArgs& args, Shared& shared) {
    LaneRing ring(args, shared, warp_index(), lane_index(), 0);
#pragma unroll
    for (int index = 0; index < RING; ++index) ring.ask(index);
  }
  __device__ __forceinline__ LaneRing sweep(const WalkArgs& args, Shared& shared, int warp, int lane) {
    return {args, shared, warp, lane, RING};
  }
  __device__ __forceinline__ void end(Shared&) { wait_copies<0>(); }
};

// By bulk copies of several fragments, which L2 serves faster: one lane asks for them, each place has a
// barrier.
struct BulkRing {
  Shared& shared;
  int warp, lane;
  u32 place;         // shared address of the lane's bytes of the first fragment
  const Byte* next;  // the unit to be asked for
  int distance;      // of two units, hidden as above
  u32 phase;         // of the barriers at the first use of a place in this sweep

  __device__ __forceinline__ BulkRing(const WalkArgs& args, Shared& shared, int warp, int lane,
                                      int first, u32 phase)
      : shared(shared),
        warp(warp),
        lane(lane),
        place(shared_address(shared.ring[warp * RING]) + lane * 16),
        next(packed_tiles(args, warp) + first * plan::RING_UNIT_BYTES),
        distance(plan::RING_UNIT_BYTES + (args.num_requests >> 30)),
        phase(phase) {}

  __device__ __forceinline__ void ask(int unit) {
    if (lane == 0) {
      Barrier* landed = &shared.ring_landed[warp][unit % RING];
      barrier_arrive_expect(landed, plan::RING_UNIT_BYTES);
      bulk_copy(shared.ring[warp * RING + unit % RING], next, plan::RING_UNIT_BYTES, landed);
    }
    next += (unit + 1) % STREAMED_UNITS == 0
                ? distance - STREAMED_UNITS * plan::RING_UNIT_BYTES
                : distance;
  }

  __device__ __forceinline__ void load(u32 (&held)[4], int index, int after) const {
    const int unit = index / UNIT;
    if (index % UNIT == 0)
      barrier_wait(&shared.ring_landed[warp][unit % RING], (phase + unit / RING) & 1u);
    load_shared_16(held, place + (unit % RING * UNIT + index % UNIT) * plan::FRAGMENT_BYTES + after);
  }

  // When a unit's last fragment has been multiplied, all lanes have read it.
  __device__ __forceinline__ void used(int index) {
    if (index % UNIT != UNIT - 1) return;
    __syncwarp();
    ask(index / UNIT + RING);
  }
};

struct BulkSweeps {
  using View = BulkRing;
  static constexpr u32 USES = STREAMED_UNITS / RING;  // of a place, in a sweep
  u32 done = 0;

  __device__ __forceinline__ void begin(const WalkArgs& args, Shared& shared) {
    BulkRing ring(args, shared, warp_index(), lane_index(), 0, 0);
#pragma unroll
    for (int unit = 0; unit < RING; ++unit) ring.ask(unit);
  }
  __device__ __forceinline__ BulkRing sweep(const WalkArgs& args, Shared& shared, int warp, int lane) {
    return {args, shared, warp, lane, RING % STREAMED_UNITS, USES * done++};
  }
  // What was asked for a sweep that does not come must land before the block ends.
  __device__ __forceinline__ void end(Shared& shared) {
#pragma unroll 1
    for (int place = 0; place < RING; ++place)
      barrier_wait(&shared.ring_landed[warp_index()][place], USES * done & 1u);
  }
};

template <bool BULK>
struct SweepsOf {
  using Type = LaneSweeps;
};
template <>
struct SweepsOf<true> {
  using Type = BulkSweeps;
};
using Ring = SweepsOf<(UNIT > 1)>::Type;

}  // namespace wts
