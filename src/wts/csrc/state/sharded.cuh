// Units that blocks own: how tokens of more than two requests are taken in. A block keeps the inner
// sums of its own units to itself; once a token is known it makes these units' new states, and
// blocks exchange those: a fraction of the work, of the words and of the shared memory that it
// takes for every block to make all of a state (exchanged_sums.cuh), for an exchange more while a
// step waits.
//
// Of a (step, group), in this order:
//   take in       by the service warp of a request, as soon as its token is known: new states of
//                 own units, published (an RNN's with the elements of its latent).
//   gather        all blocks' states: by the sweeping warps, who then publish their rows of the
//                 projector (Domino), or by the service warps, who have the latent with them (RNN).
//   make latents  by the service warps, of gathered projections or elements.
//   sweep         and behind it own sums for the next token, while blocks exchange candidates.
// Groups take turns in each of these, so that one's exchange passes while others are worked on:
//   service warps:   (publish, conclude, take in) of every group, then latents of every group;
//   sweeping warps:  (gather, project) of every group (Domino), then (sweep, own sums) of every
//                    group.
//
// Nobody waits for ever: in the order of steps, and in each of taking in, gathering, latents and
// sweeps by group, every piece of work waits for earlier ones only, of its own block or of others,
// and every warp does its own in that order. Latents of more groups than have a slot are made when
// a group before has been swept, which is earlier than their own sweep.
//
// What is overwritten has been read:
//   - own sums of step s + 1 are made behind the sweep of s, whose latents came of the group's
//     words of s, this block's too: so the token of s has been taken in.
//   - states are overwritten, and words put, when this block has published the words of s
//     (states_sent, or the same warp has): it then saw all sweeping warps' own sums of s, made of
//     the states before. An own unit's old state goes into its word, and is overwritten only by
//     that.
//   - words of s + 2 go where those of s were: published when all blocks' candidates of s + 1 have
//     come, which each offered behind its words of s.
#pragma once
#include "block.cuh"
#include "exchange/wait.cuh"
#include "heads/activations.cuh"
#include "heads/domino.cuh"
#include "heads/kind.cuh"
#include "heads/lane_products.cuh"
#include "heads/rnn.cuh"
#include "numbers.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "rounds.cuh"
#include "state/crew.cuh"
#include "state/exchanged_sums.cuh"
#include "state/words.cuh"

namespace wts {

#if WTS_OWNED

using Alone = Crew<1>;
constexpr int UNIT_ROWS = plan::UNIT_ROWS;
// Requests whose vectors are multiplied at once, and pieces of work so many requests and a unit
// large.
constexpr int PAIR = plan::COLUMNS % 2 == 0 ? 2 : 1;
constexpr int SUM_ITEMS = plan::BLOCK_UNITS * plan::COLUMNS / PAIR;
// Words of a lane on their way at once, as registers allow.
constexpr int WORDS_OF_SWEEPER = 6, WORDS_OF_SERVANT = HEAD == Head::DOMINO && SERVED > 1 ? 4 : 8;

__device__ __forceinline__ int first_own_unit() {
  return static_cast<int>(blockIdx.x) * plan::BLOCK_UNITS;
}

// This block's sums for the token that a round takes in, of the states before it.
__device__ __forceinline__ void make_own_sums(const SweepersWork& work, int round) {
  if (first_own_unit() >= plan::UNITS) return;  // nobody waits for them
  const Block block = work.block;
  constexpr int SUMS = PAIR * UNIT_ROWS;
  // A lane keeps the sum of one row and one request.
  const int lane = lane_index(), mine = min(lane, SUMS - 1);
  const int kind = mine % UNIT_ROWS, vector = mine / UNIT_ROWS;
#pragma unroll 1
  for (int item = work.crew.member; item < SUM_ITEMS; item += Sweepers::MEMBERS) {
    const int own = item % plan::BLOCK_UNITS, column = item / plan::BLOCK_UNITS * PAIR;
    const int unit = first_own_unit() + own, request = request_of(round, column);
    if (unit >= plan::UNITS) continue;
    float part = 0.0f;
    if constexpr (HEAD == Head::RNN)
      part = __uint_as_float(
          load_global_4(given_part(block, round, column + vector) + kind * plan::UNITS + unit));
    float sum[PAIR][UNIT_ROWS];
    lane_products<UNIT_ROWS, plan::STATE, PAIR>(block.shared.state_weight[own],
                                                plan::BLOCK_UNITS * plan::STATE,
                                                block.shared.state[request], lane, sum);
    const float all = of_lane(reinterpret_cast<const float(&)[SUMS]>(sum), lane);
    if (lane < SUMS)
      block.shared.own_sum[request + vector][kind * plan::BLOCK_UNITS + own] =
          HEAD == Head::RNN ? __fadd_rn(part, all) : rounded(all);
  }
  warp_arrive(&block.shared.own_sums_made[round_group(round)]);
}

// Before the first sweep: states are zeros.
__device__ __forceinline__ void begin_own_units(const Block& block) {
  const SweepersWork work = sweepers_work(block);
#pragma unroll 1
  for (int request = 0; request < plan::STATES; ++request) work.begin_state(request);
  barrier_wait(&block.shared.state_landed, 0);
  work.crew.sync();
#pragma unroll 1
  for (int group = 0; group < plan::GROUPS; ++group) make_own_sums(work, group);
}

// Behind the sweep of a round: the sums for the group's next token.
__device__ __forceinline__ void make_next_own_sums(const Block& block, int round) {
  if (round_step(round) + 1 < block.args.num_steps)
    make_own_sums(sweepers_work(block), round + plan::GROUPS);
}

// New states of this block's units, published, of the requests of a round from `first_column` on
// that have these tokens. A lane makes a unit's; the first of a word's publishes it.
template <int COUNT>
__device__ __forceinline__ void take_in_own(const Block& block, int round, int first_column,
                                            const int (&token)[COUNT]) {
  constexpr int EACH = plan::WORD_UNITS, WORDS = COUNT * plan::BLOCK_WORDS, AT_ONCE = 32 / EACH;
  const int here = min(plan::BLOCK_UNITS, plan::UNITS - first_own_unit()), lane = lane_index();
  if (here <= 0) return;
  const u32 sequence = block.sequence_of(round_step(round));
#pragma unroll 1
  for (int start = 0; start < WORDS; start += AT_ONCE) {
    // Behind the last word, or unit, what others do is done again.
    const int index = min(start + lane / EACH, WORDS - 1);
    const int which = index / plan::BLOCK_WORDS, word = index % plan::BLOCK_WORDS;
    const int own = min(word * EACH + lane % EACH, here - 1), unit = first_own_unit() + own;
    const int request = request_of(round, first_column + which);
    int chosen = token[0];
#pragma unroll
    for (int i = 1; i < COUNT; ++i) chosen = which == i ? token[i] : chosen;
    const Byte* row = block.table_row(chosen);
    float input[3], sum[3];
#pragma unroll
    for (int kind = 0; kind < 3; ++kind) {
      const int at = kind * plan::UNITS + unit;
      if constexpr (HEAD == Head::RNN) {
        input[kind] = __uint_as_float(load_global_4(row + 4 * at));
      } else {
        input[kind] = bf16_value(load_global_2(row + 2 * at));
      }
    }
    barrier_wait(&block.shared.own_sums_made[round_group(round)],
                 static_cast<u32>(round_step(round)) & 1u);
#pragma unroll
    for (int kind = 0; kind < 3; ++kind)
      sum[kind] = block.shared.own_sum[request][kind * plan::BLOCK_UNITS + own];
    const u16& old = block.shared.state[request][unit];
    u64 result;
    if constexpr (HEAD == Head::RNN) {
#pragma unroll
      for (int kind = 0; kind < 3; ++kind) sum[kind] = rounded(__fadd_rn(sum[kind], input[kind]));
      const u32 latent = bf16_bits(rounded(tanh_of(sum[2])));
      result = static_cast<u64>(latent << 16 | rnn_state(sum[0], sum[1], old)) << 32 | sequence;
    } else {
      const u32 state = domino_state(
          [&](int kind) { return input[kind]; }, [&](int kind) { return sum[kind]; }, old);
      const u32 second = __shfl_sync(0xffffffffu, state, min(lane + 1, 31));
      const u32 third = __shfl_sync(0xffffffffu, state, min(lane + 2, 31));
      result = static_cast<u64>(third | sequence << 16) << 32 | second << 16 | state;
    }
    const bool first = lane % EACH == 0 && lane < AT_ONCE * EACH;
    if (first && start + lane / EACH < WORDS)
      store_relaxed(early_slots<false>(block, sequence, request) +
                        static_cast<int>(blockIdx.x) * plan::BLOCK_WORDS + word,
                    result);
  }
}

// All blocks' new states of COUNT requests of a round, from a column on; and an RNN's elements of
// latents.
template <int COUNT, int MOST, typename Crew>
__device__ __forceinline__ void gather_states(const InnerWork<Crew>& work, int round,
                                              int first_column) {
  const Block block = work.block;
  const int step = round_step(round), first = request_of(round, first_column);
  const u32 sequence = block.sequence_of(step);
  const auto come = [&](u64 word) { return has_come<false>(word, sequence); };
  const auto put = [&](int index, u64 word) {
    const int which = index / plan::EARLY_WORDS, at = index % plan::EARLY_WORDS;
    const int own = at % plan::BLOCK_WORDS * plan::WORD_UNITS;
    const int unit = at / plan::BLOCK_WORDS * plan::BLOCK_UNITS + own;
    u16* state = block.shared.state[first + which];
    if constexpr (HEAD == Head::RNN) {
      if (unit >= plan::UNITS) return;
      state[unit] = static_cast<u16>(word >> 32);
      block.shared.joint[first_column + which][unit] = static_cast<u16>(word >> 48);
    } else {
#pragma unroll
      for (int i = 0; i < plan::WORD_UNITS; ++i)
        if (own + i < plan::BLOCK_UNITS && unit + i < plan::UNITS)
          state[unit + i] = static_cast<u16>(word >> 16 * i);
    }
  };
  const auto late = [](int index) { return index % plan::EARLY_WORDS / plan::BLOCK_WORDS; };
  // They come once the step before is decided.
  work.template gather_words<COUNT * plan::EARLY_WORDS, MOST, true>(
      early_slots<false>(block, sequence, first), max(step - 1, 0), come, put, late);
}

// All blocks' projections of a request of a round, by one warp.
__device__ __forceinline__ void gather_projections(const Block& block, int round, int column) {
  const InnerWork<Alone> work{block, {0, 0}};
  work.template gather<true, WORDS_OF_SERVANT, true>(round, column);
  __syncwarp();
}

// This block's rows of the projector, with the states of a round, published.
__device__ __forceinline__ void publish_own_projections(const SweepersWork& work, int round) {
  const Block block = work.block;
  constexpr int ROWS = plan::BLOCK_PROJECTIONS;
  constexpr int TOGETHER = ROWS * plan::COLUMNS > Sweepers::MEMBERS ? PAIR : 1;
  const u32 sequence = block.sequence_of(round_step(round));
  const int lane = lane_index(), vector = min(lane, TOGETHER - 1);
#pragma unroll 1
  for (int item = work.crew.member; item < ROWS * plan::COLUMNS / TOGETHER;
       item += Sweepers::MEMBERS) {
    const int own = item % ROWS, column = item / ROWS * TOGETHER;
    const int request = request_of(round, column);
    const int row = static_cast<int>(blockIdx.x) * ROWS + own;
    if (row >= plan::PROJECTOR_ROWS) continue;
    const float part =
        __uint_as_float(load_global_4(given_part(block, round, column + vector) + row));
    float sum[TOGETHER][1];
    lane_products<1, plan::STATE, TOGETHER>(block.shared.projector_weight[own], 0,
                                            block.shared.state[request], lane, sum);
    const float mine = of_lane(reinterpret_cast<const float(&)[TOGETHER]>(sum), lane);
    if (lane < TOGETHER)
      store_relaxed(early_slots<true>(block, sequence, request + vector) + row,
                    sum_word(__fadd_rn(part, mine), sequence));
  }
}

// Before the sweeps of a step: every group's states, and projections of them. The first step has no
// latents.
__device__ __forceinline__ void project_step(const Block& block, int step) {
  const SweepersWork work = sweepers_work(block);
#pragma unroll 1
  for (int group = 0; group < plan::GROUPS; ++group) {
    const int round = step * plan::GROUPS + group;
    barrier_wait(&block.shared.states_sent[group], static_cast<u32>(step) & 1u);
    wait_before_polling();
    gather_states<plan::COLUMNS, WORDS_OF_SWEEPER>(work, round, 0);
    work.crew.sync();
    if (step > 0) {
      publish_own_projections(work, round);
      warp_arrive(&block.shared.projections_sent[group]);
    }
  }
}

#endif

}  // namespace wts
