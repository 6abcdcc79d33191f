// Sampled rows: a number of noise for each token, which the sweeping warps add to its step logit.
// The best of approximate scores win, unless others are so close that precise ones have to tell.
#pragma once
#include "block.cuh"
#include "exchange/all_to_all.cuh"
#include "exchange/gathered.cuh"
#include "exchange/word.cuh"
#include "numbers.cuh"
#include "ptx/number.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/key.cuh"
#include "select/noise.cuh"
#include "select/offers.cuh"
#include "select/sampled.cuh"
#include "tiles.cuh"

namespace wts {

// The random words of the four consecutive tokens that a token belongs to.
__device__ __forceinline__ Words4 draw_words(const Block& block, u32 token, int group, int column,
                                             int step) {
  return philox(token >> 2, static_cast<u32>(group * plan::COLUMNS + column),
                static_cast<u32>(step), block.shared.noise_offset,
                static_cast<u32>(block.args.noise_key),
                static_cast<u32>(block.args.noise_key >> 32));
}

// Their noise, approximately, for a row of the shard; none for a greedy request.
__device__ __forceinline__ void draw_noise(const Block& block, int row, int round, int column,
                                           bool sampled, float (&noise)[4]) {
  const Words4 drawn = draw_words(block, blockIdx.x * plan::ROWS + row, round_group(round), column,
                                  round_step(round));
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // not in a branch: four at once
    const float approximate = approximate_noise(drawn.word[i]);
    noise[i] = sampled ? approximate : 0.0f;
  }
}

// Where a thread parks the first of an accumulator's two numbers.
__device__ __forceinline__ int noise_place(int accumulator, int nth) {
  return 2 * (accumulator * plan::COLUMN_BLOCKS + nth);
}

// The noise of all rows of a warp, while the latents are not known.
__device__ __forceinline__ void park_noise(const Block& block, const Sampling& sampling, int warp,
                                           int lane, int round) {
  const LaneRows rows(warp, lane);
  const int thread = threadIdx.x;
  constexpr int STEP = SHARING == 1 ? 2 : 1;  // accumulators that four tokens belong to
  // Code has a price, too.
  constexpr int UNROLLED = !plan::WARPGROUPS && ACCUMULATORS <= 12 ? ACCUMULATORS : 1;
#pragma unroll UNROLLED
  for (int accumulator = 0; accumulator < ACCUMULATORS; accumulator += STEP) {
    const int row = rows.row(accumulator);
#pragma unroll
    for (int nth = 0; nth < plan::COLUMN_BLOCKS; ++nth) {
      float noise[4];
      draw_noise(block, row, round, lane_column(lane, nth), sampling.is_sampled(nth), noise);
      const int at = noise_place(accumulator, nth);
      const bool whole = SHARING == 1 && accumulator + 1 < ACCUMULATORS;
      const bool second = !whole && (row & 2);  // half of the tokens are another tile's
      block.shared.noise[at][thread] = second ? noise[2] : noise[0];
      block.shared.noise[at + 1][thread] = second ? noise[3] : noise[1];
      if (whole) {
        block.shared.noise[noise_place(accumulator + 1, nth)][thread] = noise[2];
        block.shared.noise[noise_place(accumulator + 1, nth) + 1][thread] = noise[3];
      }
    }
  }
}

// Where approximations were too close: precise scores of the rows that may win, approximate ones of
// the others. Rolled, through shared memory, because it is rare.
template <int COUNT>
__device__ __forceinline__ void score_precisely(const Block& block, const Judged& judged,
                                                const LaneRows& rows, int lane, int round,
                                                const float (&logits)[COUNT][2],
                                                const float (&limit)[plan::COLUMN_BLOCKS],
                                                float (&scores)[COUNT][2]) {
  const int thread = threadIdx.x, group = round_group(round);
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) block.shared.logits[2 * i + j][thread] = logits[i][j];
#pragma unroll 1
  for (int i = 0; i < 2 * COUNT; ++i) {
    if (!judged.exists(i >> 1)) continue;
    const int nth = judged.nth(i >> 1), column = lane_column(lane, nth);
    const int row = rows.row(judged.accumulator(i >> 1)) + (i & 1);
    const float x = block.shared.logits[i][thread],
                temperature = block.shared.temperature[group][column];
    float least = limit[0];
#pragma unroll
    for (int j = 1; j < plan::COLUMN_BLOCKS; ++j) least = j == nth ? limit[j] : least;
    float score = fused(x, 1.0f, 0.0f);
    if (temperature > 0.0f && x != minus_infinity()) {
      const u32 word = word_of(
          draw_words(block, blockIdx.x * plan::ROWS + row, group, column, round_step(round)), row);
      score = fused(x, block.shared.inverse_temperature[group][column], approximate_noise(word));
      if (!(score < least)) score = __fadd_rn(sampled_score(x, temperature, word), 0.0f);
    }
    block.shared.logits[i][thread] = score;
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) scores[i][j] = block.shared.logits[2 * i + j][thread];
}

// The approximate noise of what is judged at once: parked, or drawn now.
template <int COUNT>
__device__ __forceinline__ void find_noise(const Block& block, const Sampling& sampling,
                                           const LaneRows& rows, int lane, int round,
                                           const Judged& judged, float (&noise)[COUNT][2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) noise[i][0] = noise[i][1] = 0.0f;
  if (!sampling.any) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int accumulator = judged.accumulator(i), nth = judged.nth(i);
    if (!judged.exists(i)) continue;
    if constexpr (plan::NOISE_AHEAD) {
      noise[i][0] = block.shared.noise[noise_place(accumulator, nth)][threadIdx.x];
      noise[i][1] = block.shared.noise[noise_place(accumulator, nth) + 1][threadIdx.x];
    } else if (accumulator % 2 == 0) {  // and of the tile after it, which is judged with it
      const int row = rows.row(accumulator);
      float drawn[4];
      draw_noise(block, row, round, lane_column(lane, nth), sampling.is_sampled(nth), drawn);
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
__device__ __forceinline__ bool post_contests(const Block& block, int warp, int lane, int round,
                                              const Offers& offers, Precise precise,
                                              float (&limit)[plan::COLUMN_BLOCKS]) {
  constexpr u32 OF_REQUEST = BLOCK_REQUESTS == 1   ? 0xffffffffu
                             : BLOCK_REQUESTS == 2 ? 0x55555555u
                                                   : 0x11111111u;
  const int group = round_group(round);
  bool crowded = false;
#pragma unroll
  for (int nth = 0; nth < plan::COLUMN_BLOCKS; ++nth) {
    const Contest& contest = offers.contest[nth];
    const int column = lane_column(lane, nth), key = contest.key;
    const int row = LaneRows(warp, lane).row(contest.place >> 1) + (contest.place & 1);
    const int top = request_max(key);
    // Of a greedy or precise row the lowest of equals is left; so of one of which every row is
    // masked, or NaN.
    const float score = score_of_key(top);
    const bool open =
        block.shared.temperature[group][column] > 0.0f && !precise && score > minus_infinity();
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
      post(block, round, column, warp, key, row, contest.logit);
      if (!open || __popc(close) < 2)
        post(block, round, column, plan::SWEEP_WARPS + warp, NEVER, 0, 0.0f);
    } else if (open && contends) {
      post(block, round, column, plan::SWEEP_WARPS + warp, key, row, contest.logit);
    }
    if (open) limit[nth] = least;
  }
  return !__any_sync(0xffffffffu, crowded);
}

// ---- by service warps: a block's best, then all blocks' -----------------------------------------

// Stands for a word that cannot have won: its step logit would be a NaN no arithmetic makes.
constexpr u32 NO_CONTENDER = 0xffffffffu;

// Ordered key of the precise score of a token of the vocabulary.
__device__ __forceinline__ int precise_key(const Block& block, int group, int column, int step,
                                           u32 token, float logit) {
  const float temperature = block.shared.temperature[group][column];
  if (!(temperature > 0.0f) || logit == minus_infinity()) return ordered_key(logit);
  const Words4 drawn = draw_words(block, token, group, column, step);
  return ordered_key(
      sampled_score(logit, temperature, word_of(drawn, static_cast<int>(token))));
}

// Below this no approximate score can stand for the best one, whose key is `top`.
__device__ __forceinline__ float least_score(const Block& block, int group, int column, int top) {
  const float score = score_of_key(top);
  const bool open = block.shared.temperature[group][column] > 0.0f && score > minus_infinity();
  return open ? score - score_slack(score) : -minus_infinity();
}

// The same in a sampled plan, for as many columns at once as there are lanes for their
// candidates: true in the lane whose candidate is its column's best.
constexpr int RACES = SERVED * plan::CANDIDATES <= 32 ? SERVED : 1;  // at once

__device__ __forceinline__ int race_max(int value) {
  return strided_max<RACES == 1 ? 32 : plan::CANDIDATES, 1>(value);
}

__device__ __forceinline__ bool block_races(const Block& block, int round, int first_served,
                                            Best& best) {
  const int lane = lane_index(), slot = candidate_slot(round);
  const int group = round_group(round), step = round_step(round);
  const int race = RACES == 1 ? 0 : lane / plan::CANDIDATES, at = lane % plan::CANDIDATES;
  const int column = block.column(first_served + race);
  if (lane < RACES * plan::CANDIDATES) {
    best.key = block.shared.candidate_key[slot][column][at];
    best.row = block.shared.candidate_row[slot][column][at];
    best.logit = block.shared.candidate_logit[slot][column][at];
  }
  // Words of precise scores are made here; of approximate ones, only a close race needs them.
  int key = best.key, top = race_max(key);
  const float least = least_score(block, group, column, top);
  const bool close = key != NEVER && (!(score_of_key(key) < least) || key == top);
  const u32 lanes = __ballot_sync(0xffffffffu, close) >> (race * plan::CANDIDATES);
  const bool undecided = !plan::SCORED || __popc(lanes & ((1ull << plan::CANDIDATES) - 1)) > 1;
  if (RACES == 1 ? undecided : __any_sync(0xffffffffu, undecided)) {  // the same in all lanes
    key = close || !plan::SCORED ? key : NEVER;
    if (key != NEVER && undecided)
      key = precise_key(block, group, column, step,
                        blockIdx.x * plan::ROWS + static_cast<u32>(best.row), best.logit);
    if constexpr (!plan::SCORED) best.key = key;
    top = race_max(key);
  }
  const int lowest = race_max(key == top ? -best.row : -plan::ROWS);
  return key != NEVER && key == top && -best.row == lowest;
}

__device__ __forceinline__ bool contends(ExchangeWord word, float least) {
  return word_key(word) != NEVER && !(score_of_key(word_key(word)) < least);
}

// The best of the words that may have won, by precise scores. Through shared memory and rolled
// up, because it is rare and registers are few.
__device__ __forceinline__ int closest(const Block& block, const Gathered& gathered, float least,
                                       int group, int column, int step) {
  u32* race = block.shared.race[plan::SCORED ? block.service() : 0];
#pragma unroll
  for (int i = 0; i < BLOCKS_PER_LANE; ++i)
    race[block_of(lane_index(), i)] =
        contends(gathered.words[i], least) ? static_cast<u32>(gathered.words[i]) : NO_CONTENDER;
  __syncwarp();
  int best = NEVER, token = 0;
#pragma unroll 1
  for (int owner = 0; owner < plan::NUM_BLOCKS; ++owner) {
    const u32 low = race[owner];
    if (low == NO_CONTENDER) continue;
    const int other = Gathered::token_of(low, owner);
    const int key =
        precise_key(block, group, column, step, static_cast<u32>(other), step_value(low >> 16));
    if (key > best) {  // the lowest block of equals stays
      best = key;
      token = other;
    }
  }
  __syncwarp();
  return token;
}

// The token that a column's words agree on. Where approximate scores are too close, every block
// computes the precise ones of the few rows that may have won, from the step logits in their words.
__device__ __forceinline__ int settle(const Block& block, const Gathered& gathered, int round,
                                      int column) {
  const int group = round_group(round), step = round_step(round);
  const int winner = gathered.winner();
  if constexpr (plan::SCORED) {
    int mine = 0, top = NEVER;
#pragma unroll
    for (int i = 0; i < BLOCKS_PER_LANE; ++i) top = max(top, word_key(gathered.words[i]));
    const float least = least_score(block, group, column, warp_max(top));
#pragma unroll
    for (int i = 0; i < BLOCKS_PER_LANE; ++i) mine += contends(gathered.words[i], least);
    const u32 lanes = __ballot_sync(0xffffffffu, mine > 0);
    if (__any_sync(0xffffffffu, mine > 1) || __popc(lanes) > 1)
      return closest(block, gathered, least, group, column, step);
  }
  return winner;
}

}  // namespace wts
