// The shared memory of a block, laid out by the plan. Plain C++: g++ checks it against the planner.
#pragma once
#include "plan_constants.h"

namespace wts {

using Byte = unsigned char;
using Barrier = unsigned long long;

// What one walk's block keeps in shared memory. Every size comes from the plan; an array the plan
// does not need has one element, so that the struct stays plain C++.
struct Shared {
  // Resident fragments of each sweeping warp, in the order of their use.
  alignas(128) Byte fragments[plan::FRAGMENT_STORAGE][plan::FRAGMENT_BYTES];
  // Weight scale of each row of the shard.
  alignas(16) float row_scale[plan::ROWS];
  // Base logits of the shard, staged ahead: a slot for each (step, group), a line for each request.
  alignas(16) Byte base[plan::BASE_SLOTS][plan::COLUMNS][plan::BASE_LINE_BYTES];
  // Random words of the shard, drawn ahead in the same slots, for sampled walks.
  alignas(16) unsigned int noise[plan::NOISE_SLOTS][plan::COLUMNS][plan::NOISE_ROWS];
  // Temperature of each request; not above 0 where it is greedy.
  alignas(16) float temperature[plan::GROUPS][plan::COLUMNS];
  // Quantised latents as they lie in the table: fragment order, then the scale.
  alignas(16) Byte latent[plan::GROUPS][plan::COLUMNS][plan::LATENT_LINE_BYTES];
  // Best row of each sweeping warp: ordered key, and position in the shard.
  alignas(16) int candidate_key[plan::GROUPS][plan::COLUMNS][plan::SWEEP_WARPS];
  alignas(16) int candidate_row[plan::GROUPS][plan::COLUMNS][plan::SWEEP_WARPS];
  // Events. Latents and candidates: one phase a step. Base: one phase a use of the slot.
  alignas(8) Barrier weights_landed;
  Barrier latents_ready[plan::GROUPS];
  Barrier candidates_ready[plan::GROUPS];
  Barrier base_landed[plan::BASE_SLOTS];
  Barrier base_copied[plan::BASE_SLOTS][plan::COLUMNS];
  // When to give up an exchange that is late already, by column.
  unsigned long long deadline[plan::COLUMNS];
  // The walk's first exchange, read once from the workspace.
  alignas(16) unsigned int sequence;
  // The walk's number in the noise counter.
  unsigned int noise_offset;
  // Set when a wait on another block ran out: the rest of the walk no longer waits.
  int abandoned;
};

static_assert(sizeof(Shared) == plan::SHARED_BYTES, "planner and kernel disagree on shared memory");
static_assert(plan::SHARED_BYTES <= plan::SHARED_BYTES_LIMIT, "the shard does not fit in a block");

}  // namespace wts
