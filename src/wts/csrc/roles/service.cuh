// The service warps: each serves the same columns of every group. It stages base logits, publishes
// the block's best row, waits for the others', and fetches the next latent.
#pragma once
#include "args.cuh"
#include "exchange/all_to_all.cuh"
#include "exchange/gathered.cuh"
#include "exchange/slots.cuh"
#include "exchange/wait.cuh"
#include "exchange/word.cuh"
#include "heads/kind.cuh"
#include "heads/runs.cuh"
#include "plan_constants.h"
#include "ptx/barrier.cuh"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/exact.cuh"
#include "select/key.cuh"
#include "select/races.cuh"
#include "shared.cuh"
#include "state/sharded.cuh"
#include "teams.cuh"
#include "trace.cuh"

namespace wts {

struct ServiceWarp : RaceWarp {
  __device__ __forceinline__ int target_of(int token) const {
    if constexpr (plan::MAPPED) return __ldg(args.draft_to_target + token);
    return token;
  }

  // Where latents are fetched later than their tokens are known: those of a round.
  __device__ __forceinline__ void fetch_latents(int round) const {
    if (round_step(round) >= args.num_steps) return;
    __syncwarp();
#pragma unroll 1
    for (int served = 0; served < SERVED; served += TOGETHER) {
      int token[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i)
        token[i] = shared.token[request(round_group(round), column(served + i)) % LATER];
      send_latents<TOGETHER>(round, served, token);
    }
    latents_sent(round);
  }

  // The tokens that the latents of a round, of some columns, are made of: taken in, kept for later,
  // or fetching the latents.
  template <int COUNT>
  __device__ __forceinline__ void use_tokens(int round, int first_served,
                                             const int (&token)[COUNT]) const {
#if WTS_OWNED
    take_in_own<COUNT>(args, shared, round, column(first_served), token);
#else
    if (LATER == 1 || round < plan::LATENT_SLOTS) send_latents<COUNT>(round, first_served, token);
#endif
  }

  // So were those of all columns.
  __device__ __forceinline__ void tokens_used(int round) const {
#if WTS_OWNED
    // An RNN's states are gathered by this very warp, whose lanes have read the old ones by now.
    if constexpr (HEAD == Head::DOMINO) warp_arrive(&shared.states_sent[round_group(round)]);
    __syncwarp();
#else
    if (LATER == 1 || round < plan::LATENT_SLOTS) latents_sent(round);
#endif
  }

  // The anchor is the caller's: outside the table it is clamped.
  __device__ __forceinline__ long long anchor_of(int request) const {
    return request < args.num_requests ? args.anchor[request * args.anchor_stride] : 0;
  }
  __device__ __forceinline__ static int clamped(long long anchor) {
    return static_cast<int>(min(max(anchor, 0ll), static_cast<long long>(plan::TABLE_ROWS - 1)));
  }

  // Asks L2 for the anchors' input rows, of one group: by warps with nothing else to ask for.
  __device__ __forceinline__ void prefetch_anchors() const {
    if constexpr (EARLY) {
      if (member() != 1 % TEAM || lane_index() >= SERVED) return;
      prefetch_l2(table_row(clamped(anchor_of(column(lane_index())))), plan::TABLE_ROW_BYTES);
    }
  }

  // Anchors outside the table are counted once per request.
  __device__ __forceinline__ void send_anchors(int group) const {
#pragma unroll 1
    for (int served = 0; served < SERVED; ++served) {
      const int request = this->request(group, column(served));
      const long long anchor = anchor_of(request);
      const int token[1] = {clamped(anchor)};
      if (anchor != token[0] && blockIdx.x == 0 && leads() && lane_index() == 0)
        atomicAdd(&args.status->clamped_anchors, 1u);
      if (LATER > 1 && lane_index() == 0)
        shared.token[request % LATER] = token[0];
      keep_token(request, token[0]);
      tell_tokens<1>(served, token);
      use_tokens<1>(group, served, token);
    }
    tokens_used(group);
  }

#if !WTS_EXACT  // whose own are in select/exact.cuh
  // The best of the candidates that the sweeping warps have offered for one column, in lane 0.
  __device__ __forceinline__ Best block_best(int round, int column) const {
    const int lane = lane_index(), slot = candidate_slot(round);
    Best best;
    if (lane < plan::CANDIDATES) {
      best.key = shared.candidate_key[slot][column][lane];
      if constexpr (plan::WIDE) best.row = shared.candidate_row[slot][column][lane];
    }
    return warp_best(best);
  }
#endif

#if !WTS_EXACT
  // The token that a column's words agree on. Where approximate scores are too close, every block
  // computes the precise ones of the few rows that may have won, from the step logits in their
  // words.
  __device__ __forceinline__ int settle(const Gathered& gathered, int round, int column) const {
    const int group = round_group(round), step = round_step(round);
    const int winner = gathered.winner();
    if constexpr (plan::SCORED) {
      int mine = 0, top = NEVER;
#pragma unroll
      for (int i = 0; i < BLOCKS_PER_LANE; ++i) top = max(top, word_key(gathered.words[i]));
      const float least = least_score(group, column, warp_max(top));
#pragma unroll
      for (int i = 0; i < BLOCKS_PER_LANE; ++i) mine += contends(gathered.words[i], least);
      const u32 lanes = __ballot_sync(0xffffffffu, mine > 0);
      if (__any_sync(0xffffffffu, mine > 1) || __popc(lanes) > 1)
        return closest(gathered, least, group, column, step);
    }
    return winner;
  }
#endif

  // The block's best rows of this step, published as soon as the sweeping warps have offered
  // theirs. Their table rows are asked into L2 at once: each winner is one of these. Gives the
  // time.
  __device__ __forceinline__ u32 publish(int round) const {
    const int lane = lane_index(), group = round_group(round), step = round_step(round);
    const u32 sequence = sequence_of(step), tag = exchange_tag(sequence);
    ExchangeWord* slot =
        exchange_slots(args.slots, sequence, request(group, column(0))) + blockIdx.x;
    barrier_wait(&shared.candidates_ready[round_slot(round)], round_slot_parity(round));
    mark(args, round, GATHERED);
    int row = -1;
    if constexpr (plan::SAMPLED) {
#pragma unroll 1
      for (int served = 0; served < SERVED; served += RACES) {
        Best best;
        if (block_races(round, served, best)) {
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
        const int best_row = block_best(round, column(served), tag, mine_is_best, word);
        if (mine_is_best) store_relaxed(slot + served * plan::SLOT_LINE_WORDS, word);
#else
        const ExchangeWord word = pack_word(block_best(round, column(served)), tag);
        if (lane == 0) store_relaxed(slot + served * plan::SLOT_LINE_WORDS, word);
        const int best_row = word_row(word);
#endif
        if (lane == served) row = best_row;
      }
    }
    mark(args, round, PUBLISHED);
#if WTS_EXACT
    const u32 published = clock_low();
    if (row >= 0) prefetch_row(round, row);
    if (row >= 0) prefetch_weight(row);
    return published;
#else
    if (row >= 0) prefetch_row(round, row);
    return clock_low();
#endif
  }

  // Asks L2 for the table row of a row of this shard that may have won.
  __device__ __forceinline__ void prefetch_row(int round, int row) const {
    const int token = static_cast<int>(blockIdx.x) * plan::ROWS + row;
    if (round_step(round) + 1 < args.num_steps)
      prefetch_l2(table_row(target_of(min(token, plan::VOCAB - 1))), plan::TABLE_ROW_BYTES);
  }

  // Waits for all blocks' words of some columns, settles the tokens and, unless the walk ends,
  // sends their latents. (Fetching the latent of the best word so far while others are missing was
  // slower: measured.md.)
  __device__ __forceinline__ void conclude_some(int round, int first_served) const {
    const int group = round_group(round), step = round_step(round);
    const u32 tag = exchange_tag(sequence_of(step));
    const ExchangeWord* slots =
        exchange_slots(args.slots, sequence_of(step), request(group, column(first_served)));
    Gathered gathered[TOGETHER];
    for (u32 poll = 1; leads(); ++poll) {
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i)
        gathered[i].request(slots + i * plan::SLOT_LINE_WORDS, tag);
      bool complete = true;
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) complete &= gathered[i].complete(tag);
      if (complete) break;
      // These are asked rarely, not on the path of a good walk, and by a vote, so that the lanes
      // leave together whenever another warp gives up.
      if ((poll & 15u) == 0 && __any_sync(0xffffffffu, is_abandoned(shared))) break;
      if ((poll & 255u) == 0 && out_of_time(args, shared, poll)) {
        int missing = plan::NUM_BLOCKS;
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) missing = min(missing, gathered[i].first_missing(tag));
        report_timeout(args.status, &shared.abandoned, missing, step);
      }
    }
    int target[TOGETHER];
    const bool more = step + 1 < args.num_steps;
#if WTS_EXACT
    // A Markov head's next latents are on their way while it is found out whether they are the
    // right ones.
    constexpr bool EAGER = HEAD == Head::MARKOV && LATER == 1;
    LatentRows<TOGETHER> rows;
    if (leads()) {
      ExactWarp::Verdict verdict[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        verdict[i] = likely(gathered[i]);
        target[i] = target_of(verdict[i].token);
      }
      if (EAGER && more) load_rows<TOGETHER>(rows, target);
      bool settled = true;
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        const int column = this->column(first_served + i);
        if (decided(gathered[i], verdict[i], round, column)) continue;
        target[i] = target_of(rescore(gathered[i], verdict[i], round, column));
        settled = false;
      }
      // Anew even if they are the same, then from L1: to be kept meanwhile they would need
      // registers.
      if (EAGER && more && !settled) load_rows<TOGETHER>(rows, target);
      mark(args, round, DECODED);
    }
#else
    if (leads()) {
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i)
        target[i] = target_of(settle(gathered[i], round, column(first_served + i)));
      mark(args, round, DECODED);
    }
#endif
    if constexpr (TEAM > 1) {
      if (leads() && lane_index() == 0) shared.team_token[team()] = target[0];
      team_sync();
      target[0] = shared.team_token[team()];
    }
    if (more) tell_tokens<TOGETHER>(first_served, target);
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      keep_token(request(group, column(first_served + i)), target[i]);
    if constexpr (LATER > 1) {
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i)
        if (lane_index() == 0)
          shared.token[request(group, column(first_served + i)) % LATER] = target[i];
    } else if (more) {
#if WTS_EXACT
      if constexpr (EAGER) {
        put_rows<TOGETHER>(rows, round + plan::GROUPS, first_served);
        show_latents();
      } else {
        use_tokens<TOGETHER>(round + plan::GROUPS, first_served, target);
      }
#else
      use_tokens<TOGETHER>(round + plan::GROUPS, first_served, target);
#endif
    }
    if (blockIdx.x == 0 && leads() && lane_index() == 0) {
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        const int request = this->request(group, column(first_served + i));
        if (request < args.num_requests)
          args.tokens[static_cast<long long>(request) * args.num_steps + step] = target[i];
      }
    }
  }

  __device__ __forceinline__ void conclude(int round, u32 published) const {
    if (leads()) wait_before_polling(published);
#pragma unroll 1
    for (int first = 0; first < SERVED; first += TOGETHER)
      conclude_some(round, first);
    if (LATER == 1 && round_step(round) + 1 < args.num_steps) tokens_used(round + plan::GROUPS);
  }
};

__device__ __forceinline__ void service_role(const WalkArgs& args, Shared& shared) {
  const ServiceWarp self{{args, shared}};
  const int rounds = args.num_steps * plan::GROUPS;
  // Base logits are asked for AHEAD rounds ahead and, if need be, shifted one round later. One
  // group has time for it while it is swept; several have it while blocks wait for each other.
  // Where there is room for one round only, its base logits come while blocks exchange, too.
  constexpr bool ONE = plan::BASE_SLOTS == 1, FIRST = plan::GROUPS == 1 && !ONE;
  constexpr int AHEAD = FIRST ? plan::BASE_SLOTS - 1 : plan::BASE_SLOTS;
  const auto stage = [&](int round) {
    const int begun = round - 1;
    if (self.simple()) {  // asked anew: registers are few
      if (round < rounds) self.begin_simple(round);
      __syncwarp();
      return;
    }
#pragma unroll 1
    for (int served = 0; served < SERVED; ++served) {
      const int column = self.column(served);
      if (!ONE && begun >= 0 && begun < rounds) self.finish_base(column, begun);
      if (round < rounds) self.begin_base(column, round);
    }
  };
  const auto finish_one = [&](int round) {
#pragma unroll 1
    for (int served = 0; ONE && !self.simple() && round < rounds && served < SERVED; ++served)
      self.finish_base(self.column(served), round);
  };
  self.prefetch_anchors();
  __syncwarp();
  if (self.leads()) {
    self.fill_padding();
#pragma unroll 1
    for (int round = 0; round < AHEAD; ++round) stage(round);
  }
  self.begin_states();
#pragma unroll 1
  for (int group = 0; group < plan::GROUPS; ++group) self.send_anchors(group);
  if (self.leads()) finish_one(0);

#if WTS_OWNED
  // A step's groups are all concluded before latents of the next one are made.
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    if (round_group(round) == 0) {
#pragma unroll 1
      for (int group = 0; group < plan::LATENT_SLOTS; ++group) self.make_latents(round + group);
    }
    if (FIRST) stage(round + AHEAD);
    const u32 published = self.publish(round);
    if (!FIRST) stage(round + AHEAD);
    const bool first = round_group(round) == 0, last = round_group(round) == plan::GROUPS - 1;
#pragma unroll 1
    for (int turn = first ? 0 : -plan::EXCHANGE_LAG; turn <= (last ? 0 : -plan::EXCHANGE_LAG);
         ++turn)
      self.conclude(round + turn, published);
    finish_one(round + 1);
    // The slot of the latents that were just swept is free.
    if (round_group(round) + plan::LATENT_SLOTS < plan::GROUPS)
      self.make_latents(round + plan::LATENT_SLOTS);
  }
#else
#pragma unroll 1
  for (int round = 0; round < rounds + plan::EXCHANGE_LAG; ++round) {
    u32 published = 0;
    if (plan::EXCHANGE_LAG == 0 || round < rounds) {
      if (FIRST && self.leads()) stage(round + AHEAD);
      if (self.leads()) {
        published = self.publish(round);
        if (!FIRST) stage(round + AHEAD);
      }
    }
    if (plan::EXCHANGE_LAG == 0 || round >= plan::EXCHANGE_LAG)
      self.conclude(round - plan::EXCHANGE_LAG, published);
    if (self.leads()) finish_one(round + 1);
    // Every group but the one just published is concluded, and the slot of that one's latents free.
    if (LATER > 1) self.fetch_latents(round + plan::LATENT_SLOTS);
  }
#endif
  // Block 0 ends after every block has published step 0, so all have read the old value.
  if (blockIdx.x == 0 && threadIdx.x == plan::SWEEP_WARPS * 32) {
    args.status->sequence = self.sequence_of(args.num_steps);
    if (plan::SAMPLED || args.turn != Turn::ALWAYS) *args.noise_offset += 1;
  }
}

}  // namespace wts
