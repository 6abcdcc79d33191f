// How service warps find the best of sampled rows: a block's, then all blocks'.
#pragma once
#include "exchange/all_to_all.cuh"
#include "exchange/gathered.cuh"
#include "exchange/word.cuh"
#include "numbers.cuh"
#include "plan_constants.h"
#include "ptx/base.cuh"
#include "ptx/warp.cuh"
#include "roles/base_logits.cuh"
#include "rounds.cuh"
#include "select/key.cuh"
#include "select/noise.cuh"
#include "select/token_race.cuh"
#include "teams.cuh"

namespace wts {

// Stands for a word that cannot have won: its step logit would be a NaN no arithmetic makes.
constexpr u32 NO_CONTENDER = 0xffffffffu;

struct RaceWarp : BaseLogitsWarp {
  // Ordered key of the precise score of a token of the vocabulary.
  __device__ __forceinline__ int precise_key(int group, int column, int step, u32 token,
                                           float logit) const {
    const float temperature = shared.temperature[group][column];
    if (!(temperature > 0.0f) || logit == minus_infinity()) return ordered_key(logit);
    const Words4 drawn = draw_words(args, shared, token, group, column, step);
    return ordered_key(
        sampled_score(logit, temperature, word_of(drawn, static_cast<int>(token))));
  }

  // Below this no approximate score can stand for the best one, whose key is `top`.
  __device__ __forceinline__ float least_score(int group, int column, int top) const {
    const float score = score_of_key(top);
    const bool open = shared.temperature[group][column] > 0.0f && score > minus_infinity();
    return open ? score - score_slack(score) : -minus_infinity();
  }

  // The same in a sampled plan, for as many columns at once as there are lanes for their
  // candidates: true in the lane whose candidate is its column's best.
  static constexpr int RACES = SERVED * plan::CANDIDATES <= 32 ? SERVED : 1;  // at once
  __device__ __forceinline__ static int race_max(int value) {
    return strided_max<RACES == 1 ? 32 : plan::CANDIDATES, 1>(value);
  }
  __device__ __forceinline__ bool block_races(int round, int first_served, Best& best) const {
    const int lane = lane_index(), slot = candidate_slot(round);
    const int group = round_group(round), step = round_step(round);
    const int race = RACES == 1 ? 0 : lane / plan::CANDIDATES, at = lane % plan::CANDIDATES;
    const int column = this->column(first_served + race);
    if (lane < RACES * plan::CANDIDATES) {
      best.key = shared.candidate_key[slot][column][at];
      best.row = shared.candidate_row[slot][column][at];
      best.logit = shared.candidate_logit[slot][column][at];
    }
    // Words of precise scores are made here; of approximate ones, only a close race needs them.
    int key = best.key, top = race_max(key);
    const float least = least_score(group, column, top);
    const bool close = key != NEVER && (!(score_of_key(key) < least) || key == top);
    const u32 lanes = __ballot_sync(0xffffffffu, close) >> (race * plan::CANDIDATES);
    const bool undecided = !plan::SCORED || __popc(lanes & ((1ull << plan::CANDIDATES) - 1)) > 1;
    if (RACES == 1 ? undecided : __any_sync(0xffffffffu, undecided)) {  // the same in all lanes
      key = close || !plan::SCORED ? key : NEVER;
      if (key != NEVER && undecided)
        key = precise_key(group, column, step, blockIdx.x * plan::ROWS + static_cast<u32>(best.row),
                        best.logit);
      if constexpr (!plan::SCORED) best.key = key;
      top = race_max(key);
    }
    const int lowest = race_max(key == top ? -best.row : -plan::ROWS);
    return key != NEVER && key == top && -best.row == lowest;
  }

  __device__ __forceinline__ static bool contends(ExchangeWord word, float least) {
    return word_key(word) != NEVER && !(score_of_key(word_key(word)) < least);
  }

  // The best of the words that may have won, by precise scores. Through shared memory and rolled
  // up, because it is rare and registers are few.
  __device__ __forceinline__ int closest(const Gathered& gathered, float least, int group,
                                         int column, int step) const {
    u32* race = shared.race[plan::SCORED ? service() : 0];
#pragma unroll
    for (int i = 0; i < BLOCKS_PER_LANE; ++i)
      race[block_of(lane_index(), i)] =
          contends(gathered.words[i], least) ? static_cast<u32>(gathered.words[i]) : NO_CONTENDER;
    __syncwarp();
    int best = NEVER, token = 0;
#pragma unroll 1
    for (int block = 0; block < plan::NUM_BLOCKS; ++block) {
      const u32 low = race[block];
      if (low == NO_CONTENDER) continue;
      const int other = Gathered::token_of(low, block);
      const int key =
          precise_key(group, column, step, static_cast<u32>(other), step_value(low >> 16));
      if (key > best) {  // the lowest block of equals stays
        best = key;
        token = other;
      }
    }
    __syncwarp();
    return token;
  }
};

}  // namespace wts
