// The product where each warp multiplies alone (mma.sync): up to four requests (of bf16 weights
// eight), latents in registers, fragments in registers or in shared memory, resident there or
// passing through a ring of the warp's own (ring_lanes.cuh, ring_bulk.cuh).
#pragma once
#include "base_lines.cuh"
#include "block.cuh"
#include "product/ring_bulk.cuh"
#include "product/ring_lanes.cuh"
#include "product/tcgen05.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "rounds.cuh"
#include "select/offers.cuh"
#include "select/sampled.cuh"
#include "select/step_logits.cuh"
#include "select/token_race.cuh"
#include "tiles.cuh"
#include "trace.cuh"
#include "weights/bf16.cuh"
#include "weights/int8.cuh"

namespace wts {

template <bool IN_BULK>
struct SweepsOf {
  using Type = LaneSweeps;
};
template <>
struct SweepsOf<true> {
  using Type = BulkSweeps;
};
using Ring = SweepsOf<BULK && (plan::STREAMED_FRAGMENTS > 0)>::Type;

__device__ __forceinline__ void load_register_fragments(const Block& block,
                                                        ResidentWeights& weights) {
  const Byte* mine = packed_tiles(block, warp_index()) + lane_index() * 16;
#pragma unroll
  for (int position = 0; position < FRAGMENTS; ++position)
    if (fragment_place(position) >= 0)
      load_global_16(weights[fragment_place(position)], mine + fragment_source(position));
}

// A lane's two words of a slab of a latent lie side by side. Both planes of an int8 slab do, too.
constexpr int LATENT_SLAB_BYTES = plan::QUANTISED ? 64 : 32;
// Slabs of which a lane holds the operand at once.
constexpr int HELD = plan::OPERAND_SLABS;
static_assert(SLABS % HELD == 0, "an operand has the same place in every phase");

// Operand column 2 j is request j; 2 j + 1 is its other plane, or request 4 + j, so far on.
constexpr int ODD_COLUMN_BYTES = plan::QUANTISED            ? 32
                                 : plan::COLUMN_BLOCKS == 2 ? 4 * plan::LATENT_LINE_BYTES
                                                            : 0;

// Where a lane's operand of a slab begins, for the mma.sync of all tiles.
struct LatentOperands {
  u32 place;

  __device__ __forceinline__ LatentOperands(const Block& block, int lane, int round) {
    const u32 latents = shared_address(block.shared.latent[latent_slot(round)]);
    const int pair = (lane >> 3) % plan::COLUMNS, odd = (lane >> 2) & 1;
    if constexpr (ASYNC_TILES > 0) {
      place = latents + (lane & 3) * 4 +
              (plan::OPERAND_LEAD + plan::REQUEST_COLUMNS * pair + odd) * 16;
    } else {
      place = latents + pair * plan::LATENT_LINE_BYTES + odd * ODD_COLUMN_BYTES + (lane & 3) * 8;
    }
  }

  // `after`: zero, once a product is done that must not be waited for longer.
  __device__ __forceinline__ void load(u32 (&operand)[2], int slab, int after) const {
    if constexpr (ASYNC_TILES > 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        operand[half] =
            load_shared_4(place + (2 * slab + half) * (plan::OPERAND_ROWS * 16) + after);
    } else {
      load_shared_8(operand, place + slab * LATENT_SLAB_BYTES + after);
    }
  }
};

// One (step, group) for one warp. What depends on the lane is computed here, in the time the blocks
// exchange, rather than kept beside the weights.
template <typename Precise>
__device__ __forceinline__ void multiply(const Block& block, const ResidentWeights& weights,
                                         Ring& sweeps, int round, Precise precise,
                                         const float (&limit)[plan::COLUMN_BLOCKS],
                                         Offers& offers) {
  const int lane = lane_index(), warp = warp_index();

  // Fragments depend on no token: the first are loaded while the blocks exchange.
  u32 queue[plan::QUEUE_DEPTH][4];
  const u32 fragments = shared_address(block.shared.fragments) + lane * 16 +
                        warp * (plan::SHARED_FRAGMENTS * plan::FRAGMENT_BYTES);
  Ring::View ring = sweeps.sweep(block, warp, lane);
  const int zero = block.args.num_requests >> 30;  // what the compiler cannot know
  // `after` is a sum of the product that used the place before: the address waits for it in name
  // only, but keeps the compiler from issuing many loads at once and spilling.
  const auto load_fragment = [&](int number, int after) {
    u32(&held)[4] = queue[number % plan::QUEUE_DEPTH];
    const int place = away_place(number);
    if (place < plan::STREAMED_FRAGMENTS) {
      ring.load(held, place, after & zero);
    } else {
      load_shared_16(held, fragments + (place - plan::STREAMED_FRAGMENTS) * plan::FRAGMENT_BYTES);
    }
  };
#pragma unroll
  for (int i = 0; i < plan::QUEUE_DEPTH && i < AWAY_FRAGMENTS; ++i) load_fragment(i, 0);
  const Sampling sampling(block, lane, round);
  if constexpr (plan::NOISE_AHEAD)
    if (sampling.any) park_noise(block, sampling, warp, lane, round);

  const int operand_pair = lane >> 3;
  const LatentOperands latent(block, lane, round);
  barrier_wait(&block.shared.latents_ready[latent_slot(round)], latent_parity(round));
  mark(block, round, LATENT_SEEN);
  if (!precise) begin_products(block, round);

  // Before any product, all at once unless registers are wanted for weights: left to the compiler,
  // each slab would wait for its own load.
  u32 operands[HELD][2];
#pragma unroll
  for (int slab = 0; slab < HELD; ++slab) latent.load(operands[slab], slab, 0);
  __syncwarp();

#pragma unroll
  for (int phase = 0; phase < plan::PHASES; ++phase) {
    // What the phases before have found, as part of `after`: their judging is not put off either.
    const int judged = plan::SAMPLED ? offers.contest[0].key : offers.best[0].key;
    Sum sums[LIVE][4];
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab) {
#pragma unroll
      for (int variant = 0; variant < SHARING; ++variant) {
        const bool mine = SHARING == 1 || operand_pair / plan::COLUMNS == variant;
        const u32 b0 = mine ? operands[slab % HELD][0] : 0u;
        const u32 b1 = mine ? operands[slab % HELD][1] : 0u;
#pragma unroll
        for (int live = 0; live < LIVE; ++live) {
          const int tile = (phase * LIVE + live) * SHARING + variant;
          if (tile >= LONE_TILES) continue;
          const int place = fragment_place(fragment_position(phase, slab, variant, live));
          const u32* a = place >= 0 ? weights[max(place, 0)]
                                    : queue[(-1 - min(place, -1)) % plan::QUEUE_DEPTH];
          multiply_fragment(sums[live], a, b0, b1, slab == 0 && variant == 0);
          if (place >= 0) continue;
          const int number = -1 - place, next = number + plan::QUEUE_DEPTH;
          if (away_place(number) < plan::STREAMED_FRAGMENTS) ring.used(away_place(number));
          if (next < AWAY_FRAGMENTS) load_fragment(next, bits_of(sums[live][0]) ^ judged);
        }
      }
      if (HELD < SLABS && (slab + HELD < SLABS || phase + 1 < plan::PHASES))
        latent.load(operands[slab % HELD], (slab + HELD) % SLABS, bits_of(sums[0][0]) & zero);
    }

    // Needed once; asking again keeps the compiler from mixing the phases' code, which spills.
    if (phase == 0 || plan::PHASES_APART)
      barrier_wait(&block.shared.base_landed[round_slot(round)], round_slot_parity(round));
    if (phase == plan::PHASES - 1) mark(block, round, SWEPT);
    const Lines lines(block, lane, round);
    const auto sum_of = [&](int i, int) -> const Sum(&)[4] { return sums[i]; };
    offer_sums<LIVE>(
        block, lines, sampling, warp, lane, round, phase * LIVE, [] {}, sum_of, precise, limit,
        offers);
  }
  offer_products(block, sampling, warp, lane, round, precise, limit, offers);
}

}  // namespace wts
