// From the sums of a product to the step logits of numerics.md, and to offers of what may win.
#pragma once
#include "base_lines.cuh"
#include "block.cuh"
#include "numbers.cuh"
#include "ptx/number.cuh"
#include "rounds.cuh"
#include "select/exact_bounds.cuh"
#include "select/key.cuh"
#include "select/offers.cuh"
#include "select/sampled.cuh"
#include "select/token_race.cuh"
#include "tiles.cuh"
#include "weights/bf16.cuh"
#include "weights/int8.cuh"

namespace wts {

// Turns sums into step logits and offers what may win. sum_of(i, block) gives the sums of the i-th
// accumulator, after wait().
template <int ACCUMULATORS_HERE, typename Precise, typename Wait, typename SumOf>
__device__ __forceinline__ void offer_sums(const Block& block, const Lines& lines,
                                           const Sampling& sampling, int warp, int lane, int round,
                                           int first, const Wait& wait, const SumOf& sum_of,
                                           Precise precise,
                                           const float (&limit)[plan::COLUMN_BLOCKS],
                                           Offers& offers) {
  constexpr int BLOCKS = plan::COLUMN_BLOCKS, COUNT = ACCUMULATORS_HERE * BLOCKS;
  const Judged judged{first};
  const LaneRows rows(warp, lane);
  wait();
  PairScale scales[COUNT];
  float2 bases[COUNT];
  float latent_scales[BLOCKS], slacks[BLOCKS];
#pragma unroll
  for (int nth = 0; nth < BLOCKS; ++nth) {
    if constexpr (plan::QUANTISED)
      latent_scales[nth] = block.shared.latent_scale[latent_slot(round)][lane_column(lane, nth)];
    slacks[nth] = slack_of(block, latent_slot(round), lane_column(lane, nth));
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (!judged.exists(i)) continue;
    const int row = rows.row(judged.accumulator(i));
    if (i % BLOCKS == 0) {
      scales[i] = load_pair_scale(block, row);
    } else {
      scales[i] = scales[i - 1];
    }
    bases[i] = load_base_pair(lines.base[judged.nth(i)] + row * BASE_BYTES);
  }
  __syncwarp();  // these loads together, not each before its use
  // The first token of a Domino head is decided by the base logits alone.
  // Padding rows have base logits of -inf and weights of 0. With an infinite element of a bf16
  // latent that would be NaN, which wins.
  constexpr bool PADDED = !plan::QUANTISED && plan::VOCAB % plan::ROWS != 0;
  [[maybe_unused]] const int rows_here = plan::VOCAB - block.first_row();
  const bool plain = plan::PROJECTOR_ROWS > 0 && round_step(round) == 0;
  float logits[COUNT][2];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    logits[i][0] = logits[i][1] = minus_infinity();
    if (!judged.exists(i)) continue;
    step_pair(sum_of(i / BLOCKS, judged.nth(i)), judged.nth(i), scales[i],
              latent_scales[i % BLOCKS], bases[i], slacks[i % BLOCKS], logits[i]);
    if constexpr (PADDED) {
      const int row = rows.row(judged.accumulator(i));
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (row + j >= rows_here) logits[i][j] = minus_infinity();
    }
    if (plain) {
      // Of bounds a NaN has to be the one of arithmetic.
      logits[i][0] = plan::EXACT ? __fadd_rn(bases[i].x, 0.0f) : bases[i].x;
      logits[i][1] = plan::EXACT ? __fadd_rn(bases[i].y, 0.0f) : bases[i].y;
    }
    if constexpr (!plan::WIDE) {
      offers.best[judged.nth(i)].offer_pair(logits[i], rows.row(judged.accumulator(i)),
                                            tile_present(lane, judged.accumulator(i)));
    } else {
      round_pair(logits[i][0], logits[i][1]);
    }
  }
  if constexpr (!plan::WIDE) {
    return;
  } else if constexpr (!plan::SAMPLED) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!judged.exists(i)) continue;
      const int accumulator = judged.accumulator(i), row = rows.row(accumulator);
      const bool present = tile_present(lane, accumulator);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        offers.best[judged.nth(i)].offer(present ? ordered_key(logits[i][j]) : NEVER, row + j);
    }
  } else {
    float noise[COUNT][2], scores[COUNT][2];
    find_noise<COUNT>(block, sampling, rows, lane, round, judged, noise);
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        // A greedy row's score is its step logit: times one, plus a zero that makes -0 a +0.
        scores[i][j] = fused(logits[i][j], sampling.inverse[judged.nth(i)], noise[i][j]);
    if (plan::NOISE_AHEAD && !precise && !sampling.whole) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        if (judged.exists(i) && tile_present(lane, judged.accumulator(i)))
          sampling.export_rows(judged.nth(i), rows.row(judged.accumulator(i)), logits[i][0],
                               logits[i][1]);
    }
    if (precise) score_precisely<COUNT>(block, judged, rows, lane, round, logits, limit, scores);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!judged.exists(i)) continue;
      const int accumulator = judged.accumulator(i), nth = judged.nth(i);
      const bool present = tile_present(lane, accumulator);
      if (!precise && present) {
        if (sampling.whole || plan::NOISE_AHEAD) {
          sampling.export_pair(nth, rows.row(accumulator), logits[i][0], logits[i][1]);
        } else {
          sampling.export_rows(nth, rows.row(accumulator), logits[i][0], logits[i][1]);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        offers.contest[nth].offer(present ? score_order(scores[i][j]) : NEVER, 2 * accumulator + j,
                                  logits[i][j]);
      }
    }
  }
}

}  // namespace wts
