// The best rows that a lane has seen of a round, and where a warp leaves its own.
#pragma once
#include "block.cuh"
#include "rounds.cuh"
#include "select/key.cuh"

namespace wts {

// Whether scores are precise, where that is known when the kernel is compiled; elsewhere a bool
// says so.
struct Precisely {
  __device__ constexpr operator bool() const { return true; }
};
struct Roughly {
  __device__ constexpr operator bool() const { return false; }
};

// The best rows a lane has seen of one request, where rows may be sampled: ordered scores,
// approximate ones of sampled rows. A row is named by its place among the lane's: 2 * accumulator +
// j.
struct Contest {
  int key = NEVER;
  int second = NEVER;
  int place = 0;
  float logit = 0.0f;

  // Places come in ascending order, so the first of equals has the lowest row.
  __device__ __forceinline__ void offer(int score_key, int score_place, float x) {
    second = max(second, min(key, score_key));
    if (score_key > key) {
      place = score_place;
      logit = x;
    }
    key = max(key, score_key);
  }
};

// By block of operand columns, so by request of this lane.
struct Offers {
  Best best[plan::SAMPLED ? 1 : plan::COLUMN_BLOCKS];
  Contest contest[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];
};

__device__ __forceinline__ void post(const Block& block, int round, int column, int place, int key,
                                     int row, float logit) {
  const int slot = candidate_slot(round);
  block.shared.candidate_key[slot][column][place] = key;
  if constexpr (plan::WIDE) block.shared.candidate_row[slot][column][place] = row;
  if constexpr (plan::SAMPLED) block.shared.candidate_logit[slot][column][place] = logit;
}

}  // namespace wts
