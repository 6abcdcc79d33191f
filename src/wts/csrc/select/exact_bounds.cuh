// The bounds of an exact walk (select/exact.cuh): what a row has at most and at least, by a
// candidate or by a word.
#pragma once
#include "block.cuh"
#include "exchange/word.cuh"
#include "heads/kind.cuh"
#include "heads/runs.cuh"
#include "numbers.cuh"
#include "ptx/number.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/key.cuh"
#include "state/crew.cuh"

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
constexpr u32 CODE_MASK = 7;
constexpr u32 UNDECIDED = CODE_MASK;
static_assert(TAG_BITS + 3 == ROW_SHIFT, "three bits of code");
__device__ __forceinline__ u32 word_code(ExchangeWord word) {
  return static_cast<u32>(word) >> TAG_BITS & CODE_MASK;
}

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

// Whether a bound says anything; of NaN it does not.
__device__ __forceinline__ bool bounded(int candidate) {
  return fabsf(least_bound(candidate)) < LARGEST_DECIDED;
}

// What a candidate's row has at least.
__device__ __forceinline__ int least_of_row(const Block& block, int candidate, float margin) {
  const float scale = block.shared.row_scale[min(candidate_row(candidate), plan::ROWS - 1)];
  return least_key(least_bound(candidate), FP32_PLACES, scale, margin);
}

// What a block's best row has at least, by its word, which is decided.
__device__ __forceinline__ int least_of(ExchangeWord word) {
  return word_key(word) - (places_of(word_code(word)) << 16);
}

// A word among all: of the largest key, then of the lowest block.
__device__ __forceinline__ int rank_of(int key, int owner) { return key | (0xffff - owner); }

// In an exact walk: the two best candidates of each lane of a sweeping warp, for a crowded step
// (select/exact.cuh).
static_assert(plan::LANE_SLOTS == 0 || plan::COLUMN_BLOCKS == 1,
              "a lane holds rows of one request");
__device__ __forceinline__ int2* lane_candidates(const Block& block, int round, int warp) {
  const int slot = round % (plan::LANE_SLOTS > 0 ? plan::LANE_SLOTS : 1);
  return block.shared.lane_candidate + (slot * plan::SWEEP_WARPS + warp) * 32;
}

#endif

// What an exact walk adds to a latent's sums, in levels.
__device__ __forceinline__ float slack_of(const Block& block, [[maybe_unused]] int slot,
                                          [[maybe_unused]] int column) {
#if WTS_EXACT
  return block.shared.latent_slack[slot][column];
#else
  return 0.0f;
#endif
}

// In an exact walk: what a latent adds to its sums, and a request's margin of rows of scale 1.
__device__ __forceinline__ void keep_slack(const Block& block, [[maybe_unused]] int round,
                                           [[maybe_unused]] int column,
                                           [[maybe_unused]] float slack,
                                           [[maybe_unused]] float margin) {
#if WTS_EXACT
  block.shared.latent_slack[latent_slot(round)][column] = slack;
  block.shared.margin[request_of(round, column)] = margin;
#endif
}

// In an exact walk, of a head whose exact latents are table rows: where the next one is.
__device__ __forceinline__ void keep_token(const Block& block, [[maybe_unused]] int request,
                                           [[maybe_unused]] int token) {
#if WTS_EXACT
  if (HEAD == Head::MARKOV && lane_index() == 0) block.shared.previous[request] = token;
#endif
}

// In an exact walk: a run of a latent itself.
__device__ __forceinline__ void keep_latent(const Block& block, [[maybe_unused]] int round,
                                            [[maybe_unused]] int column, [[maybe_unused]] int start,
                                            [[maybe_unused]] const float (&latent)[RUN]) {
#if WTS_EXACT
#pragma unroll
  for (int i = 0; i < RUN; ++i)
    block.shared.exact_latent[round % plan::EXACT_LATENT_SLOTS][column][start + i] =
        bf16_bits(latent[i]);
#endif
}

// In an exact walk: slack and margin of a latent, of all lanes' squares (wts/exact.py). |u| is at
// most 16 t times the root of their sum, and |u - t U| at most t / 2 and a little for each element.
__device__ __forceinline__ void bound_latent(const Block& block, [[maybe_unused]] int round,
                                             [[maybe_unused]] int column,
                                             [[maybe_unused]] float scale,
                                             [[maybe_unused]] u32 squares) {
#if WTS_EXACT
  u32 sum = warp_add(squares);
  if constexpr (TEAM > 1) {
    if (lane_index() == 0) block.shared.team_squares[block.service()] = sum;
    team_of(block).sync();
    if (!block.leads()) return;
    sum = 0;
#pragma unroll
    for (int i = 0; i < TEAM; ++i) sum += block.shared.team_squares[block.team() * TEAM + i];
  }
  constexpr float ROUNDED = 1.001f, HALF_ROOT = plan::RANK == 64    ? 4.1f
                                                : plan::RANK == 128 ? 5.8f
                                                : plan::RANK == 256 ? 8.2f
                                                                    : 11.6f;
  const float length = 16.0f * ROUNDED * approximate_root(__uint2float_rn(sum));
  float slack =
      fmaf(block.shared.spread, length, fmaf(block.shared.growth, HALF_ROOT, 1.0f)) * ROUNDED;
  const bool inside =
      __fmul_rn(scale, block.shared.smallest) >= plan::LEAST_EXACT_PRODUCT &&
      __fmul_rn(__fmul_rn(scale, length), block.shared.longest) < plan::LARGEST_EXACT_PRODUCT;
  if (!inside) slack = __int_as_float(0x7f800000);
  // The first token of a Domino head is base logits' alone.
  if (HEAD == Head::DOMINO && round_step(round) == 0) slack = 0.0f;
  if (lane_index() == 0)
    keep_slack(block, round, column, slack, 2.0f * ROUNDED * __fmul_rn(scale, slack));
#endif
}

}  // namespace wts
