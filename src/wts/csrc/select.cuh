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

// Two consecutive base logits; their address is a multiple of their size.
__device__ __forceinline__ float2 load_base_pair(const Byte* pointer) {
  if constexpr (BASE_TYPE == Number::FP32) {
    return {reinterpret_cast<const float*>(pointer)[0], reinterpret_cast<const float*>(pointer)[1]};
  } else {
    const u32 pair = *reinterpret_cast<const u32*>(pointer);
    if constexpr (BASE_TYPE == Number::FP16)
      return {half_to_float(pair & 0xffffu), half_to_float(pair >> 16)};
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

// z = base + dot * scale, scale = row scale * latent scale; each operation rounded to fp32, none
// fused.
__device__ __forceinline__ float step_sum(int high, int low, float scale, float base) {
  const int dot = 256 * high + low;  // exact: |dot| < 2^31 for ranks up to 512
  return __fadd_rn(base, __fmul_rn(__int2float_rn(dot), scale));
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

// A rounded step logit, as the step's number type stores it.
__device__ __forceinline__ void store_step_logit(Byte* logits, long long at, float x) {
  if constexpr (STEP_TYPE == Number::FP32) {
    reinterpret_cast<float*>(logits)[at] = x;
  } else if constexpr (STEP_TYPE == Number::FP16) {
    reinterpret_cast<u16*>(logits)[at] = static_cast<u16>(round_half(x));
  } else {
    reinterpret_cast<u16*>(logits)[at] = static_cast<u16>(__float_as_uint(x) >> 16);
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

// The score a key was made of (a NaN gives one that compares with nothing).
__device__ __forceinline__ float score_of_key(int key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// A compact candidate keeps the bf16 key above the inverted row, so that one signed maximum picks
// the largest key and, among equals, the lowest row. The tag of the exchange fits below.
constexpr int ROW_BITS = 12;
constexpr int TAG_BITS = 4;
constexpr int LAST_ROW = (1 << ROW_BITS) - 1;
static_assert(plan::WIDE || plan::ROWS <= LAST_ROW + 1, "a compact candidate has 12 bits of row");

__device__ __forceinline__ int compact_candidate(int key, int inverted_row_shifted) {
  return (key & static_cast<int>(0xffff0000u)) | inverted_row_shifted;
}

__device__ __forceinline__ int compact_row(u32 candidate) {
  return LAST_ROW - static_cast<int>((candidate >> TAG_BITS) & LAST_ROW);
}

// The best of a lane so far: the largest key, then the lowest row.
struct Best {
  int key = NEVER;
  int row = 0;

  __device__ __forceinline__ void offer(int candidate_key, int candidate_row) {
    if constexpr (plan::WIDE) {
      if (candidate_key > key || (candidate_key == key && candidate_row < row)) {
        key = candidate_key;
        row = candidate_row;
      }
    } else {
      const int inverted = (LAST_ROW - candidate_row) << TAG_BITS;
      key = max(key, compact_candidate(candidate_key, inverted));
    }
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
