// What a walk leaves behind.
#pragma once
#include "types.cuh"

namespace wts {

// Counters a walk leaves behind, in global memory; the host reads them when asked.
struct Status {
  u32 sequence;         // exchanges done since the workspace was cleared
  u32 error;            // 0, or 1 + the block whose word did not come
  u32 error_block;      // who waited
  u32 error_step;       // at which step of the walk
  u32 clamped_anchors;  // anchors outside the table, so far
  u32 rescored_steps;   // steps of a request that an exact walk decided by exact logits, so far
  u32 rescored_rows;    // rows that it computed them of, each once
};

}  // namespace wts
