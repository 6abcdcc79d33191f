// What a warp that multiplies alone streams from L2: fragments, in the order of their use, through
// a ring in shared memory of its own. A place is filled anew once what it held has been multiplied,
// so copies are under way through the whole sweep and while blocks exchange.
#pragma once
#include "rounds.cuh"

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

  __device__ __forceinline__ LaneRing(const WalkArgs& args, const Shared& shared, int warp,
                                      int lane, int first)
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

  __device__ __forceinline__ void begin(const WalkArgs& args, Shared& shared) {
    LaneRing ring(args, shared, warp_index(), lane_index(), 0);
#pragma unroll
    for (int index = 0; index < RING; ++index) ring.ask(index);
  }
  __device__ __forceinline__ LaneRing sweep(const WalkArgs& args, Shared& shared, int warp,
                                            int lane) {
    return {args, shared, warp, lane, RING};
  }
  __device__ __forceinline__ void end(Shared&) { wait_copies<0>(); }
};

// By bulk copies of several fragments: one lane asks for them, each place has a barrier. Of one
// greedy request they were slower than lanes' copies (docs/measured.md); more were not compared.
// Each place is used equally often in a sweep, so some copies are a fragment shorter.
constexpr int STREAMED = plan::STREAMED_FRAGMENTS > 0 ? plan::STREAMED_FRAGMENTS : 1;
constexpr int STREAMED_UNITS = RING * ((STREAMED + RING * UNIT - 1) / (RING * UNIT));

static_assert(!BULK || (RING - 1) * (STREAMED / STREAMED_UNITS) >= plan::QUEUE_DEPTH - 1 ||
                  plan::STREAMED_FRAGMENTS == 0,
              "what is loaded ahead waits for no place that it keeps");

// The first fragment of a unit, and the unit of a fragment.
__device__ constexpr int unit_first(int unit) { return unit * STREAMED / STREAMED_UNITS; }
__device__ constexpr int unit_of(int index) {
  return ((index + 1) * STREAMED_UNITS - 1) / STREAMED;
}

struct BulkRing {
  Shared& shared;
  int warp, lane;
  u32 place;         // shared address of the lane's bytes of the first fragment
  const Byte* next;  // the unit to be asked for
  int zero;          // hidden from the compiler, as above
  u32 phase;         // of the barriers at the first use of a place in this sweep

  __device__ __forceinline__ BulkRing(const WalkArgs& args, Shared& shared, int warp, int lane,
                                      int first, u32 phase)
      : shared(shared),
        warp(warp),
        lane(lane),
        place(shared_address(shared.ring[warp * RING]) + lane * 16),
        next(packed_tiles(args, warp) + unit_first(first) * plan::FRAGMENT_BYTES),
        zero(args.num_requests >> 30),
        phase(phase) {}

  // Asks for a unit of this sweep, or of the one that follows.
  __device__ __forceinline__ void ask(int number) {
    const int unit = number % STREAMED_UNITS, after = (unit + 1) % STREAMED_UNITS;
    const int bytes = (unit_first(unit + 1) - unit_first(unit)) * plan::FRAGMENT_BYTES;
    if (lane == 0) {
      Barrier* landed = &shared.ring_landed[warp][unit % RING];
      barrier_arrive_expect(landed, bytes);
      bulk_copy(shared.ring[warp * RING + unit % RING], next, bytes, landed);
    }
    next += (unit_first(after) - unit_first(unit)) * plan::FRAGMENT_BYTES + zero;
  }

  __device__ __forceinline__ void load(u32 (&held)[4], int index, int after) const {
    const int unit = unit_of(index), within = index - unit_first(unit);
    if (within == 0)
      barrier_wait(&shared.ring_landed[warp][unit % RING], (phase + unit / RING) & 1u);
    load_shared_16(held, place + (unit % RING * UNIT + within) * plan::FRAGMENT_BYTES + after);
  }

  // When a unit's last fragment has been multiplied, all lanes have read it.
  __device__ __forceinline__ void used(int index) {
    const int unit = unit_of(index);
    if (index + 1 != unit_first(unit + 1)) return;
    __syncwarp();
    ask(unit + RING);
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
  __device__ __forceinline__ BulkRing sweep(const WalkArgs& args, Shared& shared, int warp,
                                            int lane) {
    return {args, shared, warp, lane, RING % STREAMED_UNITS, USES * done++};
  }
  // What was asked for a sweep that does not come must land before the block ends.
  __device__ __forceinline__ void end(Shared& shared) {
#pragma unroll 1
    for (int place = 0; place < RING; ++place)
      barrier_wait(&shared.ring_landed[warp_index()][place], USES * done & 1u);
  }
};

template <bool IN_BULK>
struct SweepsOf {
  using Type = LaneSweeps;
};
template <>
struct SweepsOf<true> {
  using Type = BulkSweeps;
};
using Ring = SweepsOf<BULK && (plan::STREAMED_FRAGMENTS > 0)>::Type;

}  // namespace wts
