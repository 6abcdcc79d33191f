// A block's word of an exchange: its best row and the exchange's tag, together.
#pragma once
#include "numbers.cuh"
#include "plan_constants.h"
#include "select/key.cuh"

namespace wts {

#if WTS_WIDE
// key : 32 | inverted row : 16 | tag : 16, or where it is an approximate score's,
// key : 32 | step logit : 16 | inverted row : 12 | tag : 4.
constexpr u32 TAG_MASK = plan::SCORED ? 0xfu : 0xffffu;
#else
// key : 16 | inverted row : 12 | tag : 4, or in an exact walk
// key : 16 | inverted row : 11 | code : 3 | tag : 2.
constexpr u32 TAG_MASK = (1u << TAG_BITS) - 1;
#endif

__device__ __forceinline__ u32 exchange_tag(u32 sequence) { return (sequence >> 1) & TAG_MASK; }

__device__ __forceinline__ ExchangeWord pack_word(const Best& best, u32 tag) {
  if constexpr (plan::WIDE) {
    u32 low = ((0xffffu - static_cast<u32>(best.row)) << 16) | tag;
    if constexpr (plan::SCORED)
      low = step_bits(best.logit) << 16 | static_cast<u32>(LAST_ROW - best.row) << TAG_BITS | tag;
    return static_cast<ExchangeWord>(
        (static_cast<u64>(static_cast<u32>(best.key)) << 32) | low);
  } else {
    return static_cast<ExchangeWord>(static_cast<u32>(best.key) | tag);
  }
}

// What stands for a block that does not exist: it has come, and never wins.
__device__ __forceinline__ ExchangeWord absent_word(u32 tag) {
  Best nobody;
  return pack_word(nobody, tag);
}

__device__ __forceinline__ u32 word_tag(ExchangeWord word) {
  return static_cast<u32>(word) & TAG_MASK;
}

__device__ __forceinline__ int word_key(ExchangeWord word) {
  if constexpr (plan::WIDE) return static_cast<int>(static_cast<u64>(word) >> 32);
  return static_cast<int>(static_cast<u32>(word) & 0xffff0000u);
}

__device__ __forceinline__ int word_row(ExchangeWord word) {
  if constexpr (plan::WIDE && !plan::SCORED) {
    return static_cast<int>(0xffffu - ((static_cast<u32>(word) >> 16) & 0xffffu));
  } else {
    return compact_row(static_cast<u32>(word));
  }
}

}  // namespace wts
