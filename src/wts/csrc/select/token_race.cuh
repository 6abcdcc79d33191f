// Sampled rows: a number of noise for each token, which the sweeping warps add to its step logit.
// The best of approximate scores win, unless others are so close that precise ones have to tell.
#pragma once
#include "args.cuh"
#include "plan_constants.h"
#include "ptx/number.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/key.cuh"
#include "select/noise.cuh"
#include "select/offers.cuh"
#include "select/sampled.cuh"
#include "shared.cuh"
#include "tiles.cuh"

namespace wts {

// The random words of the four consecutive tokens that a token belongs to.
__device__ __forceinline__ Words4 draw_words(const WalkArgs& args, const Shared& shared, u32 token,
                                             int group, int column, int step) {
  return philox(token >> 2, static_cast<u32>(group * plan::COLUMNS + column),
                static_cast<u32>(step), shared.noise_offset, static_cast<u32>(args.noise_key),
                static_cast<u32>(args.noise_key >> 32));
}

// Their noise, approximately, for a row of the shard; none for a greedy request.
__device__ __forceinline__ void draw_noise(const WalkArgs& args, const Shared& shared, int row,
                                           int round, int column, bool sampled,
                                           float (&noise)[4]) {
  const Words4 drawn = draw_words(args, shared, blockIdx.x * plan::ROWS + row,
                                  round_group(round), column, round_step(round));
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // not in a branch: four at once
    const float approximate = approximate_noise(drawn.word[i]);
    noise[i] = sampled ? approximate : 0.0f;
  }
}

// Where a thread parks the first of an accumulator's two numbers.
__device__ __forceinline__ int noise_place(int accumulator, int block) {
  return 2 * (accumulator * plan::COLUMN_BLOCKS + block);
}

// The noise of all rows of a warp, while the latents are not known.
__device__ __forceinline__ void park_noise(const WalkArgs& args, Shared& shared,
                                           const Sampling& sampling, int warp, int lane,
                                           int round) {
  const LaneRows rows(warp, lane);
  const int thread = threadIdx.x;
  constexpr int STEP = SHARING == 1 ? 2 : 1;  // accumulators that four tokens belong to
  // Code has a price, too.
  constexpr int UNROLLED = !plan::WARPGROUPS && ACCUMULATORS <= 12 ? ACCUMULATORS : 1;
#pragma unroll UNROLLED
  for (int accumulator = 0; accumulator < ACCUMULATORS; accumulator += STEP) {
    const int row = rows.row(accumulator);
#pragma unroll
    for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
      float noise[4];
      draw_noise(args, shared, row, round, lane_column(lane, block), sampling.is_sampled(block),
                 noise);
      const int at = noise_place(accumulator, block);
      const bool whole = SHARING == 1 && accumulator + 1 < ACCUMULATORS;
      const bool second = !whole && (row & 2);  // half of the tokens are another tile's
      shared.noise[at][thread] = second ? noise[2] : noise[0];
      shared.noise[at + 1][thread] = second ? noise[3] : noise[1];
      if (whole) {
        shared.noise[noise_place(accumulator + 1, block)][thread] = noise[2];
        shared.noise[noise_place(accumulator + 1, block) + 1][thread] = noise[3];
      }
    }
  }
}

// Where approximations were too close: precise scores of the rows that may win, approximate ones of
// the others. Rolled, through shared memory, because it is rare.
template <int COUNT>
__device__ __forceinline__ void score_precisely(const WalkArgs& args, Shared& shared,
                                              const Judged& judged, const LaneRows& rows,
                                              int lane, int round,
                                              const float (&logits)[COUNT][2],
                                              const float (&limit)[plan::COLUMN_BLOCKS],
                                              float (&scores)[COUNT][2]) {
  const int thread = threadIdx.x, group = round_group(round);
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) shared.logits[2 * i + j][thread] = logits[i][j];
#pragma unroll 1
  for (int i = 0; i < 2 * COUNT; ++i) {
    if (!judged.exists(i >> 1)) continue;
    const int block = judged.block(i >> 1), column = lane_column(lane, block);
    const int row = rows.row(judged.accumulator(i >> 1)) + (i & 1);
    const float x = shared.logits[i][thread], temperature = shared.temperature[group][column];
    float least = limit[0];
#pragma unroll
    for (int j = 1; j < plan::COLUMN_BLOCKS; ++j) least = j == block ? limit[j] : least;
    float score = fused(x, 1.0f, 0.0f);
    if (temperature > 0.0f && x != minus_infinity()) {
      const u32 word = word_of(draw_words(args, shared, blockIdx.x * plan::ROWS + row, group,
                                          column, round_step(round)),
                               row);
      score = fused(x, shared.inverse_temperature[group][column], approximate_noise(word));
      if (!(score < least)) score = __fadd_rn(sampled_score(x, temperature, word), 0.0f);
    }
    shared.logits[i][thread] = score;
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) scores[i][j] = shared.logits[2 * i + j][thread];
}

// The approximate noise of what is judged at once: parked, or drawn now.
template <int COUNT>
__device__ __forceinline__ void find_noise(const WalkArgs& args, const Shared& shared,
                                           const Sampling& sampling, const LaneRows& rows, int lane,
                                           int round, const Judged& judged,
                                           float (&noise)[COUNT][2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) noise[i][0] = noise[i][1] = 0.0f;
  if (!sampling.any) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int accumulator = judged.accumulator(i), block = judged.block(i);
    if (!judged.exists(i)) continue;
    if constexpr (plan::NOISE_AHEAD) {
      noise[i][0] = shared.noise[noise_place(accumulator, block)][threadIdx.x];
      noise[i][1] = shared.noise[noise_place(accumulator, block) + 1][threadIdx.x];
    } else if (accumulator % 2 == 0) {  // and of the tile after it, which is judged with it
      const int row = rows.row(accumulator);
      float drawn[4];
      draw_noise(args, shared, row, round, lane_column(lane, block), sampling.is_sampled(block),
                 drawn);
      const bool half = accumulator == WHOLE_TILES && (row & 2);
      noise[i][0] = half ? drawn[2] : drawn[0];
      noise[i][1] = half ? drawn[3] : drawn[1];
      const int next = i + plan::COLUMN_BLOCKS;
      if (next < COUNT) {
        noise[next][0] = drawn[2];
        noise[next][1] = drawn[3];
      }
    }
  }
}

// Lanes that hold rows of one request are every BLOCK_REQUESTS-th; all requests are judged at once.
constexpr int REQUEST_LANES = 32 / BLOCK_REQUESTS;
__device__ __forceinline__ int request_max(int value) {
  return strided_max<REQUEST_LANES, BLOCK_REQUESTS>(value);
}

// Leaves the two best of each sampled request, in case they are too close to tell apart; false
// where a third is too close to leave it at that.
template <typename Precise>
__device__ __forceinline__ bool post_contests(Shared& shared, int warp, int lane, int round,
                                              const Offers& offers, Precise precise,
                                              float (&limit)[plan::COLUMN_BLOCKS]) {
  constexpr u32 OF_REQUEST = BLOCK_REQUESTS == 1   ? 0xffffffffu
                             : BLOCK_REQUESTS == 2 ? 0x55555555u
                                                   : 0x11111111u;
  const int group = round_group(round);
  bool crowded = false;
#pragma unroll
  for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
    const Contest& contest = offers.contest[block];
    const int column = lane_column(lane, block), key = contest.key;
    const int row = LaneRows(warp, lane).row(contest.place >> 1) + (contest.place & 1);
    const int top = request_max(key);
    // Of a greedy or precise row the lowest of equals is left; so of one of which every row is
    // masked, or NaN.
    const float score = score_of_key(top);
    const bool open =
        shared.temperature[group][column] > 0.0f && !precise && score > minus_infinity();
    const float least = score - score_slack(score);
    const bool contends = key != NEVER && (open ? !(score_of_key(key) < least) : key == top);
    const bool also =
        open && contest.second != NEVER && !(score_of_key(contest.second) < least);
    const u32 close =
        __ballot_sync(0xffffffffu, contends) & (OF_REQUEST << (lane & (BLOCK_REQUESTS - 1)));
    const int lowest = request_max(key == top ? -row : -plan::ROWS);
    const bool first =
        open ? lane == __ffs(static_cast<int>(close)) - 1 : contends && -row == lowest;
    crowded |= also || (open && __popc(close) > 2);
    if (first) {
      post(shared, round, column, warp, key, row, contest.logit);
      if (!open || __popc(close) < 2)
        post(shared, round, column, plan::SWEEP_WARPS + warp, NEVER, 0, 0.0f);
    } else if (open && contends) {
      post(shared, round, column, plan::SWEEP_WARPS + warp, key, row, contest.logit);
    }
    if (open) limit[block] = least;
  }
  return !__any_sync(0xffffffffu, crowded);
}

}  // namespace wts
