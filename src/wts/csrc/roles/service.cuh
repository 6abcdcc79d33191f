// The service warps: each serves the same columns of every group. It stages base logits, publishes
// the block's best row, waits for the others', and fetches the next latent.
#pragma once
#include "block.cuh"
#include "exchange/gathered.cuh"
#include "exchange/slots.cuh"
#include "exchange/wait.cuh"
#include "exchange/word.cuh"
#include "heads/kind.cuh"
#include "heads/markov.cuh"
#include "latent_lines.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "roles/base_logits.cuh"
#include "roles/latents.cuh"
#include "rounds.cuh"
#include "select/exact.cuh"
#include "select/exact_bounds.cuh"
#include "select/exact_logits.cuh"
#include "select/greedy.cuh"
#include "select/key.cuh"
#include "select/token_race.cuh"
#include "state/crew.cuh"
#include "trace.cuh"

namespace wts {

// Asks L2 for the table row of a row of this shard that may have won.
__device__ __forceinline__ void prefetch_row(const Block& block, int round, int row) {
  const int token = block.first_row() + row;
  if (round_step(round) + 1 < block.args.num_steps)
    prefetch_l2(block.table_row(block.target_of(min(token, plan::VOCAB - 1))),
                plan::TABLE_ROW_BYTES);
}

// The block's best rows of this step, published as soon as the sweeping warps have offered theirs.
// Their table rows are asked into L2 at once: each winner is one of these. Gives the time.
__device__ __forceinline__ u32 publish(const Block& block, int round) {
  const int lane = lane_index(), group = round_group(round), step = round_step(round);
  const u32 sequence = block.sequence_of(step), tag = exchange_tag(sequence);
  ExchangeWord* slot =
      exchange_slots(block.args.slots, sequence, request_in(group, block.column(0))) + blockIdx.x;
  barrier_wait(&block.shared.candidates_ready[round_slot(round)], round_slot_parity(round));
  mark(block, round, GATHERED);
  int row = -1;
  if constexpr (plan::SAMPLED) {
#pragma unroll 1
    for (int served = 0; served < SERVED; served += RACES) {
      Best best;
      if (block_races(block, round, served, best)) {
        const int line = served + (RACES > 1 ? lane / plan::CANDIDATES : 0);
        store_relaxed(slot + line * plan::SLOT_LINE_WORDS, pack_word(best, tag));
        row = best.row;
      }
    }
  } else {
#pragma unroll
    for (int served = 0; served < SERVED; ++served) {
#if WTS_EXACT
      bool mine_is_best;
      ExchangeWord word;
      const int best_row = block_best(block, round, block.column(served), tag, mine_is_best, word);
      if (mine_is_best) store_relaxed(slot + served * plan::SLOT_LINE_WORDS, word);
#else
      const ExchangeWord word = pack_word(block_best(block, round, block.column(served)), tag);
      if (lane == 0) store_relaxed(slot + served * plan::SLOT_LINE_WORDS, word);
      const int best_row = word_row(word);
#endif
      if (lane == served) row = best_row;
    }
  }
  mark(block, round, PUBLISHED);
#if WTS_EXACT
  const u32 published = clock_low();
  if (row >= 0) prefetch_row(block, round, row);
  if (row >= 0) prefetch_weight(block, row);
  return published;
#else
  if (row >= 0) prefetch_row(block, round, row);
  return clock_low();
#endif
}

// Waits for all blocks' words of some columns, settles the tokens and, unless the walk ends,
// sends their latents. (Fetching the latent of the best word so far while others are missing was
// slower: measured.md.)
__device__ __forceinline__ void conclude_some(const Block& block, int round, int first_served) {
  const int group = round_group(round), step = round_step(round);
  const u32 tag = exchange_tag(block.sequence_of(step));
  const ExchangeWord* slots = exchange_slots(block.args.slots, block.sequence_of(step),
                                             request_in(group, block.column(first_served)));
  Gathered gathered[TOGETHER];
  for (u32 poll = 1; block.leads(); ++poll) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      gathered[i].request(slots + i * plan::SLOT_LINE_WORDS, tag);
    bool complete = true;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) complete &= gathered[i].complete(tag);
    if (complete) break;
    // These are asked rarely, not on the path of a good walk, and by a vote, so that the lanes
    // leave together whenever another warp gives up.
    if ((poll & 15u) == 0 && __any_sync(0xffffffffu, is_abandoned(block))) break;
    if ((poll & 255u) == 0 && out_of_time(block, poll)) {
      int missing = plan::NUM_BLOCKS;
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) missing = min(missing, gathered[i].first_missing(tag));
      report_timeout(block.args.status, &block.shared.abandoned, missing, step);
    }
  }
  int target[TOGETHER];
  const bool more = step + 1 < block.args.num_steps;
#if WTS_EXACT
  // A Markov head's next latents are on their way while it is found out whether they are the
  // right ones.
  constexpr bool EAGER = HEAD == Head::MARKOV && LATER == 1;
  LatentRows<TOGETHER> rows;
  if (block.leads()) {
    Verdict verdict[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      verdict[i] = likely(gathered[i]);
      target[i] = block.target_of(verdict[i].token);
    }
    if (EAGER && more) load_rows<TOGETHER>(block, rows, target);
    bool settled = true;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int column = block.column(first_served + i);
      if (decided(block, gathered[i], verdict[i], round, column)) continue;
      target[i] = block.target_of(rescore(block, gathered[i], verdict[i], round, column));
      settled = false;
    }
    // Anew even if they are the same, then from L1: to be kept meanwhile they would need registers.
    if (EAGER && more && !settled) load_rows<TOGETHER>(block, rows, target);
    mark(block, round, DECODED);
  }
#else
  if (block.leads()) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      target[i] =
          block.target_of(settle(block, gathered[i], round, block.column(first_served + i)));
    mark(block, round, DECODED);
  }
#endif
  if constexpr (TEAM > 1) {
    if (block.leads() && lane_index() == 0) block.shared.team_token[block.team()] = target[0];
    team_of(block).sync();
    target[0] = block.shared.team_token[block.team()];
  }
  if (more) tell_tokens<TOGETHER>(block, first_served, target);
#pragma unroll
  for (int i = 0; i < TOGETHER; ++i)
    keep_token(block, request_in(group, block.column(first_served + i)), target[i]);
  if constexpr (LATER > 1) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      if (lane_index() == 0)
        block.shared.token[request_in(group, block.column(first_served + i)) % LATER] = target[i];
  } else if (more) {
#if WTS_EXACT
    if constexpr (EAGER) {
      put_rows<TOGETHER>(block, rows, round + plan::GROUPS, first_served);
      show_latents();
    } else {
      use_tokens<TOGETHER>(block, round + plan::GROUPS, first_served, target);
    }
#else
    use_tokens<TOGETHER>(block, round + plan::GROUPS, first_served, target);
#endif
  }
  if (blockIdx.x == 0 && block.leads() && lane_index() == 0) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int request = request_in(group, block.column(first_served + i));
      if (request < block.args.num_requests)
        block.args.tokens[static_cast<long long>(request) * block.args.num_steps + step] =
            target[i];
    }
  }
}

__device__ __forceinline__ void conclude(const Block& block, int round, u32 published) {
  if (block.leads()) wait_before_polling(published);
#pragma unroll 1
  for (int first = 0; first < SERVED; first += TOGETHER) conclude_some(block, round, first);
  if (LATER == 1 && round_step(round) + 1 < block.args.num_steps)
    tokens_used(block, round + plan::GROUPS);
}

// The anchor is the caller's: outside the table it is clamped.
__device__ __forceinline__ long long anchor_of(const Block& block, int request) {
  return request < block.args.num_requests ? block.args.anchor[request * block.args.anchor_stride]
                                           : 0;
}

__device__ __forceinline__ int clamped(long long anchor) {
  return static_cast<int>(min(max(anchor, 0ll), static_cast<long long>(plan::TABLE_ROWS - 1)));
}

// Asks L2 for the anchors' input rows, of one group: by warps with nothing else to ask for.
__device__ __forceinline__ void prefetch_anchors(const Block& block) {
  if constexpr (EARLY) {
    if (block.member() != 1 % TEAM || lane_index() >= SERVED) return;
    prefetch_l2(block.table_row(clamped(anchor_of(block, block.column(lane_index())))),
                plan::TABLE_ROW_BYTES);
  }
}

// Anchors outside the table are counted once per request.
__device__ __forceinline__ void send_anchors(const Block& block, int group) {
#pragma unroll 1
  for (int served = 0; served < SERVED; ++served) {
    const int request = request_in(group, block.column(served));
    const long long anchor = anchor_of(block, request);
    const int token[1] = {clamped(anchor)};
    if (anchor != token[0] && blockIdx.x == 0 && block.leads() && lane_index() == 0)
      atomicAdd(&block.args.status->clamped_anchors, 1u);
    if (LATER > 1 && lane_index() == 0) block.shared.token[request % LATER] = token[0];
    keep_token(block, request, token[0]);
    tell_tokens<1>(block, served, token);
    use_tokens<1>(block, group, served, token);
  }
  tokens_used(block, group);
}

__device__ __forceinline__ void service_role(const Block& block) {
  const int rounds = block.args.num_steps * plan::GROUPS;
  // Base logits are asked for AHEAD rounds ahead and, if need be, shifted one round later. One
  // group has time for it while it is swept; several have it while blocks wait for each other.
  // Where there is room for one round only, its base logits come while blocks exchange, too.
  constexpr bool ONE = plan::BASE_SLOTS == 1, FIRST = plan::GROUPS == 1 && !ONE;
  constexpr int AHEAD = FIRST ? plan::BASE_SLOTS - 1 : plan::BASE_SLOTS;
  const auto stage = [&](int round) {
    const int begun = round - 1;
    if (simple(block)) {  // asked anew: registers are few
      if (round < rounds) begin_lines(block, round);
      __syncwarp();
      return;
    }
#pragma unroll 1
    for (int served = 0; served < SERVED; ++served) {
      const int column = block.column(served);
      if (!ONE && begun >= 0 && begun < rounds) finish_line(block, column, begun);
      if (round < rounds) begin_line(block, column, round);
    }
  };
  const auto finish = [&](int round) {
#pragma unroll 1
    for (int served = 0; ONE && !simple(block) && round < rounds && served < SERVED; ++served)
      finish_line(block, block.column(served), round);
  };
  prefetch_anchors(block);
  __syncwarp();
  if (block.leads()) {
    fill_padding(block);
#pragma unroll 1
    for (int round = 0; round < AHEAD; ++round) stage(round);
  }
  begin_states(block);
#pragma unroll 1
  for (int group = 0; group < plan::GROUPS; ++group) send_anchors(block, group);
  if (block.leads()) finish(0);

#if WTS_OWNED
  // A step's groups are all concluded before latents of the next one are made.
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    if (round_group(round) == 0) {
#pragma unroll 1
      for (int group = 0; group < plan::LATENT_SLOTS; ++group) make_latents(block, round + group);
    }
    if (FIRST) stage(round + AHEAD);
    const u32 published = publish(block, round);
    if (!FIRST) stage(round + AHEAD);
    const bool first = round_group(round) == 0, last = round_group(round) == plan::GROUPS - 1;
#pragma unroll 1
    for (int turn = first ? 0 : -plan::EXCHANGE_LAG; turn <= (last ? 0 : -plan::EXCHANGE_LAG);
         ++turn)
      conclude(block, round + turn, published);
    finish(round + 1);
    // The slot of the latents that were just swept is free.
    if (round_group(round) + plan::LATENT_SLOTS < plan::GROUPS)
      make_latents(block, round + plan::LATENT_SLOTS);
  }
#else
#pragma unroll 1
  for (int round = 0; round < rounds + plan::EXCHANGE_LAG; ++round) {
    u32 published = 0;
    if (plan::EXCHANGE_LAG == 0 || round < rounds) {
      if (FIRST && block.leads()) stage(round + AHEAD);
      if (block.leads()) {
        published = publish(block, round);
        if (!FIRST) stage(round + AHEAD);
      }
    }
    if (plan::EXCHANGE_LAG == 0 || round >= plan::EXCHANGE_LAG)
      conclude(block, round - plan::EXCHANGE_LAG, published);
    if (block.leads()) finish(round + 1);
    // Every group but the one just published is concluded, and the slot of that one's latents free.
    if (LATER > 1) fetch_latents(block, round + plan::LATENT_SLOTS);
  }
#endif
  // Block 0 ends after every block has published step 0, so all have read the old value.
  if (blockIdx.x == 0 && threadIdx.x == plan::SWEEP_WARPS * 32) {
    block.args.status->sequence = block.sequence_of(block.args.num_steps);
    if (plan::SAMPLED || block.args.turn != Turn::ALWAYS) *block.args.noise_offset += 1;
  }
}

}  // namespace wts
