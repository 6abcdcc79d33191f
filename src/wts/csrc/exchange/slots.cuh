// Where words are published.
#pragma once
#include "plan_constants.h"
#include "types.cuh"

namespace wts {

// The slots of one request at one parity: one word per block.
__device__ __forceinline__ ExchangeWord* exchange_slots(ExchangeWord* workspace, u32 sequence,
                                                        int request) {
  const int line = static_cast<int>(sequence & 1u) * (plan::GROUPS * plan::COLUMNS) + request;
  return workspace + line * plan::SLOT_LINE_WORDS;
}

}  // namespace wts
