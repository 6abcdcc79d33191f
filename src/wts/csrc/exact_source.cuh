// What an exact walk reads besides packed weights.
#pragma once
#include "plan_constants.h"
#include "types.cuh"

namespace wts {

// What an exact walk reads of the unquantised head; in memory, so that captured graphs find new
// weights.
struct ExactSource {
  const Byte* weight;   // W, [VOCAB or more, RANK] in bf16
  const Byte* table;    // E, [TABLE_ROWS, RANK] in bf16, of a Markov head
  float largest_scale;                      // of rows
  float spread, growth, smallest, longest;  // how a latent's slack is made of it (wts/exact.py)
};
static_assert(sizeof(ExactSource) == 8 * plan::EXACT_SOURCE_WORDS, "as ExactHead.source makes it");

}  // namespace wts
