// The latents of a Markov head: rows of its table, already as the product wants them.
#pragma once
#include "block.cuh"
#include "latent_lines.cuh"
#include "ptx/memory.cuh"
#include "rounds.cuh"
#include "select/exact_bounds.cuh"

namespace wts {

// Table rows that hold latents, quantised or not, on their way to where the sweeping warps read
// them.
template <int COUNT>
struct LatentRows {
  static constexpr int PIECES = (2 * plan::RANK + 511) / 512;
  static constexpr int NUMBERS = plan::EXACT ? 4 : 1;  // behind the planes: scale, slack, margin
  u32 piece[COUNT][PIECES][4];
  u32 numbers[COUNT][NUMBERS];
};

template <int COUNT>
__device__ __forceinline__ void load_rows(const Block& block, LatentRows<COUNT>& rows,
                                          const int (&token)[COUNT]) {
  const int lane = lane_index();
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const Byte* source = block.table_row(token[i]);
#pragma unroll
    for (int j = 0; j < rows.PIECES; ++j)
      if ((j * 32 + lane) * 16 < 2 * plan::RANK) {
        const Byte* from = source + (j * 32 + lane) * 16;
        if constexpr (plan::EXACT) {  // for a token that turns out to be the right one, twice
          load_global_again_16(rows.piece[i][j], from);
        } else {
          load_global_16(rows.piece[i][j], from);
        }
      }
#if WTS_EXACT
    load_global_again_16(rows.numbers[i], source + 2 * plan::RANK);
    if (lane == 0)
      prefetch_l2(block.shared.exact_table + token[i] * (2ll * plan::RANK), 2 * plan::RANK);
#else
    if constexpr (plan::QUANTISED) load_global_words(rows.numbers[i], source + 2 * plan::RANK);
#endif
  }
}

template <int COUNT>
__device__ __forceinline__ void put_rows(const Block& block, const LatentRows<COUNT>& rows,
                                         int round, int first_served) {
  const int lane = lane_index(), slot = latent_slot(round);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int column = block.column(first_served + i);
#pragma unroll
    for (int j = 0; j < rows.PIECES; ++j)
      if ((j * 32 + lane) * 16 < 2 * plan::RANK)
        put_piece(block, slot, column, j * 32 + lane, rows.piece[i][j]);
    if (plan::QUANTISED && lane == 0) {
      block.shared.latent_scale[slot][column] = __uint_as_float(rows.numbers[i][0]);
      keep_slack(block, round, column, __uint_as_float(rows.numbers[i][rows.NUMBERS > 1 ? 1 : 0]),
                 __uint_as_float(rows.numbers[i][rows.NUMBERS > 1 ? 2 : 0]));
    }
  }
}

}  // namespace wts
