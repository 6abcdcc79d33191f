// The product of what tcgen05 multiplies for all sweeping warps at once: a tile of 128 rows, 16 of
// each warp, from tensor memory or from shared memory, while the warps multiply tiles of their own
// (mma.cuh). Its sums come back laid out as mma.sync's. Compiled and checked, never run on a GPU.
#pragma once
#include "base_lines.cuh"
#include "block.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/tcgen05.cuh"
#include "rounds.cuh"
#include "select/offers.cuh"
#include "select/sampled.cuh"
#include "select/step_logits.cuh"
#include "tiles.cuh"
#include "weights/bf16.cuh"
#include "weights/int8.cuh"

namespace wts {

#if WTS_TENSOR
static_assert(plan::SWEEP_WARPS == 8 && !plan::WARPGROUPS, "16 rows of each of 8 lone warps");
static_assert(plan::COLUMNS <= (plan::QUANTISED ? 4 : 8), "a warp reads eight columns of sums");
constexpr int TILE_MATRIX_BYTES = plan::SWEEP_WARPS * plan::TILE_BYTES;
constexpr int OPERAND_CORES = plan::SWEEP_WARPS * 2;  // core matrices of 16 bytes of k
constexpr int SLAB_COLUMNS = 8;
constexpr int SWEEPERS_BARRIER = 1;  // a warpgroup's, where there are some

// Lanes are numbered as wts/tensor_memory.py says (warp_lane).
__device__ __forceinline__ u32 warp_lane(int warp) { return 32 * (warp % 4) + 16 * (warp / 4); }

// The accumulator that a tile's sums go to, counted from the first one in tensor memory.
__device__ __forceinline__ u32 sums_place(u32 memory, int accumulator) {
  return memory + plan::SUM_COLUMN + accumulator * plan::SUM_COLUMNS;
}

__device__ __forceinline__ const Byte* matrix_tile(const Block& block, int tile) {
  return block.shared.fragments[plan::SWEEP_WARPS * plan::SHARED_FRAGMENTS] +
         tile * TILE_MATRIX_BYTES;
}

// Before the block's threads meet: one warp takes all of tensor memory, all clear the latents'
// place, of which most rows stay zero.
__device__ __forceinline__ void begin_tensor_memory(const Block& block) {
  if (warp_index() == 0) tensor_allocate(&block.shared.tensor_memory, plan::TENSOR_COLUMNS);
  constexpr int WORDS = plan::LATENT_SLOTS * plan::LATENT_SLOT_BYTES / 4;
  for (int word = threadIdx.x; word < WORDS; word += plan::THREADS)
    store_shared_4(shared_address(block.shared.latent) + 4 * word, 0);
  fence_async_proxy();
}

// Each warp brings its rows of every tile, fragment by fragment, as they are packed.
__device__ __forceinline__ void fill_tensor_tiles(const Block& block) {
  const int warp = warp_index(), lane = lane_index();
  const Byte* mine = packed_tiles(block, warp) + lane * 16;
  tensor_fence_after();
  const u32 memory = block.shared.tensor_memory + (warp_lane(warp) << 16);
  constexpr int AT_ONCE = SLABS < 8 ? SLABS : 8;
#pragma unroll 1
  for (int first = 0; first < ASYNC_TILES * SLABS; first += AT_ONCE) {
    u32 fragments[AT_ONCE][4];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      load_global_16(fragments[i], mine + (LONE_TILES * SLABS + first + i) * plan::FRAGMENT_BYTES);
    if (first < plan::TENSOR_TILES * SLABS) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        tensor_store(memory + (first + i) * SLAB_COLUMNS, fragments[i]);
    } else {
      // Core matrices [16 bytes of k][8 rows], tile after tile; a lane's four words are in four of
      // them.
      const u32 matrices =
          shared_address(matrix_tile(block, 0)) + lane * 4 +
          ((first - plan::TENSOR_TILES * SLABS) * 2 * OPERAND_CORES + warp_lane(warp) / 8) * 128;
#pragma unroll
      for (int i = 0; i < 4 * AT_ONCE; ++i)
        store_shared_4(matrices + ((i >> 1) * OPERAND_CORES + (i & 1)) * 128,
                       fragments[i / 4][i % 4]);
    }
  }
  tensor_wait_stores();
  tensor_fence_before();
  fence_async_proxy();
  named_barrier(SWEEPERS_BARRIER, plan::SWEEP_WARPS * 32);
  tensor_fence_after();
}

// All warps have read what they need: the block may end.
__device__ __forceinline__ void end_tensor_memory(const Block& block) {
  tensor_fence_before();
  named_barrier(SWEEPERS_BARRIER, plan::SWEEP_WARPS * 32);
  tensor_fence_after();
  if (warp_index() == 0) tensor_release(block.shared.tensor_memory, plan::TENSOR_COLUMNS);
}

// Asks for the products of a round, whose latents are there; each accumulator's by one warp, one
// after the other. All sums of the round before have been read: their warps have offered what they
// found.
__device__ __forceinline__ void begin_products(const Block& block, int round) {
  // The same in all lanes, so that descriptors are made in uniform registers.
  const int warp = __shfl_sync(0xffffffffu, warp_index(), 0);
  if (warp >= plan::ASYNC_ACCUMULATORS) return;
  if (round > 0)
    barrier_wait(&block.shared.candidates_ready[round_slot(round - 1)],
                 round_slot_parity(round - 1));
  tensor_fence_after();
  const u32 memory = block.shared.tensor_memory;
  const u64 latents =
      plan::LATENT_DESCRIPTOR | (shared_address(block.shared.latent[latent_slot(round)]) >> 4);
  const u64 matrices = plan::MATRIX_DESCRIPTOR | (shared_address(matrix_tile(block, 0)) >> 4);
  if (!elected()) return;
#pragma unroll
  for (int accumulator = 0; accumulator < plan::ASYNC_ACCUMULATORS; ++accumulator) {
    if (accumulator % plan::SWEEP_WARPS != warp) continue;
#pragma unroll
    for (int variant = 0; variant < SHARING; ++variant) {
      const int tile = accumulator * SHARING + variant;
      if (tile >= ASYNC_TILES) continue;
      // Rows before the latents' are zeros: the columns of other variants.
      const int first = plan::OPERAND_LEAD - variant * plan::REQUEST_COLUMNS * plan::COLUMNS;
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
        const u64 b = latents + first + slab * 2 * plan::OPERAND_ROWS;
        const u32 sums = sums_place(memory, accumulator);
        const bool add = slab > 0 || variant > 0;
        if (tile < plan::TENSOR_TILES) {
          tensor_product(sums, memory + (tile * SLABS + slab) * SLAB_COLUMNS, b, add);
        } else {
          const u64 away = (tile - plan::TENSOR_TILES) * SLABS + slab;
          tensor_product(sums, matrices + away * (2 * OPERAND_CORES * 128 / 16), b, add);
        }
      }
    }
    tensor_commit(&block.shared.sums_made[accumulator]);
  }
}

// Judges the sums of a round's products as they come.
__device__ __forceinline__ void offer_products(const Block& block, const Sampling& sampling,
                                               int warp, int lane, int round, bool precise,
                                               const float (&limit)[plan::COLUMN_BLOCKS],
                                               Offers& offers) {
  constexpr int AT_ONCE =
      plan::ASYNC_ACCUMULATORS < plan::SUMS_JUDGED ? plan::ASYNC_ACCUMULATORS : plan::SUMS_JUDGED;
  const u32 memory = block.shared.tensor_memory + (warp_lane(warp) << 16);
  const Lines lines(block, lane, round);
#pragma unroll
  for (int first = 0; first < plan::ASYNC_ACCUMULATORS; first += AT_ONCE) {
    Sum sums[AT_ONCE][4];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i >= plan::ASYNC_ACCUMULATORS) continue;
      barrier_wait(&block.shared.sums_made[first + i], round & 1);
      tensor_fence_after();
      tensor_load(sums[i], sums_place(memory, first + i));
    }
    tensor_wait_loads(sums);
    const auto sum_of = [&](int i, int) -> const Sum(&)[4] { return sums[i]; };
    offer_sums<AT_ONCE>(
        block, lines, sampling, warp, lane, round, LONE_ACCUMULATORS + first, [] {}, sum_of,
        precise, limit, offers);
  }
  tensor_fence_before();  // the warp's offers say that the sums have been read
}
#else
// Where tcgen05 multiplies nothing.
__device__ __forceinline__ void begin_tensor_memory(const Block&) {}
__device__ __forceinline__ void fill_tensor_tiles(const Block&) {}
__device__ __forceinline__ void end_tensor_memory(const Block&) {}
__device__ __forceinline__ void begin_products(const Block&, int) {}
__device__ __forceinline__ void offer_products(const Block&, const Sampling&, int, int, int, bool,
                                               const float (&)[plan::COLUMN_BLOCKS], Offers&) {}
#endif

}  // namespace wts
