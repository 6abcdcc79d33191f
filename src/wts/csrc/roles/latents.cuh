// How a service warp makes the latents of its columns: copied from the table, or by a latent
// function whose inner sums all blocks share out.
#pragma once
#include "exchange/wait.cuh"
#include "heads/domino.cuh"
#include "heads/gated.cuh"
#include "heads/kind.cuh"
#include "heads/rnn.cuh"
#include "heads/runs.cuh"
#include "latent_lines.cuh"
#include "numbers.cuh"
#include "plan_constants.h"
#include "ptx/barrier.cuh"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/number.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "state/crew.cuh"
#include "state/exchanged_sums.cuh"
#include "state/sharded.cuh"
#include "state/words.cuh"
#include "teams.cuh"
#include "trace.cuh"
#include "weights/bf16.cuh"
#include "weights/int8.cuh"

namespace wts {

struct LatentWarp : LatentLines {
  // Puts the latents of a round, of some columns, where the sweeping warps read them.
  template <int COUNT>
  __device__ __forceinline__ void send_latents(int round, int first_served,
                                               const int (&token)[COUNT]) const {
    if constexpr (HEAD == Head::MARKOV) {
      LatentRows<COUNT> rows;
      load_rows<COUNT>(rows, token);
      put_rows<COUNT>(rows, round, first_served);
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i) {
        int chosen = token[0];
#pragma unroll
        for (int j = 1; j < COUNT; ++j) chosen = i == j ? token[j] : chosen;
        make_latent(round, column(first_served + i), chosen);
      }
    }
    show_latents();
  }

  // In an exact walk, of a head whose exact latents are table rows: where the next one is.
  __device__ __forceinline__ void keep_token([[maybe_unused]] int request,
                                             [[maybe_unused]] int token) const {
#if WTS_EXACT
    if (HEAD == Head::MARKOV && lane_index() == 0) shared.previous[request] = token;
#endif
  }

  // In an exact walk: what a latent adds to its sums, and a request's margin of rows of scale 1.
  __device__ __forceinline__ void keep_slack([[maybe_unused]] int round,
                                             [[maybe_unused]] int column,
                                             [[maybe_unused]] float slack,
                                             [[maybe_unused]] float margin) const {
#if WTS_EXACT
    shared.latent_slack[latent_slot(round)][column] = slack;
    shared.margin[request(round_group(round), column)] = margin;
#endif
  }

  // ---- inner sums -------------------------------------------------------------------------------

  static_assert(!OWNED || TEAM == 1, "a team makes all of a state");
  static_assert(!plan::HIDDEN_INSIDE || (TEAM > 1 && SERVED == 1), "a team has one column");
  __device__ __forceinline__ InnerWork<Crew<TEAM>> work() const {
    return {args, shared, crew()};
  }

  // All blocks' words, by the team, who then have to wait for each other.
  template <bool PROJECTOR>
  __device__ __forceinline__ void gather(int round, int column) const {
    work().template gather<PROJECTOR>(round, column);
    team_sync();
  }

  // Before the first step.
  __device__ __forceinline__ void begin_states() const {
    if constexpr (EARLY) begin_inner_work(args, shared, service());
  }

  // Tells the sweeping warps the tokens of some columns.
  template <int COUNT>
  __device__ __forceinline__ void tell_tokens(int first_served, const int (&token)[COUNT]) const {
    if constexpr (SWEEPERS_TAKE_IN) {
      if (!leads()) return;
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        if (lane_index() == 0) shared.inner_token[column(first_served + i)] = token[i];
        warp_arrive(&shared.token_known);
      }
    }
  }

  // ---- latent functions -------------------------------------------------------------------------

  // The latent of a head that reads hidden states.
  __device__ __forceinline__ void make_latent(int round, int column, int token) const {
    const int lane = team_lane();
    const Byte* row = table_row(token);
    const auto wait = [&] {
      if constexpr (EARLY) await_sums(shared, round_step(round));
    };
    if constexpr (HEAD == Head::DOMINO)
      if (round_step(round) > 0) {  // the first token is base logits' alone
        wait();
        gather<true>(round, column);
      }
    [[maybe_unused]] const float* early =
        reinterpret_cast<const float*>(shared.early[EARLY ? column : 0]);
    float latent[RUNS][RUN];
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      const int start = run_start(run, lane);
#pragma unroll
      for (int i = 0; i < RUN; ++i) latent[run][i] = 0.0f;
      if (!run_exists(run, lane)) continue;
      if constexpr (HEAD == Head::GATED)
        gated_run(row, given_part(args, round, column), early, start, wait, latent[run]);
      if constexpr (HEAD == Head::RNN)
        rnn_run(row, early, start, shared.joint[column], wait, latent[run]);
      if constexpr (HEAD == Head::DOMINO)
        if (round_step(round) > 0) projected_run(shared.projections[column], start, latent[run]);
    }
    store_latent(latent, round, column);
  }

#if WTS_OWNED
  // The latents of a round, of what all blocks have made of its tokens.
  __device__ __forceinline__ void make_latents(int round) const {
    const bool projected = HEAD == Head::DOMINO && round_step(round) > 0;  // the first is zeros
    if (projected)
      barrier_wait(&shared.projections_sent[round_group(round)],
                   static_cast<u32>(round_step(round) - 1) & 1u);
    wait_before_polling();
#pragma unroll 1
    for (int served = 0; served < SERVED; ++served) {
      const int column = this->column(served);
      if constexpr (HEAD == Head::RNN) {
        gather_states<1, WORDS_OF_SERVANT>(InnerWork<Alone>{args, shared, {0, 0}}, round, column);
        __syncwarp();
      } else if (projected) {
        gather_projections(args, shared, round, column);
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
            latent[run][i] = bf16_value(shared.joint[column][start + i]);
        } else if (projected) {
          projected_run(shared.projections[column], start, latent[run]);
        }
      }
      store_latent(latent, round, column);
    }
    show_latents();
    latents_sent(round);
  }
#endif

  // Puts a latent where the sweeping warps read it, quantised unless weights are bf16. All of the
  // team have come as far.
  __device__ __forceinline__ void store_latent(const float (&latent)[RUNS][RUN], int round,
                                               int column) const {
    const int lane = team_lane(), slot = latent_slot(round);
    __syncwarp();
    if constexpr (!plan::QUANTISED) {
#pragma unroll
      for (int run = 0; run < RUNS; ++run)
        if (run_exists(run, lane)) {
          u32 words[RUN / 2];
          pack_bf16_run(latent[run], words);
          put_run<2 * RUN>(slot, column, 0, run_start(run, lane) * 2, words);
        }
      team_sync();
      return;
    }
    u32 largest = largest_of(latent);
    if constexpr (TEAM > 1) {
      if (lane_index() == 0) shared.team_largest[service()] = largest;
    }
    team_sync();
    if constexpr (TEAM > 1) {
#pragma unroll
      for (int i = 0; i < TEAM; ++i)
        largest = max(largest, shared.team_largest[team() * TEAM + i]);
    }
    const float scale = latent_scale_of(largest);
    u32 squares = 0;
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      if (!run_exists(run, lane)) continue;
      PlaneRun high, low;
      quantise_run(latent[run], scale, high, low, squares);
      const int start = run_start(run, lane);
      put_run<RUN>(slot, column, 0, start, high.word);
      put_run<RUN>(slot, column, 1, start, low.word);
      keep_latent(round, column, start, latent[run]);
    }
    if (lane == 0) shared.latent_scale[plan::QUANTISED ? slot : 0][column] = scale;
    if constexpr (plan::EXACT) bound_latent(round, column, scale, squares);
  }

  // In an exact walk: a run of a latent itself.
  __device__ __forceinline__ void keep_latent([[maybe_unused]] int round,
                                              [[maybe_unused]] int column,
                                              [[maybe_unused]] int start,
                                              [[maybe_unused]] const float (&latent)[RUN]) const {
#if WTS_EXACT
#pragma unroll
    for (int i = 0; i < RUN; ++i)
      shared.exact_latent[round % plan::EXACT_LATENT_SLOTS][column][start + i] =
          bf16_bits(latent[i]);
#endif
  }

  // In an exact walk: slack and margin of a latent, of all lanes' squares (wts/exact.py). |u| is at
  // most 16 t times the root of their sum, and |u - t U| at most t / 2 and a little for each
  // element.
  __device__ __forceinline__ void bound_latent([[maybe_unused]] int round,
                                               [[maybe_unused]] int column,
                                               [[maybe_unused]] float scale,
                                               [[maybe_unused]] u32 squares) const {
#if WTS_EXACT
    u32 sum = warp_add(squares);
    if constexpr (TEAM > 1) {
      if (lane_index() == 0) shared.team_squares[service()] = sum;
      team_sync();
      if (!leads()) return;
      sum = 0;
#pragma unroll
      for (int i = 0; i < TEAM; ++i) sum += shared.team_squares[team() * TEAM + i];
    }
    constexpr float ROUNDED = 1.001f, HALF_ROOT = plan::RANK == 64    ? 4.1f
                                                  : plan::RANK == 128 ? 5.8f
                                                  : plan::RANK == 256 ? 8.2f
                                                                      : 11.6f;
    const float length = 16.0f * ROUNDED * approximate_root(__uint2float_rn(sum));
    float slack = fmaf(shared.spread, length, fmaf(shared.growth, HALF_ROOT, 1.0f)) * ROUNDED;
    const bool inside = __fmul_rn(scale, shared.smallest) >= plan::LEAST_EXACT_PRODUCT &&
                        __fmul_rn(__fmul_rn(scale, length), shared.longest) <
                            plan::LARGEST_EXACT_PRODUCT;
    if (!inside) slack = __int_as_float(0x7f800000);
    // The first token of a Domino head is base logits' alone.
    if (HEAD == Head::DOMINO && round_step(round) == 0) slack = 0.0f;
    if (lane_index() == 0)
      keep_slack(round, column, slack, 2.0f * ROUNDED * __fmul_rn(scale, slack));
#endif
  }

  // Table rows that hold latents, quantised or not, on their way to where the sweeping warps read
  // them.
  template <int COUNT>
  struct LatentRows {
    static constexpr int PIECES = (2 * plan::RANK + 511) / 512;
    static constexpr int NUMBERS = plan::EXACT ? 4 : 1;  // behind the planes: scale, slack, margin
    u32 piece[COUNT][PIECES][4];
    u32 numbers[COUNT][NUMBERS];
  };

  template <int COUNT>
  __device__ __forceinline__ void load_rows(LatentRows<COUNT>& rows,
                                            const int (&token)[COUNT]) const {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const Byte* source = table_row(token[i]);
#pragma unroll
      for (int j = 0; j < rows.PIECES; ++j)
        if ((j * 32 + lane) * 16 < 2 * plan::RANK) {
          const Byte* from = source + (j * 32 + lane) * 16;
          if constexpr (plan::EXACT) {  // for a token that turns out to be the right one, twice
            load_global_again_16(rows.piece[i][j], from);
          } else {
            load_global_16(rows.piece[i][j], from);
          }
        }
#if WTS_EXACT
      load_global_again_16(rows.numbers[i], source + 2 * plan::RANK);
      if (lane == 0)
        prefetch_l2(shared.exact_table + token[i] * (2ll * plan::RANK), 2 * plan::RANK);
#else
      if constexpr (plan::QUANTISED) load_global_words(rows.numbers[i], source + 2 * plan::RANK);
#endif
    }
  }

  template <int COUNT>
  __device__ __forceinline__ void put_rows(const LatentRows<COUNT>& rows, int round,
                                           int first_served) const {
    const int lane = lane_index(), slot = latent_slot(round);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int column = this->column(first_served + i);
#pragma unroll
      for (int j = 0; j < rows.PIECES; ++j)
        if ((j * 32 + lane) * 16 < 2 * plan::RANK)
          put_piece(slot, column, j * 32 + lane, rows.piece[i][j]);
      if (plan::QUANTISED && lane == 0) {
        shared.latent_scale[slot][column] = __uint_as_float(rows.numbers[i][0]);
        keep_slack(round, column, __uint_as_float(rows.numbers[i][rows.NUMBERS > 1 ? 1 : 0]),
                   __uint_as_float(rows.numbers[i][rows.NUMBERS > 1 ? 2 : 0]));
      }
    }
  }

  // The state that a request's latent of this step leaves, where it was not needed for the latent.
  __device__ __forceinline__ void advance_state(int round, int column) const {
    const u16* joint = shared.joint[column];
    u16* state = shared.state[request(round_group(round), column)];
#pragma unroll
    for (int run = 0; run < RUNS; ++run)
      if (run_exists(run, team_lane()))
        rnn_state_run(joint, run_start(run, team_lane()), state);
    team_sync();
  }

  // Says that this warp's latents of a round are there; what the next step needs of a state
  // follows.
  __device__ __forceinline__ void latents_sent(int round) const {
    warp_arrive(&shared.latents_ready[latent_slot(round)]);
    if (leads() && round >= plan::GROUPS) mark(args, round - plan::GROUPS, LATENT_SENT);
    if constexpr (HEAD == Head::RNN && !OWNED) {
      if (round_step(round) + 1 >= args.num_steps) return;
#pragma unroll 1
      for (int served = 0; served < SERVED; ++served) {
        advance_state(round, column(served));
        work().publish_early(round + plan::GROUPS, column(served));
      }
    }
  }
};

}  // namespace wts
