// From an integer dot product to a candidate: the step logit of numerics.md, and the order of rows.
#pragma once
#include "layout.cuh"
#include "ptx.cuh"

namespace wts {

// ---- step logit --------------------------------------------------------------------------------

enum class Number { BF16, FP16, FP32 };

constexpr Number BASE_TYPE = static_cast<Number>(plan::BASE_TYPE);
constexpr Number STEP_TYPE = static_cast<Number>(plan::STEP_TYPE);
constexpr int BASE_BYTES = BASE_TYPE == Number::FP32 ? 4 : 2;
constexpr int STEP_BYTES = STEP_TYPE == Number::FP32 ? 4 : 2;

// Two consecutive base logits in shared memory, at a multiple of four bytes.
__device__ __forceinline__ float2 load_base_pair(u32 address) {
  if constexpr (BASE_TYPE == Number::FP32) {
    return {__uint_as_float(load_shared_4(address)), __uint_as_float(load_shared_4(address + 4))};
  } else {
    const u32 pair = load_shared_4(address);
    if constexpr (BASE_TYPE == Number::FP16)
      return {half_to_float(pair & 0xffffu), half_to_float(pair >> 16)};
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

#if WTS_QUANTISED
using Sum = int;          // of an accumulator
using PairScale = float2;  // scales of two consecutive rows

__device__ __forceinline__ PairScale load_pair_scale(const Shared& shared, int row) {
  return *reinterpret_cast<const float2*>(&shared.row_scale[row]);
}
#else
using Sum = float;
using PairScale = u32;  // a bit for each of two consecutive rows

__device__ __forceinline__ PairScale load_pair_scale(const Shared& shared, int row) {
  return shared.row_scale[row >> 5] >> (row & 31);
}
#endif

// z = base + dot * scale, scale = row scale * latent scale; each operation rounded to fp32, none
// fused. In an exact walk the dot is raised by `slack`, and z is not below the unquantised head's
// sum.
__device__ __forceinline__ float step_sum(int high, int low, float scale, float base, float slack) {
  const int dot = 256 * high + low;  // exact: |dot| < 2^31 for ranks up to 512
  float level = __int2float_rn(dot);
  if constexpr (plan::EXACT) level = __fadd_rn(level, slack);
  return __fadd_rn(base, __fmul_rn(level, scale));
}

// Two step logits, rounded once to the step's number type and given back as fp32.
__device__ __forceinline__ void round_pair(float& first, float& second) {
  if constexpr (STEP_TYPE == Number::BF16) {
    const u32 packed = round_bf16x2(first, second);
    first = __uint_as_float(packed << 16);
    second = __uint_as_float(packed & 0xffff0000u);
  } else if constexpr (STEP_TYPE == Number::FP16) {
    first = half_to_float(round_half(first));
    second = half_to_float(round_half(second));
  }
}

// Step logits of two consecutive rows for one request, all but the last rounding: a lane's sums of
// a product hold, for each row, those of an int8 latent's two planes, or those of two requests.
__device__ __forceinline__ void step_pair(const int (&sum)[4], int, float2 scale,
                                          float latent_scale, float2 base, float slack,
                                          float (&logits)[2]) {
  logits[0] = step_sum(sum[0], sum[1], __fmul_rn(scale.x, latent_scale), base.x, slack);
  logits[1] = step_sum(sum[2], sum[3], __fmul_rn(scale.y, latent_scale), base.y, slack);
}

__device__ __forceinline__ void step_pair(const float (&sum)[4], int request, u32 scale, float,
                                          float2 base, float, float (&logits)[2]) {
  const float nan = __int_as_float(0x7fffffff);
  float first = scale & 1u ? nan : sum[request], second = scale & 2u ? nan : sum[2 + request];
  round_pair(first, second);
  logits[0] = __fadd_rn(base.x, first);
  logits[1] = __fadd_rn(base.y, second);
}

// A rounded step logit, as the step's number type stores it, and back.
__device__ __forceinline__ u32 step_bits(float x) {
  if constexpr (STEP_TYPE == Number::FP32) return __float_as_uint(x);
  if constexpr (STEP_TYPE == Number::FP16) return round_half(x);
  return __float_as_uint(x) >> 16;
}

__device__ __forceinline__ float step_value(u32 bits) {
  if constexpr (STEP_TYPE == Number::FP32) return __uint_as_float(bits);
  if constexpr (STEP_TYPE == Number::FP16) return half_to_float(bits);
  return __uint_as_float(bits << 16);
}

__device__ __forceinline__ void store_step_logit(Byte* at, float x) {
  if constexpr (STEP_TYPE == Number::FP32) {
    *reinterpret_cast<u32*>(at) = step_bits(x);
  } else {
    *reinterpret_cast<u16*>(at) = static_cast<u16>(step_bits(x));
  }
}

// Two of them, at a multiple of the size of both.
__device__ __forceinline__ void store_step_logits(Byte* at, float x0, float x1) {
  if constexpr (STEP_TYPE == Number::FP32) {
    *reinterpret_cast<u64*>(at) = step_bits(x0) | static_cast<u64>(step_bits(x1)) << 32;
  } else {
    *reinterpret_cast<u32*>(at) = step_bits(x0) | step_bits(x1) << 16;
  }
}

// ---- order -------------------------------------------------------------------------------------

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
// exact walk with a code above it that says how far below its key the row may be (exact.cuh). Until
// then an exact walk's candidates keep so many bits of their bounds that the inverted row fits
// below.
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
