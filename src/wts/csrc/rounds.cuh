// What all warps of a walk share: its arguments, its rounds, and which row of W is where.
#pragma once
#include "exchange.cuh"

namespace wts {

// What an exact walk reads of the unquantised head; in memory, so that captured graphs find new
// weights.
struct ExactSource {
  const Byte* weight;   // W, [VOCAB or more, RANK] in bf16
  const Byte* table;    // E, [TABLE_ROWS, RANK] in bf16, of a Markov head
  float largest_scale;                      // of rows
  float spread, growth, smallest, longest;  // how a latent's slack is made of it (wts/exact.py)
};
static_assert(sizeof(ExactSource) == 8 * plan::EXACT_SOURCE_WORDS, "as ExactHead.source makes it");

// Which batches a launch walks; of others it leaves all as it is. By this a greedy and a sampled
// plan take turns in one captured graph, as temperatures say.
enum class Turn : u32 { WTS_TURNS };

struct WalkArgs {
  const Byte* tiles;           // packed W, in the order of the plan's instruction
  const RowScale* row_scale;   // [NUM_BLOCKS * ROW_SCALE_WORDS]
  const Byte* table;           // what a token fetches: rows of TABLE_ROW_BYTES
  float* hidden_part;  // [B, K, PART], of a head that reads hidden states; written if made here
  const Byte* hidden;          // [B, K, HIDDEN] in bf16
  long long hidden_request_stride, hidden_step_stride;  // in elements
  const Byte* hidden_weight;   // [PART, HIDDEN] in bf16
  const Byte* hidden_bias;     // [PART] in bf16, or null
  const int* draft_to_target;  // [VOCAB], in a mapped plan
  const Byte* base;            // [B, K, V]
  long long base_request_stride, base_step_stride;  // in elements
  const long long* anchor;     // [B]
  long long anchor_stride;
  long long* tokens;           // [B, K]
  const float* temperatures;   // [B], in a sampled plan, or where `turn` asks for them
  long long* noise_offset;     // [1], likewise
  u64 noise_key;
  Byte* logits_out;            // [B, K, V] in the step's type, or null
  long long logits_request_stride, logits_step_stride;  // in elements
  ExchangeWord* slots;
  const Byte* state_weight;      // [3 STATE, STATE] in bf16, of a head with a state
  const Byte* projector_weight;  // [PROJECTOR_ROWS, STATE] in bf16, of a Domino head
  u64* state_slots;  // [EARLY_SLOTS, GROUPS * COLUMNS, UNITS * UNIT_WORDS], the projector's
  Status* status;
  u64* trace;
  int num_requests, num_steps;
  u32 timeout_us;
  Turn turn;
  const ExactSource* exact;  // of an exact walk: the unquantised head
  u64* exact_slots;          // [GROUPS * COLUMNS, NUM_BLOCKS], words of undecided blocks
};
static_assert(sizeof(WalkArgs) == WTS_ARGS_BYTES, "host and kernel disagree on the arguments");

// ---- time stamps, only in kernels built to be traced -------------------------------------------

enum Event { LATENT_SEEN, SWEPT, OFFERED, GATHERED, PUBLISHED, DECODED, LATENT_SENT, NUM_EVENTS };

constexpr int TRACED_ROUNDS = 64;

// Into args.trace[NUM_BLOCKS][TRACED_ROUNDS][NUM_EVENTS].
__device__ __forceinline__ void mark(const WalkArgs& args, int round, Event event) {
  if constexpr (plan::TRACE) {
    if ((threadIdx.x & 31) == 0 && round < TRACED_ROUNDS) {
      const long long slot =
          (static_cast<long long>(blockIdx.x) * TRACED_ROUNDS + round) * NUM_EVENTS + event;
      args.trace[slot] = clock64();
    }
  }
}

// ---- arrivals ----------------------------------------------------------------------------------

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

// ---- rounds ------------------------------------------------------------------------------------

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
#if WTS_EXACT
// In an exact walk: the two best candidates of each lane of a sweeping warp, for a crowded step
// (exact.cuh).
static_assert(plan::LANE_SLOTS == 0 || plan::COLUMN_BLOCKS == 1,
              "a lane holds rows of one request");
__device__ __forceinline__ int2* lane_candidates(Shared& shared, int round, int warp) {
  const int slot = round % (plan::LANE_SLOTS > 0 ? plan::LANE_SLOTS : 1);
  return shared.lane_candidate + (slot * plan::SWEEP_WARPS + warp) * 32;
}
#endif

// Latents of LATENT_SLOTS rounds are held, those being swept and those to come.
__device__ __forceinline__ int latent_slot(int round) { return round % plan::LATENT_SLOTS; }
__device__ __forceinline__ u32 latent_parity(int round) {
  return (round / plan::LATENT_SLOTS) & 1;
}

// What an exact walk adds to a latent's sums, in levels.
__device__ __forceinline__ float slack_of([[maybe_unused]] const Shared& shared,
                                          [[maybe_unused]] int slot, [[maybe_unused]] int column) {
#if WTS_EXACT
  return shared.latent_slack[slot][column];
#else
  return 0.0f;
#endif
}

// ---- which tile, where -------------------------------------------------------------------------

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

// Staged base logits start at a 16-byte boundary at or before the shard's first one, so that whole
// pieces can be copied. An odd element of two bytes is shifted by one once it has landed.
__device__ __forceinline__ u32 base_misalignment(const WalkArgs& args, int request, int step) {
  const u32 element = static_cast<u32>(request) * static_cast<u32>(args.base_request_stride) +
                      static_cast<u32>(step) * static_cast<u32>(args.base_step_stride) +
                      blockIdx.x * plan::ROWS;
  return (static_cast<u32>(reinterpret_cast<u64>(args.base)) + element * BASE_BYTES) & 15u;
}

// Columns of a block of the matrix instruction are two a request; a lane holds the results of one
// request of each block, or, where requests are fewer, of one request for one of several tiles.
constexpr int BLOCK_REQUESTS = plan::COLUMNS < 4 ? plan::COLUMNS : 4;
__device__ __forceinline__ int lane_column(int lane, int block) {
  return 4 * block + (lane & 3) % BLOCK_REQUESTS;
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

// ---- weights -----------------------------------------------------------------------------------

// The packed tiles of the warps that multiply together: one warp, or a warpgroup.
constexpr int OPERAND_BYTES = plan::OPERAND_WARPS * plan::FRAGMENT_BYTES;  // of one (tile, slab)
__device__ __forceinline__ const Byte* packed_tiles(const WalkArgs& args, int unit) {
  constexpr int UNITS = plan::SWEEP_WARPS / plan::OPERAND_WARPS;
  const long long first = static_cast<long long>(blockIdx.x) * UNITS + unit;
  return args.tiles + first * (plan::OPERAND_WARPS * plan::WARP_TILES * plan::TILE_BYTES);
}

// Weights of a warp that stay in registers for the whole walk.
using ResidentWeights = u32[plan::REGISTER_FRAGMENTS][4];

}  // namespace wts
