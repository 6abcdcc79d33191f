// The bounds of an exact walk (select/exact.cuh): what a row has at most and at least, by a
// candidate or by a word.
#pragma once
#include "heads/kind.cuh"
#include "numbers.cuh"
#include "plan_constants.h"
#include "ptx/number.cuh"
#include "select/key.cuh"
#include "shared.cuh"

namespace wts {

#if WTS_EXACT

static_assert(!plan::WIDE && STEP_TYPE == Number::BF16,
              "exact walks compare bf16 logits in short words");
static_assert(plan::CANDIDATES <= 32, "a lane for each candidate");

// Below its bound a row may be by what fp32 rounds (2^-23 and a little), near 0 by the smallest
// normal number, and by the margin; below a bound that was rounded to bf16 by half a place more,
// and by what a candidate does not keep (2^-8, 2^-12 and a little).
constexpr float FP32_PLACES = 4.77e-7f, LEAST_PLACE = 1.17549435e-38f, HALF_PLACE = 0.00416f;
constexpr float LARGEST_DECIDED = 3.3e38f;  // above, and at infinity and NaN, a bound says nothing

// The code of a word: how many places its row may be below its key, or that its block is undecided.
// In a list of contenders a bit says the latter.
constexpr u32 CODE_MASK = 7;
constexpr u32 UNDECIDED = CODE_MASK;
static_assert(TAG_BITS + 3 == ROW_SHIFT, "three bits of code");
__device__ __forceinline__ u32 word_code(ExchangeWord word) {
  return static_cast<u32>(word) >> TAG_BITS & CODE_MASK;
}
constexpr u32 BLOCK_NOT_TOKEN = 1u << 31;

// Up to 6 places have a code each, where errors were measured. Bounds by lengths are wider: up to
// 3, then 7, 15 and 31.
constexpr bool MEASURED = HEAD == Head::MARKOV;
__device__ __forceinline__ u32 code_of_places(u32 places) {
  if (MEASURED || places < 4) return min(places, UNDECIDED);
  return min(33u - static_cast<u32>(__clz(static_cast<int>(places))), UNDECIDED);
}
__device__ __forceinline__ int places_of(u32 code) {
  return static_cast<int>(MEASURED || code < 4 ? code : (1u << (code - 1)) - 1);
}

__device__ __forceinline__ int key_part(int key) { return key & static_cast<int>(0xffff0000u); }

// The bf16 number of a key, and the key of a number rounded to bf16.
__device__ __forceinline__ float key_value(int key) {
  return __int_as_float(key_part(key) ^ ((key >> 31) & 0x7fff0000));
}
__device__ __forceinline__ int key_of(float value) {
  const int bits = static_cast<int>(plus_zero_bf16x2(round_bf16x2(0.0f, value)) & 0xffff0000u);
  return bits ^ ((bits >> 31) & 0x7fff0000);
}

// The key of a candidate: of the largest bound that it may stand for; of none that of -inf.
__device__ __forceinline__ int bound_key(int candidate) {
  constexpr int LEAST = static_cast<int>(0x807fffffu);
  return key_of(score_of_key(max(candidate | LAST_ROW, LEAST)));
}

// The least bound that a candidate may stand for.
__device__ __forceinline__ float least_bound(int candidate) {
  return score_of_key(candidate & ~LAST_ROW);
}

// What a row has at least, a key, by its bound, a finite one, a relative error of it, and the row's
// margin. Of weights that are not finite that is NaN, whose key is above that of the bound.
__device__ __forceinline__ int least_key(float bound, float relative, float scale, float margin) {
  const float below = fmaf(fabsf(bound), relative, fmaf(scale, margin, LEAST_PLACE));
  return key_of(__fadd_rn(bound, -below));
}
__device__ __forceinline__ int never_if_nan(int least, int key) {
  return least > key ? NEVER : least;
}
// In an exact walk: the two best candidates of each lane of a sweeping warp, for a crowded step
// (select/exact.cuh).
static_assert(plan::LANE_SLOTS == 0 || plan::COLUMN_BLOCKS == 1,
              "a lane holds rows of one request");
__device__ __forceinline__ int2* lane_candidates(Shared& shared, int round, int warp) {
  const int slot = round % (plan::LANE_SLOTS > 0 ? plan::LANE_SLOTS : 1);
  return shared.lane_candidate + (slot * plan::SWEEP_WARPS + warp) * 32;
}

#endif

// What an exact walk adds to a latent's sums, in levels.
__device__ __forceinline__ float slack_of([[maybe_unused]] const Shared& shared,
                                          [[maybe_unused]] int slot, [[maybe_unused]] int column) {
#if WTS_EXACT
  return shared.latent_slack[slot][column];
#else
  return 0.0f;
#endif
}

}  // namespace wts
