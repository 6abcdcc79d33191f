// The ring of a warp that multiplies alone (ring_lanes.cuh), filled by bulk copies.
#pragma once
#include "block.cuh"
#include "product/ring_lanes.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "tiles.cuh"

namespace wts {

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
  Block block;
  int warp, lane;
  u32 place;         // shared address of the lane's bytes of the first fragment
  const Byte* next;  // the unit to be asked for
  int zero;          // hidden from the compiler, as in ring_lanes.cuh
  u32 phase;         // of the barriers at the first use of a place in this sweep

  __device__ __forceinline__ BulkRing(const Block& block, int warp, int lane, int first, u32 phase)
      : block(block),
        warp(warp),
        lane(lane),
        place(shared_address(block.shared.ring[warp * RING]) + lane * 16),
        next(packed_tiles(block, warp) + unit_first(first) * plan::FRAGMENT_BYTES),
        zero(block.args.num_requests >> 30),
        phase(phase) {}

  // Asks for a unit of this sweep, or of the one that follows.
  __device__ __forceinline__ void ask(int number) {
    const int unit = number % STREAMED_UNITS, after = (unit + 1) % STREAMED_UNITS;
    const int bytes = (unit_first(unit + 1) - unit_first(unit)) * plan::FRAGMENT_BYTES;
    if (lane == 0) {
      Barrier* landed = &block.shared.ring_landed[warp][unit % RING];
      barrier_arrive_expect(landed, bytes);
      bulk_copy(block.shared.ring[warp * RING + unit % RING], next, bytes, landed);
    }
    next += (unit_first(after) - unit_first(unit)) * plan::FRAGMENT_BYTES + zero;
  }

  __device__ __forceinline__ void load(u32 (&held)[4], int index, int after) const {
    const int unit = unit_of(index), within = index - unit_first(unit);
    if (within == 0)
      barrier_wait(&block.shared.ring_landed[warp][unit % RING], (phase + unit / RING) & 1u);
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

  __device__ __forceinline__ void begin(const Block& block) {
    BulkRing ring(block, warp_index(), lane_index(), 0, 0);
#pragma unroll
    for (int unit = 0; unit < RING; ++unit) ring.ask(unit);
  }
  __device__ __forceinline__ BulkRing sweep(const Block& block, int warp, int lane) {
    return {block, warp, lane, RING % STREAMED_UNITS, USES * done++};
  }
  // What was asked for a sweep that does not come must land before the block ends.
  __device__ __forceinline__ void end(const Block& block) {
#pragma unroll 1
    for (int place = 0; place < RING; ++place)
      barrier_wait(&block.shared.ring_landed[warp_index()][place], USES * done & 1u);
  }
};

}  // namespace wts
