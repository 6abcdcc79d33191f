// The shared memory of a block, laid out by the plan. Plain C++: g++ checks it against the planner.
#pragma once
#include "plan_constants.h"
#include "types.cuh"

namespace wts {

// What one walk's block keeps in shared memory. Every size comes from the plan; an array the plan
// does not need has one element, so that the struct stays plain C++.
struct Shared {
  // Resident fragments of each sweeping warp, in the order of their use; then tcgen05's tiles.
  alignas(128) Byte fragments[plan::FRAGMENT_STORAGE][plan::FRAGMENT_BYTES];
  // Where streamed weights pass through: half tiles of warpgroups, or fragments of warps.
  alignas(128) Byte ring[plan::RING_PLACES][plan::RING_UNIT_BYTES];
  // Weight scales of the rows of the shard.
  alignas(16) RowScale row_scale[plan::ROW_SCALE_WORDS];
  // Base logits of the shard, staged ahead: a slot for each (step, group), a line for each request.
  alignas(16) Byte base[plan::BASE_SLOTS][plan::COLUMNS][plan::BASE_LINE_BYTES];
  // For sampled walks, by sweeping thread: noise drawn before the latents are known; and where
  // scores are too close for their approximations, step logits on their way to precise scores.
  alignas(16) float noise[plan::PARKED_NOISE][plan::PARKING_THREADS];
  alignas(16) float logits[plan::PARKED_LOGITS][plan::PARKING_THREADS];
  // Temperature of each request; not above 0 where it is greedy.
  alignas(16) float temperature[plan::SAMPLED ? plan::GROUPS : 1][plan::COLUMNS];
  // What a step logit is multiplied with for its score: 1 / T, or 1 where the request is greedy.
  alignas(16) float inverse_temperature[plan::SAMPLED ? plan::GROUPS : 1][plan::COLUMNS];
  // Latents, quantised for int8 weights: a line for each request, or as the instruction of a
  // warpgroup or tcgen05 wants a group's.
  alignas(128) Byte latent[plan::LATENT_SLOTS][plan::LATENT_SLOT_BYTES];
  alignas(16) float latent_scale[plan::QUANTISED ? plan::LATENT_SLOTS : 1][plan::COLUMNS];
  // Last token of each request, where its latent is fetched later than it is known.
  alignas(16) int token[plan::LATER_TOKENS];
  // Best row of each sweeping warp, in a sampled plan the two best: ordered key, position in the
  // shard, and step logit. A round's lie in the slot of its base logits: that slot is filled anew
  // only when they have been read. In an exact walk, kept until the round is concluded: of a warp
  // that multiplies alone its best row, of others the two best and the key of a third.
  alignas(16) int candidate_key[plan::CANDIDATE_SLOTS][plan::COLUMNS][plan::CANDIDATES];
  alignas(16) int candidate_row[plan::CANDIDATE_SLOTS][plan::COLUMNS][plan::CANDIDATES];
  alignas(16) float candidate_logit[plan::CANDIDATE_SLOTS][plan::COLUMNS]
                                   [plan::SAMPLED ? plan::CANDIDATES : 1];
  // By service warp: words of a race too close for approximate scores, or for int8 weights.
  alignas(16) unsigned int race[plan::RACES][plan::RACE_WORDS];
  // This block's rows of the matrices that states and hidden states are multiplied with, in bf16;
  // hidden states of the next steps, and what they add to these rows' sums.
  alignas(16) unsigned short state_weight[plan::UNIT_ROWS * plan::BLOCK_UNITS][plan::STATE];
  alignas(16) unsigned short projector_weight[plan::BLOCK_PROJECTIONS][plan::STATE];
  alignas(16) unsigned short hidden_weight[plan::HIDDEN_ROWS][plan::HIDDEN_STORAGE];
  alignas(16) unsigned short hidden[plan::HIDDEN_PLACES][plan::EARLY_COLUMNS][plan::HIDDEN_STORAGE];
  alignas(16) float own_part[plan::PART_SLOTS][plan::EARLY_COLUMNS][plan::HIDDEN_ROWS];
  // The state of each request, and all blocks' inner sums with those of a round.
  alignas(16) unsigned short state[plan::STATES][plan::STATE];
  alignas(16) Byte early[plan::EARLY_COLUMNS][plan::UNIT_STORAGE * plan::UNIT_BYTES];
  // RNN: what the state is made of once the latent is sent, in bf16; of owned units, the latent.
  alignas(16) unsigned short joint[plan::EARLY_COLUMNS][plan::JOINT_STORAGE];
  alignas(16) float projections[plan::EARLY_COLUMNS][plan::PROJECTOR_STORAGE];
  // What warps that make a latent together tell each other: its token, their largest elements.
  alignas(16) int team_token[plan::SERVICE_WARPS];
  // Each request's last token, for sweeping warps that take it in.
  int inner_token[plan::EARLY_COLUMNS];
  unsigned int team_largest[plan::SERVICE_WARPS];
  // Events, one phase a use of the slot.
  alignas(8) Barrier weights_landed;
  Barrier latents_ready[plan::LATENT_SLOTS];
  Barrier candidates_ready[plan::BASE_SLOTS];
  Barrier base_landed[plan::BASE_SLOTS];
  Barrier base_copied[plan::BASE_SLOTS][plan::COLUMNS];
  Barrier ring_landed[plan::RINGS][plan::RING_LENGTH];
  // Warps that have read a place of a warpgroup's ring, so far.
  unsigned int ring_readers[plan::RINGS][plan::RING_LENGTH];
  Barrier state_landed;
  Barrier hidden_landed[plan::HIDDEN_PLACES][plan::EARLY_COLUMNS];
  Barrier token_known;
  Barrier sums_published;
  Barrier sums_gathered;
  // When to give up an exchange that is late already, by warp.
  unsigned long long deadline[plan::THREADS / 32];
  // The walk's first exchange, read once from the workspace.
  alignas(16) unsigned int sequence;
  // The walk's number in the noise counter.
  unsigned int noise_offset;
  // Set when a wait on another block ran out: the rest of the walk no longer waits.
  int abandoned;
#if WTS_EXACT
  // What raises a latent's sums to upper bounds; by request, how far below its bound a row of scale
  // 1 may lie, and the token before the step (Markov) or its latent in bf16 (others).
  alignas(16) float latent_slack[plan::LATENT_SLOTS][plan::COLUMNS];
  alignas(16) float margin[plan::GROUPS * plan::COLUMNS];
  alignas(16) int previous[plan::GROUPS * plan::COLUMNS];
  alignas(16) unsigned short exact_latent[plan::EXACT_LATENT_SLOTS][plan::COLUMNS]
                                         [plan::EXACT_LATENT];
  // The two best candidates of each lane of a warp that multiplies alone, of LANE_SLOTS rounds.
  alignas(16) int2 lane_candidate[plan::LANE_SLOTS > 0 ? plan::LANE_SLOTS * plan::SWEEP_WARPS * 32
                                                       : 1];
  // The unquantised head, as in ExactSource.
  alignas(16) const Byte* exact_weight;
  const Byte* exact_table;
  float largest_scale, spread, growth, smallest, longest;
  // What warps that make a latent together tell each other of its length.
  unsigned int team_squares[plan::SERVICE_WARPS];
#endif
#if WTS_TENSOR
  // By accumulator in tensor memory: that its sums are there, one phase a round.
  Barrier sums_made[plan::ASYNC_ACCUMULATORS];
  // Where the block's tensor memory begins.
  unsigned int tensor_memory;
#endif
#if WTS_OWNED
  // This block's sums of its own units for each request's next token, kinds BLOCK_UNITS apart.
  alignas(16) float own_sum[plan::STATES][plan::UNIT_ROWS * plan::BLOCK_UNITS];
  // By group, one phase a step: that these are there, and that this block has published what it
  // adds to all blocks' states and projections.
  alignas(8) Barrier own_sums_made[plan::GROUPS];
  Barrier states_sent[plan::GROUPS];
  Barrier projections_sent[plan::GROUPS];
#endif
};

static_assert(sizeof(Shared) == plan::SHARED_BYTES, "planner and kernel disagree on shared memory");
static_assert(plan::SHARED_BYTES <= plan::SHARED_BYTES_LIMIT, "the shard does not fit in a block");

}  // namespace wts
