// Keys, by which candidates are in order, and the best of them.
#pragma once
#include "plan_constants.h"
#include "ptx/number.cuh"
#include "ptx/warp.cuh"

namespace wts {

constexpr int NEVER = static_cast<int>(0x80000000u);  // below the key of -inf

// Signed order of keys = order of scores; -0 equals +0; NaN is above +inf, whatever its sign.
__device__ __forceinline__ int ordered_key(float score) {
  int bits = __float_as_int(__fadd_rn(score, 0.0f));  // -0 becomes +0
  if constexpr (plan::WIDE) {
    if (score != score) bits = 0x7fffffff;  // the hardware's NaN may carry a sign
  }
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The same for a number that arithmetic has just made: its NaN is positive, and a zero that was
// added made its zero positive.
__device__ __forceinline__ int score_order(float score) {
  const int bits = __float_as_int(score);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The score a key was made of (a NaN gives one that compares with nothing).
__device__ __forceinline__ float score_of_key(int key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// A compact candidate keeps the bf16 key above the inverted row, so that one signed maximum picks
// the largest key and, among equals, the lowest row. The tag of the exchange fits below; in an
// exact walk with a code above it that says how far below its key the row may be
// (select/exact.cuh). Until then an exact walk's candidates keep so many bits of their bounds that
// the inverted row fits below.
constexpr int ROW_BITS = plan::EXACT ? 11 : 12;
constexpr int TAG_BITS = plan::EXACT ? 2 : 4;
constexpr int ROW_SHIFT = 16 - ROW_BITS;
constexpr int LAST_ROW = (1 << ROW_BITS) - 1;
static_assert(plan::WIDE || plan::ROWS <= LAST_ROW + 1,
              "a compact candidate has so few bits of row");

__device__ __forceinline__ int compact_candidate(int key, int inverted_row_shifted) {
  return (key & static_cast<int>(0xffff0000u)) | inverted_row_shifted;
}

__device__ __forceinline__ int compact_row(u32 candidate) {
  return LAST_ROW - static_cast<int>((candidate >> ROW_SHIFT) & LAST_ROW);
}

__device__ __forceinline__ int bound_candidate(float bound, int inverted_row) {
  return (score_order(bound) & ~LAST_ROW) | inverted_row;
}

__device__ __forceinline__ int candidate_row(int candidate) {
  return LAST_ROW - (candidate & LAST_ROW);
}

// The same for two bf16 scores at once: keys of 16 bits that compare as signed numbers.
__device__ __forceinline__ u32 ordered_keys_bf16x2(u32 pair) {
  const u32 positive = plus_zero_bf16x2(pair);
  return positive ^ (signs_of_halves(positive) & 0x7fff7fffu);
}

// The best of a lane so far: the largest key, then the lowest row.
struct Best {
  int key = NEVER;
  int row = 0;
  float logit = 0.0f;  // where words are scored
#if WTS_EXACT
  int second = NEVER;  // the next best, of this row or another
#endif

  __device__ __forceinline__ void offer(int candidate_key, int candidate_row) {
    if constexpr (plan::WIDE) {
      if (candidate_key > key || (candidate_key == key && candidate_row < row)) {
        key = candidate_key;
        row = candidate_row;
      }
    } else {
      const int inverted = (LAST_ROW - candidate_row) << ROW_SHIFT;
      key = max(key, compact_candidate(candidate_key, inverted));
    }
  }

  // Two scores of consecutive rows, where candidates are compact: to be rounded to bf16, or bounds.
  __device__ __forceinline__ void offer_pair(const float (&scores)[2], int first_row,
                                             bool present) {
#if WTS_EXACT
    const int even = bound_candidate(scores[0], LAST_ROW - first_row);
    const int odd = bound_candidate(scores[1], LAST_ROW - first_row - 1);
#else
    const u32 keys = ordered_keys_bf16x2(round_bf16x2(scores[0], scores[1]));
    const u32 inverted = static_cast<u32>(LAST_ROW - first_row) << ROW_SHIFT;
    const int even = static_cast<int>((keys << 16) + inverted);
    const int odd = static_cast<int>((keys & 0xffff0000u) + (inverted - (1u << ROW_SHIFT)));
#endif
    const int larger = present ? max(even, odd) : NEVER;
#if WTS_EXACT
    second = max(second, max(min(key, larger), present ? min(even, odd) : NEVER));
#endif
    key = max(key, larger);
  }
};

// The best of a warp, in all lanes; lanes that do not take part offer NEVER.
__device__ __forceinline__ Best warp_best(Best mine) {
  Best best;
  best.key = warp_max(mine.key);
  if constexpr (plan::WIDE) {
    const u32 inverted = mine.key == best.key ? 0xffffffffu - static_cast<u32>(mine.row) : 0u;
    best.row = static_cast<int>(0xffffffffu - warp_max_unsigned(inverted));
  }
  return best;
}

}  // namespace wts
