// Where words are published, and which exchange a step's is.
#pragma once
#include "plan_constants.h"
#include "shared.cuh"

namespace wts {

// The exchange of a step: one after the other since the workspace was cleared.
__device__ __forceinline__ u32 sequence_of_step(const Shared& shared, int step) {
  return *reinterpret_cast<const volatile u32*>(&shared.sequence) + static_cast<u32>(step);
}

// The slots of one request at one parity: one word per block.
__device__ __forceinline__ ExchangeWord* exchange_slots(ExchangeWord* workspace, u32 sequence,
                                                        int request) {
  const int line = static_cast<int>(sequence & 1u) * (plan::GROUPS * plan::COLUMNS) + request;
  return workspace + line * plan::SLOT_LINE_WORDS;
}

}  // namespace wts
