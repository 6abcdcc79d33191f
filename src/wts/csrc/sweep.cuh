// The sweeping warps: each holds its tiles of W for the whole walk and, once per (step, group),
// multiplies them with the latents of up to four requests and offers its best row.
#pragma once
#include "exchange.cuh"
#include "noise.cuh"

namespace wts {

struct WalkArgs {
  const Byte* tiles;           // packed W: tile after tile, in fragment order
  const float* row_scale;      // [NUM_BLOCKS * ROWS]
  const Byte* table;           // packed latents: rows of TABLE_ROW_BYTES
  const int* draft_to_target;  // [VOCAB], in a mapped plan
  const Byte* base;            // [B, K, V]
  long long base_request_stride, base_step_stride;  // in elements
  const long long* anchor;     // [B]
  long long anchor_stride;
  long long* tokens;           // [B, K]
  const float* temperatures;   // [B], in a sampled plan
  long long* noise_offset;     // [1], in a sampled plan
  u64 noise_key;
  Byte* logits_out;            // [B, K, V] in the step's type, or null
  long long logits_request_stride, logits_step_stride;  // in elements
  ExchangeWord* slots;
  Status* status;
  u64* trace;
  int num_requests, num_steps;
  u32 timeout_us;
};
static_assert(sizeof(WalkArgs) == WTS_ARGS_BYTES, "host and kernel disagree on the arguments");

// ---- time stamps, only in kernels built to be traced -------------------------------------------

enum Event { LATENT_SEEN, SWEPT, OFFERED, GATHERED, PUBLISHED, DECODED, LATENT_SENT, NUM_EVENTS };

__device__ __forceinline__ void mark(const WalkArgs& args, int step, Event event) {
  if constexpr (plan::TRACE) {
    if ((threadIdx.x & 31) == 0) {
      const long long slot = (static_cast<long long>(blockIdx.x) * 32 + step) * NUM_EVENTS + event;
      args.trace[slot] = clock64();
    }
  }
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

// ---- which tile, where -------------------------------------------------------------------------

// Four column pairs of a product serve COLUMNS requests; the rest let several tiles share one
// accumulator: tile v of a sharing set sees the latent only in the pairs of variant v.
constexpr int SHARING = plan::TILES_PER_ACCUMULATOR;
constexpr int ACCUMULATORS = (plan::WARP_TILES + SHARING - 1) / SHARING;
constexpr int LIVE = (ACCUMULATORS + plan::PHASES - 1) / plan::PHASES;  // at once
constexpr int SLABS = plan::RANK / 32;
constexpr int FRAGMENTS = plan::WARP_TILES * SLABS;
constexpr int AWAY_FRAGMENTS = plan::STREAMED_FRAGMENTS + plan::SHARED_FRAGMENTS;
static_assert(SHARING * plan::COLUMNS <= 4, "an accumulator has four column pairs");
static_assert(SLABS % 2 == 0, "ranks are multiples of 64");

// A fragment is one slab of one tile: 16 bytes of each lane, the operand of one matrix instruction.
// Positions count the fragments of a warp in the order in which a sweep uses them.
// One is in a register, or away: streamed from L2 in every sweep, or in shared memory.
__device__ constexpr int fragment_place(int position) {  // register index, or -1 - away index
  constexpr int place[] = {WTS_FRAGMENT_PLACE};
  return place[position];
}

// Position of a tile's slab: phase after phase, in each slab after slab, in each the first tile of
// every live accumulator, then the second ones; the last accumulator may have fewer tiles.
__device__ constexpr int fragment_position(int phase, int slab, int variant, int live) {
  constexpr int LAST_TILES = plan::WARP_TILES - (ACCUMULATORS - 1) * SHARING;
  const bool last = phase == plan::PHASES - 1;
  const int accumulators = last ? ACCUMULATORS - phase * LIVE : LIVE;
  const int tiles = last ? plan::WARP_TILES - phase * LIVE * SHARING : LIVE * SHARING;
  const int absent = last && variant > LAST_TILES ? variant - LAST_TILES : 0;
  return phase * LIVE * SHARING * SLABS + slab * tiles + variant * accumulators + live - absent;
}

__device__ constexpr int fragment_source(int position) {  // offset among the warp's packed tiles
  constexpr int source[] = {WTS_FRAGMENT_SOURCE};
  return source[position];
}

__device__ constexpr int away_source(int index) {
  constexpr int source[] = {WTS_AWAY_SOURCE};
  return source[index];
}

// Staged base logits start at a 16-byte boundary at or before the shard's first one, so that whole
// pieces can be copied. An odd element of two bytes is shifted by one once it has landed.
__device__ __forceinline__ u32 base_misalignment(const WalkArgs& args, int request, int step) {
  const u32 element = static_cast<u32>(request) * static_cast<u32>(args.base_request_stride) +
                      static_cast<u32>(step) * static_cast<u32>(args.base_step_stride) +
                      blockIdx.x * plan::ROWS;
  return (static_cast<u32>(reinterpret_cast<u64>(args.base)) + element * BASE_BYTES) & 15u;
}

// A lane's view of the shard: its rows of accumulator a are row(a) and row(a) + 1.
struct LaneRows {
  int even, odd;  // first row, for accumulators whose first tile is at an even / odd distance
  __device__ __forceinline__ explicit LaneRows(int warp, int lane) {
    const int column_pair = lane & 3, group_row = lane >> 2;
    const int tile = warp * plan::WARP_TILES + column_pair / plan::COLUMNS;
    even = 32 * (tile >> 1) + 4 * group_row + 2 * (tile & 1);
    odd = even + ((tile & 1) ? 30 : 2) - 16;
  }
  __device__ __forceinline__ int row(int accumulator) const {
    const int distance = accumulator * SHARING;
    return ((distance & 1) ? odd : even) + 16 * distance;
  }
};

// ---- one sweep ---------------------------------------------------------------------------------

// Weights of a warp that stay in registers for the whole walk.
using ResidentWeights = u32[plan::REGISTER_FRAGMENTS][4];

// The packed tiles of one sweeping warp of this block.
__device__ __forceinline__ const Byte* warp_tiles(const WalkArgs& args, int warp) {
  const long long first = static_cast<long long>(blockIdx.x) * plan::SWEEP_WARPS + warp;
  return args.tiles + first * (plan::WARP_TILES * plan::TILE_BYTES);
}

__device__ __forceinline__ void load_register_fragments(const WalkArgs& args,
                                                        ResidentWeights& weights) {
  const Byte* mine = warp_tiles(args, warp_index()) + lane_index() * 16;
#pragma unroll
  for (int position = 0; position < FRAGMENTS; ++position)
    if (fragment_place(position) >= 0)
      load_global_16(weights[fragment_place(position)], mine + fragment_source(position));
}

// The step logits a sampled row is drawn from, for whoever verifies the draft.
__device__ __forceinline__ void export_logits(const WalkArgs& args, int request, int step, int row,
                                              float x0, float x1) {
  const int token = static_cast<int>(blockIdx.x) * plan::ROWS + row;
  if (args.logits_out == nullptr || request >= args.num_requests) return;
  const long long at =
      request * args.logits_request_stride + step * args.logits_step_stride + token;
  if (token < plan::VOCAB) store_step_logit(args.logits_out, at, x0);
  if (token + 1 < plan::VOCAB) store_step_logit(args.logits_out, at + 1, x1);
}

// Turns the sums of one phase into step logits and offers what may win.
__device__ __forceinline__ void offer_phase(const WalkArgs& args, Shared& shared, int warp,
                                            int lane, int round, int phase,
                                            const int (&sums)[LIVE][4], float& threshold,
                                            Best& best) {
  const int step = round_step(round), group = round_group(round);
  const int slot = round_slot(round);
  const int result_pair = lane & 3, column = result_pair % plan::COLUMNS;
  const LaneRows rows(warp, lane);
  const u32 misaligned = base_misalignment(args, group * plan::COLUMNS + column, step);
  const Byte* line = shared.base[slot][column] + (misaligned & ~3u);
  const float latent_scale =
      *reinterpret_cast<const float*>(shared.latent[group][column] + 2 * plan::RANK);
  float2 scales[LIVE];
  float2 bases[LIVE];
#pragma unroll
  for (int live = 0; live < LIVE; ++live) {
    if (phase * LIVE + live >= ACCUMULATORS) continue;
    const int row = rows.row(phase * LIVE + live);
    scales[live] = *reinterpret_cast<const float2*>(&shared.row_scale[row]);
    bases[live] = load_base_pair(line + row * BASE_BYTES);
  }
  __syncwarp();  // these loads, too, together
  float logits[LIVE][2];
#pragma unroll
  for (int live = 0; live < LIVE; ++live) {
    if (phase * LIVE + live >= ACCUMULATORS) continue;
    const int(&sum)[4] = sums[live];
    const float2 scale = scales[live], base = bases[live];
    logits[live][0] = step_sum(sum[0], sum[1], __fmul_rn(scale.x, latent_scale), base.x);
    logits[live][1] = step_sum(sum[2], sum[3], __fmul_rn(scale.y, latent_scale), base.y);
    round_pair(logits[live][0], logits[live][1]);
  }
  // Column pairs without a tile of an accumulator must not win.
  const auto present = [&](int live) {
    const int variants = min(SHARING, plan::WARP_TILES - (phase * LIVE + live) * SHARING);
    return variants * plan::COLUMNS == 4 || result_pair < variants * plan::COLUMNS;
  };
  const float temperature = plan::SAMPLED ? shared.temperature[group][column] : 0.0f;
#pragma unroll
  for (int live = 0; live < LIVE; ++live) {
    if (phase * LIVE + live >= ACCUMULATORS) continue;
    const int row = rows.row(phase * LIVE + live);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // The score of a greedy row is its logit; so is a sampled row's where that is -inf.
      const bool sampled =
          plan::SAMPLED && temperature > 0.0f && logits[live][j] != minus_infinity();
      best.offer(present(live) && !sampled ? ordered_key(logits[live][j]) : NEVER, row + j);
    }
  }
  if constexpr (plan::SAMPLED) {
    if (__any_sync(0xffffffffu, temperature > 0.0f)) {
      const u32* words = shared.noise[slot][column];
      ScoreSearch<2 * LIVE> search;
#pragma unroll
      for (int live = 0; live < LIVE; ++live) {
        const bool here =
            phase * LIVE + live < ACCUMULATORS && temperature > 0.0f && present(live);
        const int row = rows.row(phase * LIVE + live);
        const uint2 pair = here ? *reinterpret_cast<const uint2*>(words + row) : uint2{0, 0};
        if (here)
          export_logits(args, group * plan::COLUMNS + column, step, row, logits[live][0],
                        logits[live][1]);
        search.add(2 * live, here, logits[live][0], pair.x, temperature);
        search.add(2 * live + 1, here, logits[live][1], pair.y, temperature);
      }
      search.run(temperature, threshold, best, [&](int index) {
        int row = 0;
#pragma unroll
        for (int live = 0; live < LIVE; ++live)
          if (index >> 1 == live) row = rows.row(phase * LIVE + live) + (index & 1);
        return row;
      }, words);
    }
  }
}

// The best of the warp for each request, left for the service warps.
__device__ __forceinline__ void offer_winners(Shared& shared, int warp, int lane, int group,
                                              const Best& best) {
#pragma unroll
  for (int request = 0; request < plan::COLUMNS; ++request) {
    Best mine = best;
    if ((lane & 3) % plan::COLUMNS != request) mine.key = NEVER;
    const Best winner = warp_best(mine);
    if (lane == 0) {
      shared.candidate_key[group][request][warp] = winner.key;
      if constexpr (plan::WIDE) shared.candidate_row[group][request][warp] = winner.row;
    }
  }
  if (lane == 0) barrier_arrive(&shared.candidates_ready[group]);
  __syncwarp();
}

// One (step, group) for one warp. What depends on the lane is computed here, in the time the blocks
// exchange, rather than kept beside the weights.
__device__ __forceinline__ void sweep_round(const WalkArgs& args, Shared& shared,
                                            const ResidentWeights& weights, int round) {
  const int step = round_step(round), group = round_group(round);
  const int slot = round_slot(round);
  const int lane = lane_index(), warp = warp_index();

  // Fragments depend on no token: the first are in flight while the blocks exchange. Streamed ones
  // are the first, so that the longest way is begun the earliest.
  u32 queue[plan::QUEUE_DEPTH][4];
  const u32 fragments = shared_address(shared.fragments) + lane * 16 +
                        warp * (plan::SHARED_FRAGMENTS * plan::FRAGMENT_BYTES);
  const Byte* streamed = warp_tiles(args, warp) + lane * 16;
  const int zero = args.num_requests >> 30;  // what the compiler cannot know
  // `after` is a sum of the product that used the place before: the address waits for it in name
  // only, but keeps the compiler from issuing all long loads at once and spilling.
  const auto load_fragment = [&](int index, int after) {
    u32(&held)[4] = queue[index % plan::QUEUE_DEPTH];
    if (index < plan::STREAMED_FRAGMENTS) {
      load_global_16(held, streamed + (away_source(index) + (after & zero)));
    } else {
      load_shared_16(held, fragments + (index - plan::STREAMED_FRAGMENTS) * plan::FRAGMENT_BYTES);
    }
  };
#pragma unroll
  for (int i = 0; i < plan::QUEUE_DEPTH && i < AWAY_FRAGMENTS; ++i) load_fragment(i, 0);

  const int operand_pair = lane >> 3;
  const u32 latent = shared_address(shared.latent[group][operand_pair % plan::COLUMNS]) +
                     ((lane >> 2) & 1) * 32 + (lane & 3) * 8;
  barrier_wait(&shared.latents_ready[group], step & 1);
  mark(args, step, LATENT_SEEN);

  // All at once, before any product: left to the compiler, each slab would wait for its own load.
  u32 operands[SLABS][2];
#pragma unroll
  for (int slab = 0; slab < SLABS; ++slab) load_shared_8(operands[slab], latent + slab * 64);
  __syncwarp();

  Best best;
  float threshold = minus_infinity();  // a score somebody of this warp has, by request
#pragma unroll
  for (int phase = 0; phase < plan::PHASES; ++phase) {
    int sums[LIVE][4];
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab) {
#pragma unroll
      for (int variant = 0; variant < SHARING; ++variant) {
        const bool mine = SHARING == 1 || operand_pair / plan::COLUMNS == variant;
        const u32 b0 = mine ? operands[slab][0] : 0u;
        const u32 b1 = mine ? operands[slab][1] : 0u;
#pragma unroll
        for (int live = 0; live < LIVE; ++live) {
          const int tile = (phase * LIVE + live) * SHARING + variant;
          if (tile >= plan::WARP_TILES) continue;
          const int place = fragment_place(fragment_position(phase, slab, variant, live));
          const u32* a = place >= 0 ? weights[max(place, 0)]
                                    : queue[(-1 - min(place, -1)) % plan::QUEUE_DEPTH];
          if (slab == 0 && variant == 0) {
            mma_s8_first(sums[live], a, b0, b1);
          } else {
            mma_s8(sums[live], a, b0, b1);
          }
          const int next = -1 - place + plan::QUEUE_DEPTH;
          if (place < 0 && next < AWAY_FRAGMENTS) load_fragment(next, sums[live][0]);
        }
      }
    }

    // Needed once; asking again keeps the compiler from mixing the phases' code, which spills.
    if (phase == 0 || plan::PHASES_APART)
      barrier_wait(&shared.base_landed[slot], round_slot_parity(round));
    if (phase == plan::PHASES - 1) mark(args, step, SWEPT);
    offer_phase(args, shared, warp, lane, round, phase, sums, threshold, best);
  }
  offer_winners(shared, warp, lane, group, best);
  mark(args, step, OFFERED);
}

__device__ __forceinline__ void sweep_role(const WalkArgs& args, Shared& shared) {
  ResidentWeights weights;
  load_register_fragments(args, weights);
  barrier_wait(&shared.weights_landed, 0);
  const int rounds = args.num_steps * plan::GROUPS;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) sweep_round(args, shared, weights, round);
}

}  // namespace wts
