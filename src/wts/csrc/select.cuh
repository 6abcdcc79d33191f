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

// The base logit at a shared-memory address; a line may start at any element, so never wider.
__device__ __forceinline__ float load_base(const Byte* pointer) {
  if constexpr (BASE_TYPE == Number::FP32) {
    return *reinterpret_cast<const float*>(pointer);
  } else {
    const u32 bits = *reinterpret_cast<const u16*>(pointer);
    if constexpr (BASE_TYPE == Number::FP16) return half_to_float(bits);
    return __uint_as_float(bits << 16);
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

// The best of a lane so far. Rows come in ascending order, so only a larger key replaces it.
struct Best {
  int key = NEVER;
  int row = 0;

  __device__ __forceinline__ void offer(int candidate_key, int candidate_row) {
    if constexpr (plan::WIDE) {
      if (candidate_key > key) {
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
