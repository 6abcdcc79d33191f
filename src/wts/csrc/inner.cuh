// Inner sums: what a latent needs of states and hidden states, and no token. Blocks share out the rows,
// multiply, and exchange the sums. This is the work of a crew: all sweeping warps of a block while it
// waits for others, where there is one group; else the service warp that makes the latents.
#pragma once
#include "cells.cuh"
#include "exchange.cuh"

namespace wts {

// Whether the sweeping warps do it. They have time for it, and shared memory then is not busy with a sweep.
constexpr bool SWEEPERS_HELP = EARLY && plan::GROUPS == 1;

// ---- waiting for other blocks ------------------------------------------------------------------

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

__device__ __forceinline__ bool is_abandoned(const Shared& shared) {
  return *reinterpret_cast<const volatile int*>(&shared.abandoned) != 0;
}

// Whether the exchange that began 256 polls or more ago has lasted too long.
__device__ __forceinline__ bool out_of_time(const WalkArgs& args, Shared& shared, u32 poll) {
  volatile u64& deadline = shared.deadline[warp_index()];
  if (poll == 256 && lane_index() == 0) deadline = global_timer() + 1000ull * args.timeout_us;
  __syncwarp();
  return __any_sync(0xffffffffu, global_timer() > deadline);
}

// The exchange of a step: one after the other since the workspace was cleared.
__device__ __forceinline__ u32 sequence_of_step(const Shared& shared, int step) {
  return *reinterpret_cast<const volatile u32*>(&shared.sequence) + static_cast<u32>(step);
}

__device__ __forceinline__ int request_of(int round, int column) {
  return round_group(round) * plan::COLUMNS + column;
}

// ---- words -------------------------------------------------------------------------------------

// A word is a sum, or a unit's three in bf16 (Domino), and the number of its exchange; slots alternate. A
// block that publishes for step s + 2 has seen every block's candidates of step s, and those came after
// the words for s had been read. A gated head's words are published up to one step earlier, into twice as
// many slots.
constexpr bool PACKED = HEAD == Head::DOMINO;
constexpr int EARLY_WORDS = plan::UNITS * plan::UNIT_WORDS;

template <bool PROJECTOR>
__device__ __forceinline__ u64* early_slots(const WalkArgs& args, u32 sequence, int request) {
  constexpr int WORDS = PROJECTOR ? plan::PROJECTOR_ROWS : EARLY_WORDS;
  constexpr int REQUESTS = plan::GROUPS * plan::COLUMNS;
  const int line = static_cast<int>(sequence % plan::EARLY_SLOTS) * REQUESTS + request;
  u64* first =
      args.state_slots + (PROJECTOR ? 1ll * plan::EARLY_SLOTS * REQUESTS * EARLY_WORDS : 0ll);
  return first + static_cast<long long>(line) * WORDS;
}

__device__ __forceinline__ u64 sum_word(float sum, u32 sequence) {
  return static_cast<u64>(__float_as_uint(sum)) << 32 | sequence;
}
__device__ __forceinline__ float sum_of(u64 word) {
  return __uint_as_float(static_cast<u32>(word >> 32));
}

// Three sums rounded to bf16, in their order, below sixteen bits of the sequence.
template <int ROWS>
__device__ __forceinline__ u64 packed_word(const float (&sum)[ROWS], u32 sequence) {
  const u32 low = round_bf16x2(sum[0], sum[1 % ROWS]);
  const u32 high = round_bf16x2(sum[2 % ROWS], 0.0f) | sequence << 16;
  return static_cast<u64>(high) << 32 | low;
}

template <bool PROJECTOR>
__device__ __forceinline__ bool has_come(u64 word, u32 sequence) {
  if constexpr (PACKED && !PROJECTOR) return static_cast<u32>(word >> 48) == (sequence & 0xffffu);
  return static_cast<u32>(word) == sequence;
}

// ---- the crew ----------------------------------------------------------------------------------

template <int MEMBERS_>
struct Crew {
  static constexpr int MEMBERS = MEMBERS_, LANES = 32 * MEMBERS_;
  int member, barrier;

  __device__ __forceinline__ int lane() const { return member * 32 + lane_index(); }
  __device__ __forceinline__ void sync() const {
    if constexpr (MEMBERS == 1) {
      __syncwarp();
    } else {
      named_barrier(barrier, LANES);
    }
  }
};

template <typename Crew>
struct InnerWork {
  const WalkArgs& args;
  Shared& shared;
  Crew crew;

  // Rows that one warp multiplies at once: a packed word wants all of its unit.
  static constexpr int TOGETHER = PACKED ? plan::UNIT_ROWS : 1;
  static constexpr int PARTS = plan::UNIT_ROWS * plan::BLOCK_UNITS / TOGETHER;  // of a block
  // The kernel's own products with hidden states are of these rows.
  static constexpr bool OF_PROJECTOR = HEAD == Head::DOMINO;
  static constexpr int OWN = OF_PROJECTOR ? plan::BLOCK_PROJECTIONS : PARTS;

  // Row of the whole matrix that is `own` of this block's; negative where there is none.
  __device__ __forceinline__ static int row_of(int own) {
    const int unit = static_cast<int>(blockIdx.x) * plan::BLOCK_UNITS + own % plan::BLOCK_UNITS;
    return unit < plan::UNITS ? own / plan::BLOCK_UNITS * plan::UNITS + unit : -1;
  }
  __device__ __forceinline__ static int projector_row_of(int own) {
    const int row = static_cast<int>(blockIdx.x) * plan::BLOCK_PROJECTIONS + own;
    return row < plan::PROJECTOR_ROWS ? row : -1;
  }

  // What the hidden states add to a sum of this block: row `own` of its rows, `row` of all. An absent
  // request gets another's.
  __device__ __forceinline__ float part_of(int round, int column, int own, int row) const {
    if constexpr (plan::HIDDEN_INSIDE) return shared.own_part[column][own];
    const int request = min(request_of(round, column), args.num_requests - 1);
    const long long first = static_cast<long long>(request) * args.num_steps + round_step(round);
    return __uint_as_float(load_global_4(args.hidden_part + first * plan::PART + row));
  }

  // Publishes this block's inner sums of a request for the step of a round.
  __device__ __forceinline__ void publish_early(int round, int column) const {
    const int lane = lane_index(), request = request_of(round, column);
    const u32 sequence = sequence_of_step(shared, round_step(round));
    u64* slots = early_slots<false>(args, sequence, request);
#pragma unroll 1
    for (int own = crew.member; own < PARTS; own += Crew::MEMBERS) {
      const int row = row_of(own);
      if (row < 0) continue;
      float sum[TOGETHER] = {};
      if constexpr (STATEFUL)
        lane_products<TOGETHER, plan::STATE>(shared.state_weight[own], plan::BLOCK_UNITS * plan::STATE,
                                             shared.state[request], lane, sum);
      if constexpr (PACKED) {
        if (lane == 0) store_relaxed(slots + row, packed_word(sum, sequence));
      } else {
        const float part = part_of(round, column, own, row);
        const float early = STATEFUL ? __fadd_rn(part, sum[0]) : part;
        if (lane == 0) store_relaxed(slots + row, sum_word(early, sequence));
      }
    }
  }

  // The same of the projector's rows, with the state that has just taken in a token.
  __device__ __forceinline__ void publish_projections(int round, int column) const {
    const int lane = lane_index(), request = request_of(round, column);
    const u32 sequence = sequence_of_step(shared, round_step(round));
    u64* slots = early_slots<true>(args, sequence, request);
#pragma unroll 1
    for (int own = crew.member; own < plan::BLOCK_PROJECTIONS; own += Crew::MEMBERS) {
      const int row = projector_row_of(own);
      if (row < 0) continue;
      const float part = part_of(round, column, own, row);
      float sum[1];
      lane_products<1, plan::STATE>(shared.projector_weight[own], 0, shared.state[request], lane, sum);
      if (lane == 0) store_relaxed(slots + row, sum_word(__fadd_rn(part, sum[0]), sequence));
    }
  }

  // Puts all blocks' words of a request into shared memory; the crew has to wait for each other after.
  template <bool PROJECTOR>
  __device__ __forceinline__ void gather(int round, int column) const {
    constexpr int WORDS = PROJECTOR ? plan::PROJECTOR_ROWS : EARLY_WORDS;
    // Of a lane; more at once take registers that there are not.
    constexpr int EACH = (WORDS + Crew::LANES - 1) / Crew::LANES, TURNS = (EACH + 3) / 4;
    constexpr int AT_ONCE = TURNS == 0 ? 1 : (EACH + TURNS - 1) / TURNS;
    const int step = round_step(round);
    const u32 sequence = sequence_of_step(shared, step);
    const u64* slots = early_slots<PROJECTOR>(args, sequence, request_of(round, column));
#pragma unroll 1
    for (int start = crew.member * 32; start < WORDS; start += Crew::LANES * AT_ONCE) {
      const int first = start + lane_index();
      for (u32 poll = 1;; ++poll) {
        u64 words[AT_ONCE];
        int missing = WORDS;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          words[i] = load_relaxed(slots + min(first + Crew::LANES * i, WORDS - 1));
#pragma unroll
        for (int i = AT_ONCE - 1; i >= 0; --i) {
          const int index = min(first + Crew::LANES * i, WORDS - 1);
          if (!has_come<PROJECTOR>(words[i], sequence)) missing = index;
          if constexpr (PROJECTOR) {
            shared.projections[column][index] = sum_of(words[i]);
          } else if constexpr (PACKED) {
            reinterpret_cast<u64*>(shared.early[column])[index] = words[i];
          } else {
            reinterpret_cast<float*>(shared.early[column])[index] = sum_of(words[i]);
          }
        }
        if (!__any_sync(0xffffffffu, missing < WORDS)) break;
        if ((poll & 15u) == 0 && __any_sync(0xffffffffu, is_abandoned(shared))) break;
        if ((poll & 255u) == 0 && out_of_time(args, shared, poll)) {
          const u32 nearest = warp_max_unsigned(static_cast<u32>(WORDS - missing));
          const int index = WORDS - static_cast<int>(nearest);
          const int block = PROJECTOR ? index / plan::BLOCK_PROJECTIONS
                                      : index % max(plan::UNITS, 1) / plan::BLOCK_UNITS;
          // Early words come during the step before.
          report_timeout(args.status, &shared.abandoned, block, PROJECTOR ? step : max(step - 1, 0));
        }
      }
    }
  }

  // ---- products with hidden states, where the kernel makes them ----------------------------------

  // Asks for the hidden states of a step, once all of the crew are through with those before.
  __device__ __forceinline__ void ask_hidden(int step) const {
    if constexpr (plan::HIDDEN_INSIDE) {
      if (step >= args.num_steps || crew.lane() != 0) return;
      constexpr u32 BYTES = 2 * plan::HIDDEN;
      barrier_arrive_expect(&shared.hidden_landed, plan::COLUMNS * BYTES);
#pragma unroll
      for (int column = 0; column < plan::COLUMNS; ++column) {
        const int request = min(column, args.num_requests - 1);  // an absent one gets another's
        const long long first =
            request * args.hidden_request_stride + step * args.hidden_step_stride;
        bulk_copy(shared.hidden[column], args.hidden + 2 * first, BYTES, &shared.hidden_landed);
      }
    }
  }

  // Multiplies them with this block's rows: each warp with those whose sums it publishes.
  __device__ __forceinline__ void make_part(int step) const {
    if constexpr (plan::HIDDEN_INSIDE) {
      if (step >= args.num_steps) return;
      barrier_wait(&shared.hidden_landed, static_cast<u32>(step) & 1u);
      constexpr int TURNS = (OWN + Crew::MEMBERS - 1) / Crew::MEMBERS;
#pragma unroll 1
      for (int turn = 0; turn < TURNS * plan::COLUMNS; ++turn) {
        const int own = turn % TURNS * Crew::MEMBERS + crew.member, column = turn / TURNS;
        if (own >= OWN) continue;
        const int row = OF_PROJECTOR ? projector_row_of(own) : row_of(own);
        if (row < 0) continue;
        float bias = 0.0f, sum[1];
        if (args.hidden_bias != nullptr)
          bias = bf16_value(load_global_2(args.hidden_bias + 2 * row));
        lane_products<1, plan::HIDDEN>(shared.hidden_weight[own], 0, shared.hidden[column],
                                       lane_index(), sum);
        const float part = args.hidden_bias != nullptr ? __fadd_rn(sum[0], bias) : sum[0];
        if (lane_index() == 0) {
          shared.own_part[column][own] = part;
          if (column < args.num_requests)  // for whoever asks what was added
            args.hidden_part[(column * args.num_steps + step) * plan::PART + row] = part;
        }
      }
      __syncwarp();
    }
  }

  // ---- states ------------------------------------------------------------------------------------

  // Before the first step a state is zeros.
  __device__ __forceinline__ void begin_state(int request) const {
    if constexpr (STATEFUL)
      for (int i = crew.lane(); i < plan::STATE; i += Crew::LANES) shared.state[request][i] = 0;
  }

  // The state that a request's latent of this step leaves: not needed for the latent itself (RNN).
  __device__ __forceinline__ void advance_state(int round, int column) const {
    const u16* joint = shared.joint[round_step(round) % plan::JOINT_SLOTS][column];
    u16* state = shared.state[STATEFUL ? request_of(round, column) : 0];
    for (int unit = crew.lane(); unit < plan::STATE; unit += Crew::LANES)
      state[unit] = rnn_state(bf16_value(joint[unit]),
                              bf16_value(joint[plan::RANK % plan::JOINT_STORAGE + unit]), state[unit]);
  }

  // The state that a token leaves, from its input row and the early sums (Domino).
  __device__ __forceinline__ void take_in(int round, int column, int token) const {
    const Byte* row = args.table + static_cast<long long>(token) * plan::TABLE_ROW_BYTES;
    take_in_token<Crew::LANES>(row, reinterpret_cast<const u64*>(shared.early[column]),
                               shared.state[request_of(round, column)], crew.lane());
  }
};

// ---- the sweeping warps as a crew --------------------------------------------------------------

using Sweepers = Crew<plan::SWEEP_WARPS>;

// Behind the barriers of warpgroups and of teams.
__device__ __forceinline__ Sweepers sweepers() {
  return {warp_index(), plan::SWEEP_WARPS / 4 + 1 + plan::SERVICE_WARPS};
}

// Who gathers other blocks' sums waits for this block's first, and then a little: polls that are in vain
// are in the way of the words.
template <typename Work>
__device__ __forceinline__ void publish_sums(const Work& work, int step) {
#pragma unroll 1
  for (int column = 0; column < plan::COLUMNS; ++column) work.publish_early(step, column);
  if constexpr (HEAD == Head::RNN) warp_arrive(&work.shared.sums_published);
}
__device__ __forceinline__ void await_own_sums(Shared& shared, int step) {
  if constexpr (HEAD == Head::GATED) return;
  barrier_wait(&shared.sums_published, static_cast<u32>(HEAD == Head::DOMINO ? step - 1 : step) & 1u);
  const u32 published = clock_low();
  while (clock_low() - published < plan::FIRST_POLL_CYCLES) {
  }
}

// Before the first sweep, while weights come: sums of the first step, of a gated head of two.
__device__ __forceinline__ void begin_inner_work(const WalkArgs& args, Shared& shared) {
  const InnerWork<Sweepers> work{args, shared, sweepers()};
#pragma unroll 1
  for (int column = 0; column < plan::COLUMNS; ++column) work.begin_state(column);
  barrier_wait(&shared.state_landed, 0);
  work.ask_hidden(0);
  if constexpr (HEAD != Head::DOMINO) {
    work.make_part(0);
    work.crew.sync();
    work.ask_hidden(1);
    publish_sums(work, 0);
    work.make_part(1);
    if constexpr (HEAD == Head::GATED) {
      if (args.num_steps > 1) publish_sums(work, 1);
      work.crew.sync();
      work.ask_hidden(2);
    }
  }
}

// Behind the sweep of a step: the sums of the next one, of a gated head of the one after.
__device__ __forceinline__ void work_behind_sweep(const WalkArgs& args, Shared& shared, int step) {
  const InnerWork<Sweepers> work{args, shared, sweepers()};
  if constexpr (HEAD == Head::GATED) {
    if (step + 2 >= args.num_steps) return;
    work.make_part(step + 2);
    publish_sums(work, step + 2);
    work.crew.sync();
    work.ask_hidden(step + 3);
  }
  if constexpr (HEAD == Head::RNN) {
    if (step + 1 >= args.num_steps) return;
    work.crew.sync();
    work.ask_hidden(step + 2);
#pragma unroll 1
    for (int column = 0; column < plan::COLUMNS; ++column) work.advance_state(step, column);
    work.crew.sync();
    publish_sums(work, step + 1);
    work.make_part(step + 2);
  }
}

// Before the sweep of a step (Domino): the token is taken in, for its latent and for the step to come.
__device__ __forceinline__ void work_before_sweep(const WalkArgs& args, Shared& shared, int step) {
  if constexpr (HEAD == Head::DOMINO) {
    const InnerWork<Sweepers> work{args, shared, sweepers()};
#pragma unroll 1
    for (int column = 0; column < plan::COLUMNS; ++column) {
      if (step > 0) {
        work.template gather<false>(step, column);
      } else {  // of a state of zeros
        u64* early = reinterpret_cast<u64*>(shared.early[column]);
        for (int unit = work.crew.lane(); unit < plan::UNITS; unit += Sweepers::LANES) early[unit] = 0;
      }
    }
    work.make_part(step);
    work.crew.sync();
    work.ask_hidden(step + 1);
    barrier_wait(&shared.token_known, static_cast<u32>(step) & 1u);
#pragma unroll 1
    for (int column = 0; column < plan::COLUMNS; ++column)
      work.take_in(step, column, shared.inner_token[column]);
    work.crew.sync();
#pragma unroll 1
    for (int column = 0; step > 0 && column < plan::COLUMNS; ++column)  // the first has no latent
      work.publish_projections(step, column);
    if (step > 0) warp_arrive(&shared.sums_published);
    if (step + 1 < args.num_steps) publish_sums(work, step + 1);
  }
}

}  // namespace wts
