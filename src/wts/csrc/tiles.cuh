// Which tile, fragment and row of W is where, and which of them a lane judges.
#pragma once
#include "block.cuh"

namespace wts {

// Four column pairs of a product serve COLUMNS requests (of bf16 weights up to eight: request 4 + j
// is the odd column of pair j, which without it repeats the even one); the rest let several tiles
// share one accumulator: tile v of a sharing set sees the latent only in the pairs of variant v.
constexpr int SHARING = plan::TILES_PER_ACCUMULATOR;
constexpr int ACCUMULATORS = (plan::WARP_TILES + SHARING - 1) / SHARING;
// The last tiles of all warps may be multiplied together, by tcgen05; the others are a warp's own.
constexpr int ASYNC_TILES = plan::TENSOR_TILES + plan::MATRIX_TILES;
constexpr int LONE_TILES = plan::WARP_TILES - ASYNC_TILES;
constexpr int LONE_ACCUMULATORS = (LONE_TILES + SHARING - 1) / SHARING;
static_assert(ASYNC_TILES == 0 || LONE_TILES % SHARING == 0,
              "tiles that share an accumulator are multiplied in the same way");
constexpr int LIVE = (LONE_ACCUMULATORS + plan::PHASES - 1) / plan::PHASES;  // at once
constexpr int WHOLE_TILES = plan::WARP_TILES & ~1;  // in pairs of a warp's own
constexpr int SLABS = plan::SLABS;
constexpr int FRAGMENTS = LONE_TILES * SLABS;
constexpr int AWAY_FRAGMENTS = plan::STREAMED_FRAGMENTS + plan::SHARED_FRAGMENTS;
static_assert(plan::WARPGROUPS || SHARING * plan::COLUMNS <= (plan::QUANTISED ? 4 : 8),
              "an accumulator has four column pairs");
static_assert(SLABS % 2 == 0, "ranks are multiples of 64");

// A fragment is one slab of one tile: 16 bytes of each lane, the operand of one matrix instruction.
// Positions count the fragments of a warp in the order in which a sweep uses them.
// One is in a register, or away: streamed from L2 in every sweep, or in shared memory.
__device__ constexpr int fragment_place_table[] = {WTS_FRAGMENT_PLACE};
// Register index, or -1 - how many are away.
__device__ constexpr int fragment_place(int position) {
  return fragment_place_table[position];
}

__device__ constexpr int away_place_table[] = {WTS_AWAY_PLACE};
__device__ constexpr int away_place(int number) {  // streamed index, or STREAMED + shared index
  return away_place_table[number];
}

// Position of a tile's slab where warps multiply alone: phase after phase, in each slab after slab,
// in each the first tile of every live accumulator, then the second ones; the last accumulator may
// have fewer tiles.
__device__ constexpr int fragment_position(int phase, int slab, int variant, int live) {
  constexpr int LAST_TILES = LONE_TILES - (LONE_ACCUMULATORS - 1) * SHARING;
  const bool last = phase == plan::PHASES - 1;
  const int accumulators = last ? LONE_ACCUMULATORS - phase * LIVE : LIVE;
  const int tiles = last ? LONE_TILES - phase * LIVE * SHARING : LIVE * SHARING;
  const int absent = last && variant > LAST_TILES ? variant - LAST_TILES : 0;
  return phase * LIVE * SHARING * SLABS + slab * tiles + variant * accumulators + live - absent;
}

__device__ constexpr int fragment_source_table[] = {WTS_FRAGMENT_SOURCE};
__device__ constexpr int fragment_source(int position) {  // offset among the warp's packed tiles
  return fragment_source_table[position];
}

__device__ constexpr int away_source_table[] = {WTS_AWAY_SOURCE};
__device__ constexpr int away_source(int place) {  // the same, of a fragment that is away
  return away_source_table[place];
}

// Columns of a block of the matrix instruction are two a request; a lane holds the results of one
// request of each block, or, where requests are fewer, of one request for one of several tiles.
constexpr int BLOCK_REQUESTS = plan::COLUMNS < 4 ? plan::COLUMNS : 4;
__device__ __forceinline__ int lane_column(int lane, int nth) {
  return 4 * nth + (lane & 3) % BLOCK_REQUESTS;
}

// A lane's view of the shard: its rows of accumulator a are row(a) and row(a) + 1. Warps own whole
// pairs of tiles, and where their number is odd, half of a pair behind all others' (pack.py).
struct LaneRows {
  int variant;    // of the tiles that share an accumulator, this lane's
  int even, odd;  // row of the warp's tile `variant`, and of the one after it
  int last;       // of the odd tile

  __device__ __forceinline__ LaneRows(int warp, int lane) {
    const int in_pair = 4 * (lane >> 2);
    variant = (lane & 3) / BLOCK_REQUESTS;
    even = warp * (WHOLE_TILES * 16) + in_pair + tile_offset(variant);
    odd = warp * (WHOLE_TILES * 16) + in_pair + tile_offset(variant + 1);
    last = plan::SWEEP_WARPS * WHOLE_TILES * 16 + in_pair + tile_offset(warp);
  }

  __device__ __forceinline__ int row(int accumulator) const {
    const int tile = accumulator * SHARING;
    const int row = (tile & 1 ? odd : even) + 32 * (tile >> 1);
    if (tile + SHARING <= WHOLE_TILES) return row;
    // An absent tile gets some row: nothing comes of it.
    const int other = WHOLE_TILES < plan::WARP_TILES ? last : even;
    return tile + variant < WHOLE_TILES ? row : other;
  }

  // Rows between the first tile of some pairs and another of them.
  __device__ __forceinline__ static int tile_offset(int tile) {
    return 32 * (tile >> 1) + 2 * (tile & 1);
  }
};

// Column pairs without a tile of an accumulator must not win.
__device__ __forceinline__ bool tile_present(int lane, int accumulator) {
  const int variants = min(SHARING, plan::WARP_TILES - accumulator * SHARING);
  return variants * BLOCK_REQUESTS == 4 || (lane & 3) < variants * BLOCK_REQUESTS;
}

// What is judged at once: some accumulators, and all blocks of columns of each.
struct Judged {
  int first;
  __device__ __forceinline__ int accumulator(int i) const {
    return first + i / plan::COLUMN_BLOCKS;
  }
  __device__ __forceinline__ int nth(int i) const { return i % plan::COLUMN_BLOCKS; }
  __device__ __forceinline__ bool exists(int i) const {
    return accumulator(i) < (first < LONE_ACCUMULATORS ? LONE_ACCUMULATORS : ACCUMULATORS);
  }
};

// The packed tiles of the warps that multiply together: one warp, or a warpgroup.
constexpr int OPERAND_BYTES = plan::OPERAND_WARPS * plan::FRAGMENT_BYTES;  // of one (tile, slab)
__device__ __forceinline__ const Byte* packed_tiles(const Block& block, int unit) {
  constexpr int UNITS = plan::SWEEP_WARPS / plan::OPERAND_WARPS;
  const long long first = static_cast<long long>(blockIdx.x) * UNITS + unit;
  return block.args.tiles + first * (plan::OPERAND_WARPS * plan::WARP_TILES * plan::TILE_BYTES);
}

// Weights of a warp that stay in registers for the whole walk.
using ResidentWeights = u32[plan::REGISTER_FRAGMENTS][4];

}  // namespace wts
