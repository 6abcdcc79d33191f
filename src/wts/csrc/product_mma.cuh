// The product where each warp multiplies alone (mma.sync): up to four requests, latents in
// registers, fragments in registers or in shared memory, resident there or passing through a ring of
// the warp's own: each lane copies, waits for and reads its own 16 bytes, so nothing else must agree.
#pragma once
#include "product_tcgen05.cuh"

namespace wts {

__device__ __forceinline__ void load_register_fragments(const WalkArgs& args,
                                                        ResidentWeights& weights) {
  const Byte* mine = packed_tiles(args, warp_index()) + lane_index() * 16;
#pragma unroll
  for (int position = 0; position < FRAGMENTS; ++position)
    if (fragment_place(position) >= 0)
      load_global_16(weights[fragment_place(position)], mine + fragment_source(position));
}

constexpr int RING = plan::RING_LENGTH;
static_assert(plan::WARPGROUPS || plan::STREAMED_FRAGMENTS % RING == 0,
              "a fragment has the same place in every sweep");

// A lane's view of its warp's ring of streamed fragments, which lie one behind the other in memory.
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

  // Waits for the oldest that was not waited for; at least the queue's have been read since.
  __device__ __forceinline__ void wait() const { wait_copies<RING - plan::QUEUE_DEPTH>(); }
};

// What streams from L2: asked for before the first sweep, and landed after the last one.
struct Ring {
  __device__ __forceinline__ void begin(const WalkArgs& args, Shared& shared) {
    LaneRing ring(args, shared, warp_index(), lane_index(), 0);
#pragma unroll
    for (int index = 0; index < RING; ++index) ring.ask(index);
  }
  __device__ __forceinline__ void end(Shared&) { wait_copies<0>(); }
};

// Where a lane's operand of a slab begins, for the mma.sync of all tiles.
struct LatentOperands {
  u32 place;

  __device__ __forceinline__ LatentOperands(const Shared& shared, int lane, int round) {
    const u32 latents = shared_address(shared.latent[latent_slot(round)]);
    const int column = (lane >> 3) % plan::COLUMNS, plane = (lane >> 2) & 1;
    if constexpr (ASYNC_TILES > 0) {
      place = latents + (lane & 3) * 4 +
              (plan::OPERAND_LEAD + plan::REQUEST_COLUMNS * column + plane) * 16;
    } else {
      place = latents + column * plan::LATENT_LINE_BYTES + plane * 32 + (lane & 3) * 8;
    }
  }

  __device__ __forceinline__ void load(u32 (&operand)[2], int slab) const {
    if constexpr (ASYNC_TILES > 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        operand[half] = load_shared_4(place + (2 * slab + half) * (plan::OPERAND_ROWS * 16));
    } else {
      load_shared_8(operand, place + slab * 64);
    }
  }
};

// One (step, group) for one warp. What depends on the lane is computed here, in the time the blocks
// exchange, rather than kept beside the weights.
__device__ __forceinline__ void multiply(const WalkArgs& args, Shared& shared,
                                         const ResidentWeights& weights, Ring&, int round,
                                         bool exact, const float (&limit)[plan::COLUMN_BLOCKS],
                                         Offers& offers) {
  const int lane = lane_index(), warp = warp_index();

  // Fragments depend on no token: the first are loaded while the blocks exchange.
  u32 queue[plan::QUEUE_DEPTH][4];
  const u32 fragments = shared_address(shared.fragments) + lane * 16 +
                        warp * (plan::SHARED_FRAGMENTS * plan::FRAGMENT_BYTES);
  LaneRing ring(args, shared, warp, lane, RING);
  const int zero = args.num_requests >> 30;  // what the compiler cannot know
  // `after` is a sum of the product that used the place before: the address waits for it in name
  // only, but keeps the compiler from issuing many loads at once and spilling.
  const auto load_fragment = [&](int number, int after) {
    u32(&held)[4] = queue[number % plan::QUEUE_DEPTH];
    const int place = away_place(number);
    if (place < plan::STREAMED_FRAGMENTS) {
      ring.wait();
      load_shared_16(held, ring.at(place) + (after & zero));
    } else {
      load_shared_16(held, fragments + (place - plan::STREAMED_FRAGMENTS) * plan::FRAGMENT_BYTES);
    }
  };
#pragma unroll
  for (int i = 0; i < plan::QUEUE_DEPTH && i < AWAY_FRAGMENTS; ++i) load_fragment(i, 0);
  const Sampling sampling(args, shared, lane, round);
  if constexpr (plan::NOISE_AHEAD)
    if (sampling.any) park_noise(args, shared, sampling, warp, lane, round);

  const int operand_pair = lane >> 3;
  const LatentOperands latent(shared, lane, round);
  barrier_wait(&shared.latents_ready[latent_slot(round)], latent_parity(round));
  mark(args, round, LATENT_SEEN);
  if (!exact) begin_products(shared, round);

  // All at once, before any product: left to the compiler, each slab would wait for its own load.
  u32 operands[SLABS][2];
#pragma unroll
  for (int slab = 0; slab < SLABS; ++slab) latent.load(operands[slab], slab);
  __syncwarp();

#pragma unroll
  for (int phase = 0; phase < plan::PHASES; ++phase) {
    // What the phases before have found, as part of `after`: their judging is not put off either.
    const int judged = plan::SAMPLED ? offers.contest[0].key : offers.best[0].key;
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
          if (tile >= LONE_TILES) continue;
          const int place = fragment_place(fragment_position(phase, slab, variant, live));
          const u32* a = place >= 0 ? weights[max(place, 0)]
                                    : queue[(-1 - min(place, -1)) % plan::QUEUE_DEPTH];
          if (slab == 0 && variant == 0) {
            mma_s8_first(sums[live], a, b0, b1);
          } else {
            mma_s8(sums[live], a, b0, b1);
          }
          if (place >= 0) continue;
          const int number = -1 - place, next = number + plan::QUEUE_DEPTH;
          if (away_place(number) < plan::STREAMED_FRAGMENTS) ring.ask(away_place(number) + RING);
          if (next < AWAY_FRAGMENTS) load_fragment(next, sums[live][0] ^ judged);
        }
      }
    }

    // Needed once; asking again keeps the compiler from mixing the phases' code, which spills.
    if (phase == 0 || plan::PHASES_APART)
      barrier_wait(&shared.base_landed[round_slot(round)], round_slot_parity(round));
    if (phase == plan::PHASES - 1) mark(args, round, SWEPT);
    const Lines lines(args, shared, lane, round);
    const auto sum_of = [&](int i, int) -> const int(&)[4] { return sums[i]; };
    offer_sums<LIVE>(args, shared, lines, sampling, warp, lane, round, phase * LIVE, [] {},
                        sum_of, exact, limit, offers);
  }
  offer_products(args, shared, sampling, warp, lane, round, exact, limit, offers);
}

}  // namespace wts
