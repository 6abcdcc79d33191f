// How a service warp makes the latents of its columns: copied from the table, or by a latent
// function whose inner sums all blocks share out.
#pragma once
#include "block.cuh"
#include "exchange/wait.cuh"
#include "heads/domino.cuh"
#include "heads/gated.cuh"
#include "heads/kind.cuh"
#include "heads/markov.cuh"
#include "heads/rnn.cuh"
#include "heads/runs.cuh"
#include "latent_lines.cuh"
#include "numbers.cuh"
#include "ptx/barrier.cuh"
#include "rounds.cuh"
#include "select/exact_bounds.cuh"
#include "state/crew.cuh"
#include "state/exchanged_sums.cuh"
#include "state/sharded.cuh"
#include "state/words.cuh"
#include "trace.cuh"
#include "weights/bf16.cuh"
#include "weights/int8.cuh"

namespace wts {

static_assert(!OWNED || TEAM == 1, "a team makes all of a state");
static_assert(!plan::HIDDEN_INSIDE || (TEAM > 1 && SERVED == 1), "a team has one column");

__device__ __forceinline__ InnerWork<Team> team_work(const Block& block) {
  return {block, team_of(block)};
}

// All blocks' words, by the team, who then have to wait for each other.
template <bool PROJECTOR>
__device__ __forceinline__ void gather_sums(const Block& block, int round, int column) {
  team_work(block).gather<PROJECTOR>(round, column);
  team_of(block).sync();
}

// Puts a latent where the sweeping warps read it, quantised unless weights are bf16. All of the
// team have come as far.
__device__ __forceinline__ void store_latent(const Block& block, const float (&latent)[RUNS][RUN],
                                             int round, int column) {
  const int lane = block.team_lane(), slot = latent_slot(round);
  __syncwarp();
  if constexpr (!plan::QUANTISED) {
#pragma unroll
    for (int run = 0; run < RUNS; ++run)
      if (run_exists(run, lane)) {
        u32 words[RUN / 2];
        pack_bf16_run(latent[run], words);
        put_run<2 * RUN>(block, slot, column, 0, run_start(run, lane) * 2, words);
      }
    team_of(block).sync();
    return;
  }
  u32 largest = largest_of(latent);
  if constexpr (TEAM > 1) {
    if (lane_index() == 0) block.shared.team_largest[block.service()] = largest;
  }
  team_of(block).sync();
  if constexpr (TEAM > 1) {
#pragma unroll
    for (int i = 0; i < TEAM; ++i)
      largest = max(largest, block.shared.team_largest[block.team() * TEAM + i]);
  }
  const float scale = latent_scale_of(largest);
  u32 squares = 0;
#pragma unroll
  for (int run = 0; run < RUNS; ++run) {
    if (!run_exists(run, lane)) continue;
    PlaneRun high, low;
    quantise_run(latent[run], scale, high, low, squares);
    const int start = run_start(run, lane);
    put_run<RUN>(block, slot, column, 0, start, high.word);
    put_run<RUN>(block, slot, column, 1, start, low.word);
    keep_latent(block, round, column, start, latent[run]);
  }
  if (lane == 0) block.shared.latent_scale[plan::QUANTISED ? slot : 0][column] = scale;
  if constexpr (plan::EXACT) bound_latent(block, round, column, scale, squares);
}

// The latent of a head that reads hidden states.
__device__ __forceinline__ void make_latent(const Block& block, int round, int column, int token) {
  const int lane = block.team_lane();
  const Byte* row = block.table_row(token);
  const auto wait = [&] {
    if constexpr (EARLY) await_sums(block, round_step(round));
  };
  if constexpr (HEAD == Head::DOMINO)
    if (round_step(round) > 0) {  // the first token is base logits' alone
      wait();
      gather_sums<true>(block, round, column);
    }
  [[maybe_unused]] const float* early =
      reinterpret_cast<const float*>(block.shared.early[EARLY ? column : 0]);
  float latent[RUNS][RUN];
#pragma unroll
  for (int run = 0; run < RUNS; ++run) {
    const int start = run_start(run, lane);
#pragma unroll
    for (int i = 0; i < RUN; ++i) latent[run][i] = 0.0f;
    if (!run_exists(run, lane)) continue;
    if constexpr (HEAD == Head::GATED)
      gated_run(row, given_part(block, round, column), early, start, wait, latent[run]);
    if constexpr (HEAD == Head::RNN)
      rnn_run(row, early, start, block.shared.joint[column], wait, latent[run]);
    if constexpr (HEAD == Head::DOMINO)
      if (round_step(round) > 0)
        projected_run(block.shared.projections[column], start, latent[run]);
  }
  store_latent(block, latent, round, column);
}

// Puts the latents of a round, of some columns, where the sweeping warps read them.
template <int COUNT>
__device__ __forceinline__ void send_latents(const Block& block, int round, int first_served,
                                             const int (&token)[COUNT]) {
  if constexpr (HEAD == Head::MARKOV) {
    LatentRows<COUNT> rows;
    load_rows<COUNT>(block, rows, token);
    put_rows<COUNT>(block, rows, round, first_served);
  } else {
#pragma unroll 1
    for (int i = 0; i < COUNT; ++i) {
      int chosen = token[0];
#pragma unroll
      for (int j = 1; j < COUNT; ++j) chosen = i == j ? token[j] : chosen;
      make_latent(block, round, block.column(first_served + i), chosen);
    }
  }
  show_latents();
}

// The state that a request's latent of this step leaves, where it was not needed for the latent.
__device__ __forceinline__ void advance_state(const Block& block, int round, int column) {
  const u16* joint = block.shared.joint[column];
  u16* state = block.shared.state[request_of(round, column)];
#pragma unroll
  for (int run = 0; run < RUNS; ++run)
    if (run_exists(run, block.team_lane()))
      rnn_state_run(joint, run_start(run, block.team_lane()), state);
  team_of(block).sync();
}

// Says that this warp's latents of a round are there; what the next step needs of a state follows.
__device__ __forceinline__ void latents_sent(const Block& block, int round) {
  warp_arrive(&block.shared.latents_ready[latent_slot(round)]);
  if (block.leads() && round >= plan::GROUPS) mark(block, round - plan::GROUPS, LATENT_SENT);
  if constexpr (HEAD == Head::RNN && !OWNED) {
    if (round_step(round) + 1 >= block.args.num_steps) return;
#pragma unroll 1
    for (int served = 0; served < SERVED; ++served) {
      advance_state(block, round, block.column(served));
      team_work(block).publish_early(round + plan::GROUPS, block.column(served));
    }
  }
}

#if WTS_OWNED
// The latents of a round, of what all blocks have made of its tokens.
__device__ __forceinline__ void make_latents(const Block& block, int round) {
  const bool projected = HEAD == Head::DOMINO && round_step(round) > 0;  // the first is zeros
  if (projected)
    barrier_wait(&block.shared.projections_sent[round_group(round)],
                 static_cast<u32>(round_step(round) - 1) & 1u);
  wait_before_polling();
#pragma unroll 1
  for (int served = 0; served < SERVED; ++served) {
    const int column = block.column(served);
    if constexpr (HEAD == Head::RNN) {
      gather_states<1, WORDS_OF_SERVANT>(InnerWork<Alone>{block, {0, 0}}, round, column);
      __syncwarp();
    } else if (projected) {
      gather_projections(block, round, column);
    }
    float latent[RUNS][RUN];
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      const int start = run_start(run, lane_index());
#pragma unroll
      for (int i = 0; i < RUN; ++i) latent[run][i] = 0.0f;
      if (!run_exists(run, lane_index())) continue;
      if constexpr (HEAD == Head::RNN) {
#pragma unroll
        for (int i = 0; i < RUN; ++i)
          latent[run][i] = bf16_value(block.shared.joint[column][start + i]);
      } else if (projected) {
        projected_run(block.shared.projections[column], start, latent[run]);
      }
    }
    store_latent(block, latent, round, column);
  }
  show_latents();
  latents_sent(block, round);
}
#endif

// Before the first step.
__device__ __forceinline__ void begin_states(const Block& block) {
  if constexpr (EARLY) begin_inner_work(block, block.service());
}

// Tells the sweeping warps the tokens of some columns.
template <int COUNT>
__device__ __forceinline__ void tell_tokens(const Block& block, int first_served,
                                            const int (&token)[COUNT]) {
  if constexpr (SWEEPERS_TAKE_IN) {
    if (!block.leads()) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (lane_index() == 0) block.shared.inner_token[block.column(first_served + i)] = token[i];
      warp_arrive(&block.shared.token_known);
    }
  }
}

// Where latents are fetched later than their tokens are known: those of a round.
__device__ __forceinline__ void fetch_latents(const Block& block, int round) {
  if (round_step(round) >= block.args.num_steps) return;
  __syncwarp();
#pragma unroll 1
  for (int served = 0; served < SERVED; served += TOGETHER) {
    int token[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      token[i] = block.shared.token[request_of(round, block.column(served + i)) % LATER];
    send_latents<TOGETHER>(block, round, served, token);
  }
  latents_sent(block, round);
}

// The tokens that the latents of a round, of some columns, are made of: taken in, kept for later,
// or fetching the latents.
template <int COUNT>
__device__ __forceinline__ void use_tokens(const Block& block, int round, int first_served,
                                           const int (&token)[COUNT]) {
#if WTS_OWNED
  take_in_own<COUNT>(block, round, block.column(first_served), token);
#else
  if (LATER == 1 || round < plan::LATENT_SLOTS)
    send_latents<COUNT>(block, round, first_served, token);
#endif
}

// So were those of all columns.
__device__ __forceinline__ void tokens_used(const Block& block, int round) {
#if WTS_OWNED
  // An RNN's states are gathered by this very warp, whose lanes have read the old ones by now.
  if constexpr (HEAD == Head::DOMINO) warp_arrive(&block.shared.states_sent[round_group(round)]);
  __syncwarp();
#else
  if (LATER == 1 || round < plan::LATENT_SLOTS) latents_sent(block, round);
#endif
}

}  // namespace wts
