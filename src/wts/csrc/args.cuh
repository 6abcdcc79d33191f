// The kernel's one argument.
#pragma once
#include "exact_source.cuh"
#include "plan_constants.h"
#include "status.cuh"
#include "turn.cuh"
#include "types.cuh"

namespace wts {

struct WalkArgs {
  const Byte* tiles;           // packed W, in the order of the plan's instruction
  const RowScale* row_scale;   // [NUM_BLOCKS * ROW_SCALE_WORDS]
  const Byte* table;           // what a token fetches: rows of TABLE_ROW_BYTES
  float* hidden_part;  // [B, K, PART], of a head that reads hidden states; written if made here
  const Byte* hidden;          // [B, K, HIDDEN] in bf16
  long long hidden_request_stride, hidden_step_stride;  // in elements
  const Byte* hidden_weight;   // [PART, HIDDEN] in bf16
  const Byte* hidden_bias;     // [PART] in bf16, or null
  const int* draft_to_target;  // [VOCAB], in a mapped plan
  const Byte* base;            // [B, K, V]
  long long base_request_stride, base_step_stride;  // in elements
  const long long* anchor;     // [B]
  long long anchor_stride;
  long long* tokens;           // [B, K]
  const float* temperatures;   // [B], in a sampled plan, or where `turn` asks for them
  long long* noise_offset;     // [1], likewise
  u64 noise_key;
  Byte* logits_out;            // [B, K, V] in the step's type, or null
  long long logits_request_stride, logits_step_stride;  // in elements
  ExchangeWord* slots;
  const Byte* state_weight;      // [3 STATE, STATE] in bf16, of a head with a state
  const Byte* projector_weight;  // [PROJECTOR_ROWS, STATE] in bf16, of a Domino head
  u64* state_slots;  // [EARLY_SLOTS, GROUPS * COLUMNS, UNITS * UNIT_WORDS], the projector's
  Status* status;
  u64* trace;
  int num_requests, num_steps;
  u32 timeout_us;
  Turn turn;
  const ExactSource* exact;  // of an exact walk: the unquantised head
  u64* exact_slots;          // [GROUPS * COLUMNS, NUM_BLOCKS], words of undecided blocks
};
static_assert(sizeof(WalkArgs) == WTS_ARGS_BYTES, "host and kernel disagree on the arguments");

}  // namespace wts
