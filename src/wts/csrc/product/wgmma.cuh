// The product where the four warps of a warpgroup multiply together (wgmma): eight requests at
// once, latents in shared memory, fragments in registers or in shared memory, resident there or
// passing through (ring_warpgroup.cuh). The sums of some tiles are judged while the tensor cores
// multiply the next.
#pragma once
#include "base_lines.cuh"
#include "block.cuh"
#include "product/ring_warpgroup.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/wgmma.cuh"
#include "rounds.cuh"
#include "select/offers.cuh"
#include "select/sampled.cuh"
#include "select/step_logits.cuh"
#include "select/token_race.cuh"
#include "tiles.cuh"
#include "trace.cuh"

namespace wts {

// A fragment's core matrices lie [k half][warp, row half][8 rows][16 bytes]; a lane's four words
// are in four of them.
__device__ __forceinline__ void load_register_fragments(const Block& block,
                                                        ResidentWeights& weights) {
  const int warp = warp_index();
  const Byte* mine = packed_tiles(block, warp / plan::OPERAND_WARPS) +
                     (warp % plan::OPERAND_WARPS) * 256 + lane_index() * 4;
#pragma unroll
  for (int position = 0; position < FRAGMENTS; ++position)
    if (fragment_place(position) >= 0) {
#pragma unroll
      for (int word = 0; word < 4; ++word)
        weights[fragment_place(position)][word] = load_global_4(
            mine + fragment_source(position) + (word >> 1) * 1024 + (word & 1) * 128);
    }
}

// The streamed unit that a half tile of a sweep is, or -1 where it is resident.
__device__ constexpr int streamed_unit(int half_tile) {
  const int place = fragment_place(half_tile * UNIT_SLABS);
  if (place >= 0 || away_place(-1 - place) >= plan::STREAMED_FRAGMENTS) return -1;
  return away_place(-1 - place) / UNIT_FRAGMENTS;
}

// One (step, group) for a warpgroup.
template <typename Precise>
__device__ __forceinline__ void multiply(const Block& block, const ResidentWeights& weights,
                                         Ring& ring, int round, Precise precise,
                                         const float (&limit)[plan::COLUMN_BLOCKS],
                                         Offers& offers) {
  const int lane = lane_index();
  // The same in all lanes, so that descriptors are made in uniform registers.
  const int warp = __shfl_sync(0xffffffffu, warp_index(), 0);
  const int warpgroup = warp / plan::OPERAND_WARPS;
  const u64 all_fragments = operand_descriptor(
      shared_address(block.shared.fragments) + warpgroup * (plan::SHARED_FRAGMENTS * OPERAND_BYTES),
      1024, 128);
  const u64 ring_operand =
      operand_descriptor(shared_address(block.shared.ring[warpgroup * RING]), 1024, 128);
  const u64 all_latents = operand_descriptor(
      shared_address(block.shared.latent[latent_slot(round)]), plan::COLUMN_BLOCKS * 128, 128);
  constexpr int TILES = plan::TILES_JUDGED, IN_FLIGHT = plan::TILES_IN_FLIGHT / TILES;
  constexpr int BATCHES = (plan::WARP_TILES + TILES - 1) / TILES;
  int sums[IN_FLIGHT][TILES * plan::COLUMN_BLOCKS][4];

  // Sampled plans have much between two products.
  const auto again_uniform = [](u64 descriptor) {
    return plan::SAMPLED ? uniform_descriptor(descriptor) : descriptor;
  };
  // Asks for all products of some tiles.
  const auto begin = [&](int batch) {
    const u64 latents = again_uniform(all_latents), fragments = again_uniform(all_fragments);
    u64 passing[2 * TILES];  // operands of its streamed half tiles
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
      const int half = batch * 2 * TILES + i;
      if (half < 2 * plan::WARP_TILES && streamed_unit(half) >= 0)
        passing[i] = again_uniform(ring_operand + ring.take(block, warpgroup) * (UNIT_BYTES / 16));
    }
    warpgroup_fence();
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int tile = batch * TILES + i;
      if (tile >= plan::WARP_TILES) continue;
      auto& sum = *reinterpret_cast<int(*)[plan::COLUMN_BLOCKS][4]>(
          &sums[batch % IN_FLIGHT][i * plan::COLUMN_BLOCKS]);
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
        const u64 latent = latents + slab * (2 * plan::COLUMN_BLOCKS * 128 / 16);
        const int place = fragment_place(tile * SLABS + slab);
        const int away = place < 0 ? away_place(-1 - place) : 0;
        const u64 fragment =
            away < plan::STREAMED_FRAGMENTS
                ? passing[2 * i + slab / UNIT_SLABS] + away % UNIT_FRAGMENTS * (OPERAND_BYTES / 16)
                : fragments + (away - plan::STREAMED_FRAGMENTS) * (OPERAND_BYTES / 16);
        if (place >= 0) {
          if (slab == 0) {
            wgmma_s8<true>(sum, weights[max(place, 0)], latent);
          } else {
            wgmma_s8<false>(sum, weights[max(place, 0)], latent);
          }
        } else if (slab == 0) {
          wgmma_s8<true>(sum, fragment, latent);
        } else {
          wgmma_s8<false>(sum, fragment, latent);
        }
      }
    }
    warpgroup_commit();
  };

  const Sampling sampling(block, lane, round);
  if constexpr (plan::NOISE_AHEAD)
    if (!precise && sampling.any) park_noise(block, sampling, warp, lane, round);
  barrier_wait(&block.shared.latents_ready[latent_slot(round)], latent_parity(round));
  mark(block, round, LATENT_SEEN);
  if (IN_FLIGHT > 1) begin(0);
  const Lines lines(block, lane, round);
#pragma unroll
  for (int batch = 0; batch < BATCHES; ++batch) {
    const int ahead = batch + IN_FLIGHT - 1;
    if (ahead < BATCHES) begin(ahead);
    const auto wait = [&] {
      if (ahead < BATCHES) {
        warpgroup_wait<IN_FLIGHT - 1>();
      } else {
        warpgroup_wait<0>();
      }
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i) {
        const int half = batch * 2 * TILES + i;
        if (half < 2 * plan::WARP_TILES && streamed_unit(half) >= 0)
          ring.release(block, warpgroup, lane, streamed_unit(half));
      }
      if (batch == 0)
        barrier_wait(&block.shared.base_landed[round_slot(round)], round_slot_parity(round));
      if (batch == BATCHES - 1) mark(block, round, SWEPT);
    };
    const auto sum_of = [&](int i, int nth) -> const int (&)[4] {
      return sums[batch % IN_FLIGHT][i * plan::COLUMN_BLOCKS + nth];
    };
    offer_sums<TILES>(block, lines, sampling, warp, lane, round, batch * TILES, wait, sum_of,
                      precise, limit, offers);
  }
}

}  // namespace wts
