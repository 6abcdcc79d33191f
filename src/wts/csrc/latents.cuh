// How a service warp makes the latents of its columns: copied from the table, or by a latent function
// whose products with states all blocks share out.
#pragma once
#include "cells.cuh"
#include "exchange.cuh"

namespace wts {

// A block did not publish in time: say who and when, and let the walk run out without waiting.
__device__ __noinline__ void report_timeout(Status* status, int* abandoned, int missing, int step) {
  if (lane_index() == 0) {
    if (atomicCAS(&status->error, 0u, static_cast<u32>(missing) + 1u) == 0u) {
      status->error_block = blockIdx.x;
      status->error_step = static_cast<u32>(step);
    }
    *reinterpret_cast<volatile int*>(abandoned) = 1;
  }
  __syncwarp();
}

constexpr int SERVING_WARPS = TEAMS * TEAM;  // the others have nothing to do
// Columns whose words a service warp holds at once.
constexpr int TOGETHER = plan::SERVED_TOGETHER;

// What each service warp has.
struct LatentWarp {
  const WalkArgs& args;
  Shared& shared;

  // Few registers: what is cheap to work out again is not kept.
  __device__ __forceinline__ int service() const { return warp_index() - plan::SWEEP_WARPS; }
  __device__ __forceinline__ int team() const { return service() / TEAM; }
  __device__ __forceinline__ int column(int served) const { return team() * SERVED + served; }
  // Of a team that makes a latent, one leads: it does all the rest.
  __device__ __forceinline__ int member() const { return service() % TEAM; }
  __device__ __forceinline__ bool leads() const { return member() == 0; }
  __device__ __forceinline__ int team_lane() const { return member() * 32 + lane_index(); }
  __device__ __forceinline__ void team_sync() const {
    if constexpr (TEAM == 1) {
      __syncwarp();
    } else {
      named_barrier(plan::SWEEP_WARPS / 4 + 1 + team(), TEAM_LANES);  // behind the warpgroups'
    }
  }
  __device__ __forceinline__ int request(int group, int column) const {
    return group * plan::COLUMNS + column;
  }
  // The exchange of a step: one after the other since the workspace was cleared.
  __device__ __forceinline__ u32 sequence_of(int step) const {
    return *reinterpret_cast<volatile u32*>(&shared.sequence) + static_cast<u32>(step);
  }
  __device__ __forceinline__ bool abandoned() const {
    return *reinterpret_cast<volatile int*>(&shared.abandoned) != 0;
  }

  // Whether the exchange that began 256 polls or more ago has lasted too long.
  __device__ __forceinline__ bool out_of_time(u32 poll) const {
    volatile u64& deadline = shared.deadline[service()];
    if (poll == 256 && lane_index() == 0) deadline = global_timer() + 1000ull * args.timeout_us;
    __syncwarp();
    return __any_sync(0xffffffffu, global_timer() > deadline);
  }

  __device__ __forceinline__ const Byte* table_row(int token) const {
    return args.table + static_cast<long long>(token) * plan::TABLE_ROW_BYTES;
  }

  // Where a 16-byte piece of a latent goes: piece 2 s + h of a plane is half h of slab s.
  __device__ __forceinline__ u32 latent_place(int slot, int column, int piece) const {
    const u32 latents = shared_address(shared.latent[slot]);
    if constexpr (!plan::WARPGROUPS)
      return latents + column * plan::LATENT_LINE_BYTES + piece * 16;
    // Core matrices [slab][k half][block][operand column][16 bytes]; columns are two a request.
    const int slab = piece >> 2, plane = (piece >> 1) & 1, half = piece & 1;
    return latents + ((slab * 2 + half) * plan::COLUMN_BLOCKS + column / 4) * 128 +
           (2 * (column % 4) + plane) * 16;
  }

  // Puts the latents of a round, of some columns, where the sweeping warps read them.
  template <int COUNT>
  __device__ __forceinline__ void send_latents(int round, int first_served,
                                               const int (&token)[COUNT]) const {
    if constexpr (HEAD == Head::MARKOV) {
      copy_latents<COUNT>(round, first_served, token);
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i) {
        int chosen = token[0];
#pragma unroll
        for (int j = 1; j < COUNT; ++j) chosen = i == j ? token[j] : chosen;
        make_latent(round, column(first_served + i), chosen);
      }
    }
    if constexpr (plan::WARPGROUPS) fence_async_proxy();  // the tensor cores read these bytes
  }

  // What the hidden states add to a step's inner sums, where it is given. An absent request gets
  // another's.
  __device__ __forceinline__ const float* hidden_part(int round, int column) const {
    const int request = min(this->request(round_group(round), column), args.num_requests - 1);
    return args.hidden_part + (static_cast<long long>(request) * args.num_steps +
                               round_step(round)) * plan::PART;
  }

  // ---- inner sums that need no token -------------------------------------------------------------

  // Each block has the rows of some units: it multiplies them with the state and the hidden states and
  // publishes the sums; all gather all. They are those of the next step, published as soon as there is
  // the state, and so under way while the step is swept; the projector's (Domino) are waited for at once.
  // A word is a sum, or three in bf16, and the number of its exchange; slots alternate. A block that
  // publishes for step s + 2 has seen every block's candidates of step s, and those came after the words
  // for s had been read.
  static constexpr bool PACKED = HEAD == Head::DOMINO;  // three sums in a word
  static constexpr int EARLY_WORDS = plan::UNITS * plan::UNIT_WORDS;

  template <bool PROJECTOR>
  __device__ __forceinline__ u64* early_slots(int step, int request) const {
    constexpr int WORDS = PROJECTOR ? plan::PROJECTOR_ROWS : EARLY_WORDS;
    constexpr int REQUESTS = plan::GROUPS * plan::COLUMNS;
    const int line = static_cast<int>(sequence_of(step) & 1u) * REQUESTS + request;
    u64* first = args.state_slots + (PROJECTOR ? 2ll * REQUESTS * EARLY_WORDS : 0ll);
    return first + static_cast<long long>(line) * WORDS;
  }

  __device__ __forceinline__ static u64 sum_word(float sum, u32 sequence) {
    return static_cast<u64>(__float_as_uint(sum)) << 32 | sequence;
  }
  // Three sums rounded to bf16, in their order, below sixteen bits of the sequence.
  template <int ROWS>
  __device__ __forceinline__ static u64 packed_word(const float (&sum)[ROWS], u32 sequence) {
    const u32 low = round_bf16x2(sum[0], sum[1 % ROWS]);
    const u32 high = round_bf16x2(sum[2 % ROWS], 0.0f) | sequence << 16;
    return static_cast<u64>(high) << 32 | low;
  }
  template <bool PROJECTOR>
  __device__ __forceinline__ static bool has_come(u64 word, u32 sequence) {
    if constexpr (PACKED && !PROJECTOR)
      return static_cast<u32>(word >> 48) == (sequence & 0xffffu);
    return static_cast<u32>(word) == sequence;
  }

  // What the hidden states add to an inner sum of this block: row `own` of its rows, `row` of all.
  __device__ __forceinline__ float part_of(int round, int column, int own, int row) const {
    if constexpr (plan::HIDDEN_INSIDE) return shared.own_part[round_step(round) & 1][column][own];
    return __uint_as_float(load_global_4(hidden_part(round, column) + row));
  }

  // Publishes this block's inner sums of a request, for the step of a round.
  __device__ __forceinline__ void publish_early(int round, int column) const {
    const int lane = lane_index(), step = round_step(round);
    const int request = this->request(round_group(round), column);
    const int first = static_cast<int>(blockIdx.x) * plan::BLOCK_UNITS;
    const u32 sequence = sequence_of(step);
    u64* slots = early_slots<false>(step, request);
#pragma unroll 1
    for (int unit = member(); unit < plan::BLOCK_UNITS && first + unit < plan::UNITS; unit += TEAM) {
      float sum[plan::UNIT_ROWS] = {};
      if constexpr (STATEFUL)
        lane_products<plan::UNIT_ROWS, plan::STATE>(
            shared.state_weight[unit], plan::BLOCK_UNITS * plan::STATE, shared.state[request], lane,
            sum);
      if constexpr (PACKED) {
        if (lane == 0) store_relaxed(slots + first + unit, packed_word(sum, sequence));
      } else {
#pragma unroll
        for (int kind = 0; kind < plan::UNIT_ROWS; ++kind) {
          const int row = kind * plan::UNITS + first + unit;
          const float part = part_of(round, column, kind * plan::BLOCK_UNITS + unit, row);
          sum[kind] = STATEFUL ? __fadd_rn(part, sum[kind]) : part;
          if (lane == kind) store_relaxed(slots + row, sum_word(sum[kind], sequence));
        }
      }
    }
  }

  // The same of the projector's rows, with the state that has just taken in a token.
  __device__ __forceinline__ void publish_projections(int round, int column) const {
    const int lane = lane_index(), step = round_step(round);
    const int request = this->request(round_group(round), column);
    const int first = static_cast<int>(blockIdx.x) * plan::BLOCK_PROJECTIONS;
    u64* slots = early_slots<true>(step, request);
#pragma unroll 1
    for (int own = member(); own < plan::BLOCK_PROJECTIONS && first + own < plan::PROJECTOR_ROWS;
         own += TEAM) {
      const float part = part_of(round, column, own, first + own);
      float sum[1];
      lane_products<1, plan::STATE>(shared.projector_weight[own], 0, shared.state[request], lane, sum);
      if (lane == 0)
        store_relaxed(slots + first + own, sum_word(__fadd_rn(part, sum[0]), sequence_of(step)));
    }
  }

  // Puts all blocks' words of a request where its latent is made of them; by the members of the team from
  // FIRST on, who then have to wait for each other.
  template <bool PROJECTOR, int FIRST>
  __device__ __forceinline__ void gather_words(int round, int column) const {
    constexpr int WORDS = PROJECTOR ? plan::PROJECTOR_ROWS : EARLY_WORDS;
    constexpr int LANES = TEAM_LANES - 32 * FIRST;
    // Of a lane; more at once take registers that there are not.
    constexpr int EACH = (WORDS + LANES - 1) / LANES, TURNS = (EACH + 3) / 4;
    constexpr int AT_ONCE = TURNS == 0 ? 1 : (EACH + TURNS - 1) / TURNS;
    const int step = round_step(round);
    const u64* slots = early_slots<PROJECTOR>(step, request(round_group(round), column));
    const u32 sequence = sequence_of(step);
#pragma unroll 1
    for (int start = (member() - FIRST) * 32; start < WORDS; start += LANES * AT_ONCE) {
      const int first = start + lane_index();
      for (u32 poll = 1;; ++poll) {
        u64 words[AT_ONCE];
        int missing = WORDS;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) words[i] = load_relaxed(slots + min(first + LANES * i, WORDS - 1));
#pragma unroll
        for (int i = AT_ONCE - 1; i >= 0; --i) {
          const int index = min(first + LANES * i, WORDS - 1);
          if (!has_come<PROJECTOR>(words[i], sequence)) missing = index;
          if constexpr (PROJECTOR) {
            shared.projections[column][index] = value_of(words[i]);
          } else if constexpr (PACKED) {
            reinterpret_cast<u64*>(shared.early[column])[index] = words[i];
          } else {
            reinterpret_cast<float*>(shared.early[column])[index] = value_of(words[i]);
          }
        }
        if (!__any_sync(0xffffffffu, missing < WORDS)) break;
        if ((poll & 15u) == 0 && __any_sync(0xffffffffu, abandoned())) break;
        if ((poll & 255u) == 0 && out_of_time(poll)) {
          const u32 nearest = warp_max_unsigned(static_cast<u32>(WORDS - missing));
          const int index = WORDS - static_cast<int>(nearest);
          const int block = PROJECTOR ? index / plan::BLOCK_PROJECTIONS
                                      : index % max(plan::UNITS, 1) / plan::BLOCK_UNITS;
          report_timeout(args.status, &shared.abandoned, block, step);
        }
      }
    }
  }
  __device__ __forceinline__ static float value_of(u64 word) {
    return __uint_as_float(static_cast<u32>(word >> 32));
  }

  // ---- products with hidden states ---------------------------------------------------------------

  // Where the kernel makes them: hidden states are asked for one step before this block's rows are
  // multiplied with them, and that is as long before the sums are used as words take to be exchanged. The
  // leader of a team has other things to do. Domino uses them in its projector, at once.
  static constexpr int PART_AHEAD = HEAD == Head::DOMINO ? 1 : 2;
  static constexpr int FIRST_PART = HEAD == Head::DOMINO ? 1 : 0;  // step
  static constexpr int FOLLOWER = TEAM > 1 ? 1 : 0;
  static_assert(!plan::HIDDEN_INSIDE || (TEAM > 1 && SERVED == 1), "a team has one column");

  __device__ __forceinline__ void ask_hidden(int step) const {
    if constexpr (plan::HIDDEN_INSIDE) {
      if (step >= args.num_steps || member() != FOLLOWER || lane_index() != 0) return;
      constexpr u32 BYTES = 2 * plan::HIDDEN;
      const int request = min(column(0), args.num_requests - 1);
      Barrier* landed = &shared.hidden_landed[column(0)];
      barrier_arrive_expect(landed, BYTES);
      bulk_copy(shared.hidden[column(0)],
                args.hidden + 2 * (request * args.hidden_request_stride +
                                   step * args.hidden_step_stride),
                BYTES, landed);
    }
  }

  __device__ __forceinline__ void make_part(int step) const {
    if constexpr (plan::HIDDEN_INSIDE) {
      if (step >= args.num_steps || member() < FOLLOWER) return;
      constexpr bool PROJECTOR = HEAD == Head::DOMINO;
      constexpr int KINDS = PROJECTOR ? 1 : plan::UNIT_ROWS;
      constexpr int EACH = PROJECTOR ? plan::BLOCK_PROJECTIONS : plan::BLOCK_UNITS;
      constexpr int ALL = PROJECTOR ? plan::PROJECTOR_ROWS : plan::UNITS;
      const int lane = lane_index(), column = this->column(0);
      const int first = static_cast<int>(blockIdx.x) * EACH;
      barrier_wait(&shared.hidden_landed[column], static_cast<u32>(step - FIRST_PART) & 1u);
#pragma unroll 1
      for (int own = member() - FOLLOWER; own < EACH && first + own < ALL; own += TEAM - FOLLOWER) {
        const int row = min(lane, KINDS - 1) * ALL + first + own;  // whose sum this lane keeps
        float bias = 0.0f;
        if (args.hidden_bias != nullptr)
          bias = bf16_value(load_global_2(args.hidden_bias + 2 * row));
        float sum[KINDS];
        lane_products<KINDS, plan::HIDDEN>(shared.hidden_weight[own], EACH * plan::HIDDEN,
                                           shared.hidden[column], lane, sum);
        float mine = sum[0];
#pragma unroll
        for (int kind = 1; kind < KINDS; ++kind) mine = lane == kind ? sum[kind] : mine;
        if (args.hidden_bias != nullptr) mine = __fadd_rn(mine, bias);
        if (lane < KINDS) {
          shared.own_part[step & 1][column][lane * EACH + own] = mine;
          if (column < args.num_requests)  // for whoever asks what was added
            args.hidden_part[(column * args.num_steps + step) * plan::PART + row] = mine;
        }
      }
      __syncwarp();
    }
  }

  // The sums of the next step, for all columns of this warp. One group has time for it while it is swept
  // and exchanged; of several groups each gathers when it makes its latents.
  static constexpr bool GATHERS_AHEAD = EARLY && plan::GROUPS == 1;
  __device__ __forceinline__ void prepare_step(int round) const {
    if constexpr (GATHERS_AHEAD) {
      if (round_step(round) >= args.num_steps || member() < FOLLOWER) return;
      make_part(round_step(round) + PART_AHEAD - 1);
#pragma unroll 1
      for (int served = 0; served < SERVED; ++served)
        gather_words<false, FOLLOWER>(round, column(served));
      __syncwarp();
    }
  }

  // Before the first step a state is zeros.
  __device__ __forceinline__ void begin_states() const {
    if constexpr (EARLY) {
      barrier_wait(&shared.state_landed, 0);
      if constexpr (FIRST_PART < PART_AHEAD - 1) {
        ask_hidden(FIRST_PART);
        make_part(FIRST_PART);
      }
#pragma unroll 1
      for (int use = 0; use < plan::GROUPS * SERVED; ++use) {
        const int group = use / SERVED, column = this->column(use % SERVED);
        if constexpr (STATEFUL) {
          u16* state = shared.state[request(group, column)];
          for (int i = team_lane(); i < plan::STATE; i += TEAM_LANES) state[i] = 0;
        }
        team_sync();
        publish_early(group, column);
      }
      team_sync();
      if constexpr (FIRST_PART < PART_AHEAD - 1) {
        ask_hidden(PART_AHEAD - 1);
        make_part(PART_AHEAD - 1);
        team_sync();
      }
      ask_hidden(PART_AHEAD);
    }
  }

  // ---- latent functions --------------------------------------------------------------------------

  // The latent of a head that reads hidden states.
  __device__ __forceinline__ void make_latent(int round, int column, int token) const {
    const int lane = team_lane();
    const Byte* row = table_row(token);
    if constexpr (EARLY)
      if (!GATHERS_AHEAD || round_step(round) == 0) {
        gather_words<false, 0>(round, column);
        team_sync();
      }
    if constexpr (HEAD == Head::DOMINO) {
      take_in_token(row, reinterpret_cast<const u64*>(shared.early[column]),
                    shared.state[request(round_group(round), column)], lane);
      team_sync();
      if (round_step(round) > 0) {  // the first token is base logits' alone
        publish_projections(round, column);
        gather_words<true, 0>(round, column);
        team_sync();
      }
    }
    [[maybe_unused]] float* early = reinterpret_cast<float*>(shared.early[EARLY ? column : 0]);
    float latent[RUNS][RUN];
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      const int start = run_start(run, lane);
#pragma unroll
      for (int i = 0; i < RUN; ++i) latent[run][i] = 0.0f;
      if (!run_exists(run, lane)) continue;
      if constexpr (HEAD == Head::GATED)
        gated_run(row, hidden_part(round, column), early, start, latent[run]);
      if constexpr (HEAD == Head::RNN) rnn_run(row, early, start, latent[run]);
      if constexpr (HEAD == Head::DOMINO)
        if (round_step(round) > 0) projected_run(shared.projections[column], start, latent[run]);
    }
    store_latent(latent, latent_slot(round), column);
  }

  // The state that a request's latent of this step leaves, where it was not needed for the latent.
  __device__ __forceinline__ void advance_state(int round, int column) const {
    if constexpr (HEAD == Head::RNN) {
      const int lane = team_lane();
#pragma unroll
      for (int run = 0; run < RUNS; ++run)
        if (run_exists(run, lane))
          rnn_state_run(reinterpret_cast<const float*>(shared.early[column]), run_start(run, lane),
                        shared.state[request(round_group(round), column)]);
      team_sync();
    }
  }

  // Quantises a latent and puts it where the sweeping warps read it. All of the team have come as far.
  __device__ __forceinline__ void store_latent(const float (&latent)[RUNS][RUN], int slot,
                                               int column) const {
    const int lane = team_lane();
    __syncwarp();
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
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      if (!run_exists(run, lane)) continue;
      PlaneRun high, low;
      quantise_run(latent[run], scale, high, low);
      const int start = run_start(run, lane), piece = start / 32 * 4 + start / 16 % 2;
      high.store(latent_place(slot, column, piece) + start % 16);
      low.store(latent_place(slot, column, piece + 2) + start % 16);
    }
    if (lane == 0) shared.latent_scale[slot][column] = scale;
  }

  // Copies table rows, which hold quantised latents.
  template <int COUNT>
  __device__ __forceinline__ void copy_latents(int round, int first_served,
                                               const int (&token)[COUNT]) const {
    constexpr int PIECES = (2 * plan::RANK + 511) / 512;
    u32 piece[COUNT][PIECES][4];
    u32 scale[COUNT];
    const int lane = lane_index(), slot = latent_slot(round);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const Byte* source = table_row(token[i]);
#pragma unroll
      for (int j = 0; j < PIECES; ++j)
        if ((j * 32 + lane) * 16 < 2 * plan::RANK)
          load_global_16(piece[i][j], source + (j * 32 + lane) * 16);
      scale[i] = load_global_4(source + 2 * plan::RANK);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int column = this->column(first_served + i);
#pragma unroll
      for (int j = 0; j < PIECES; ++j)
        if ((j * 32 + lane) * 16 < 2 * plan::RANK)
          store_shared_16(latent_place(slot, column, j * 32 + lane), piece[i][j]);
      if (lane == 0) shared.latent_scale[slot][column] = __uint_as_float(scale[i]);
    }
  }

  // Says that this warp's latents of a round are there; what the next step needs of a state follows.
  __device__ __forceinline__ void latents_sent(int round) const {
    warp_arrive(&shared.latents_ready[latent_slot(round)]);
    if (leads() && round >= plan::GROUPS) mark(args, round - plan::GROUPS, LATENT_SENT);
    if constexpr (EARLY) {
      if (round_step(round) + 1 >= args.num_steps) return;
#pragma unroll 1
      for (int served = 0; served < SERVED; ++served) {
        advance_state(round, column(served));
        publish_early(round + plan::GROUPS, column(served));
      }
    }
  }
};

}  // namespace wts
