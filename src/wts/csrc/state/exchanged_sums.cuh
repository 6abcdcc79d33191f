// Inner sums: what a latent needs of states and hidden states, and no token. Blocks share out the
// rows, multiply, and, of few requests, exchange the sums (of more: sharded.cuh). Who does it is
// a crew of warps:
//   - the sweeping warps gather sums and multiply hidden states while they would wait for latents,
//     and a Domino head's take in tokens: shared memory is then not busy with a sweep, which such
//     work would slow down, and be slowed down by;
//   - an RNN's state is the service warps': its sums have to be under way while the step is swept.
#pragma once
#include "block.cuh"
#include "exchange/wait.cuh"
#include "heads/domino.cuh"
#include "heads/kind.cuh"
#include "heads/lane_products.cuh"
#include "numbers.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "state/crew.cuh"
#include "state/words.cuh"

namespace wts {

constexpr bool SWEEPERS_TAKE_IN = EARLY && HEAD == Head::DOMINO;

// Parts of so many steps are held (work_behind_sweep).
__device__ __forceinline__ int part_slot(int step) { return step % plan::PART_SLOTS; }

// All requests of one group.
template <typename Work>
__device__ __forceinline__ void each_column(Work work) {
#pragma unroll 1
  for (int column = 0; column < plan::COLUMNS; ++column) work(column);
}

template <typename Crew>
struct InnerWork {
  Block block;
  Crew crew;

  // What the hidden states add to a sum of this block: row `own` of its rows, `row` of all.
  __device__ __forceinline__ float part_of(int round, int column, int own, int row) const {
    if constexpr (plan::HIDDEN_INSIDE)
      return block.shared.own_part[part_slot(round_step(round))][column][own];
    return __uint_as_float(load_global_4(given_part(block, round, column) + row));
  }

  // Publishes this block's inner sums of a request for the step of a round.
  __device__ __forceinline__ void publish_early(int round, int column) const {
    const int lane = lane_index(), request = request_of(round, column);
    const int first = static_cast<int>(blockIdx.x) * plan::BLOCK_UNITS;
    const u32 sequence = block.sequence_of(round_step(round));
    u64* slots = early_slots<false>(block, sequence, request);
#pragma unroll 1
    for (int own = crew.member; own < plan::BLOCK_UNITS; own += Crew::MEMBERS) {
      const int unit = first + own;
      if (unit >= plan::UNITS) break;
      float sum[plan::UNIT_ROWS] = {};
      // A lane has the part, and publishes the sum, of a row of the unit.
      const int kind = min(lane, plan::UNIT_ROWS - 1), row = kind * plan::UNITS + unit;
      float part = 0.0f;
      if constexpr (!PACKED) part = part_of(round, column, kind * plan::BLOCK_UNITS + own, row);
      if constexpr (STATEFUL)
        lane_products<plan::UNIT_ROWS, plan::STATE>(block.shared.state_weight[own],
                                                    plan::BLOCK_UNITS * plan::STATE,
                                                    block.shared.state[request], lane, sum);
      if constexpr (PACKED) {
        if (lane == 0) store_relaxed(slots + unit, packed_word(sum, sequence));
      } else {
        const float early = STATEFUL ? __fadd_rn(part, of_lane(sum, lane)) : part;
        if (lane < plan::UNIT_ROWS) store_relaxed(slots + row, sum_word(early, sequence));
      }
    }
  }

  // The same of the projector's rows, with the state that has just taken in a token.
  __device__ __forceinline__ void publish_projections(int round, int column) const {
    const int lane = lane_index(), request = request_of(round, column);
    const int first = static_cast<int>(blockIdx.x) * plan::BLOCK_PROJECTIONS;
    const u32 sequence = block.sequence_of(round_step(round));
    u64* slots = early_slots<true>(block, sequence, request);
#pragma unroll 1
    for (int own = crew.member; own < plan::BLOCK_PROJECTIONS; own += Crew::MEMBERS) {
      const int row = first + own;
      if (row >= plan::PROJECTOR_ROWS) break;
      const float part = part_of(round, column, own, row);
      float sum[1];
      lane_products<1, plan::STATE>(block.shared.projector_weight[own], 0,
                                    block.shared.state[request], lane, sum);
      if (lane == 0) store_relaxed(slots + row, sum_word(__fadd_rn(part, sum[0]), sequence));
    }
  }

  // Asks for WORDS words from `slots` on, until all have come: MOST or fewer of a lane are on their
  // way at once. `put` gets each, when all have come, or, where that takes fewer registers,
  // whenever it was asked for. `late` names a block.
  template <int WORDS, int MOST, bool ONCE, typename Come, typename Put, typename Late>
  __device__ __forceinline__ void gather_words(const u64* slots, int step, Come come, Put put,
                                               Late late) const {
    // Of a lane; more at once take registers that there are not, and so does an end of its own.
    constexpr int EACH = (WORDS + Crew::LANES - 1) / Crew::LANES, TURNS = (EACH + MOST - 1) / MOST;
    constexpr int AT_ONCE = TURNS == 0 ? 1 : (EACH + TURNS - 1) / TURNS;
    constexpr bool EXACT = WORDS % (Crew::LANES * AT_ONCE) == 0;
    const auto index_of = [](int first, int i) {
      const int index = first + Crew::LANES * i;
      return EXACT ? index : min(index, WORDS - 1);
    };
#pragma unroll 1
    for (int start = crew.member * 32; start < WORDS; start += Crew::LANES * AT_ONCE) {
      const int first = start + lane_index();
      u64 words[AT_ONCE];
      for (u32 poll = 1;; ++poll) {
        int missing = WORDS;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          words[i] = load_relaxed(slots + index_of(first, i));
#pragma unroll
        for (int i = AT_ONCE - 1; i >= 0; --i) {
          const int index = index_of(first, i);
          if (!come(words[i])) missing = index;
          if constexpr (!ONCE) put(index, words[i]);
        }
        if (!__any_sync(0xffffffffu, missing < WORDS)) break;
        if ((poll & 15u) == 0 && __any_sync(0xffffffffu, is_abandoned(block))) break;
        if ((poll & 255u) == 0 && out_of_time(block, poll)) {
          const u32 nearest = warp_max_unsigned(static_cast<u32>(WORDS - missing));
          report_timeout(block.args.status, &block.shared.abandoned,
                         late(WORDS - static_cast<int>(nearest)), step);
        }
      }
      if constexpr (ONCE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) put(index_of(first, i), words[i]);
      }
    }
  }

  // Puts all blocks' words of a request into shared memory; the crew has to wait for each other
  // after.
  template <bool PROJECTOR, int MOST = 4, bool ONCE = false>
  __device__ __forceinline__ void gather(int round, int column) const {
    constexpr int WORDS = PROJECTOR ? plan::PROJECTOR_ROWS : plan::EARLY_WORDS;
    const int step = round_step(round);
    const u32 sequence = block.sequence_of(step);
    const auto come = [&](u64 word) { return has_come<PROJECTOR>(word, sequence); };
    const auto put = [&](int index, u64 word) {
      if constexpr (PROJECTOR) {
        block.shared.projections[column][index] = sum_of(word);
      } else if constexpr (PACKED) {
        reinterpret_cast<u64*>(block.shared.early[column])[index] = word;
      } else {
        reinterpret_cast<float*>(block.shared.early[column])[index] = sum_of(word);
      }
    };
    const auto late = [](int index) {
      return PROJECTOR ? index / plan::BLOCK_PROJECTIONS
                       : index % max(plan::UNITS, 1) / plan::BLOCK_UNITS;
    };
    // Early words come during the step before.
    gather_words<WORDS, MOST, ONCE>(
        early_slots<PROJECTOR>(block, sequence, request_of(round, column)),
        PROJECTOR ? step : max(step - 1, 0), come, put, late);
  }

  // ---- products with hidden states, where the kernel makes them ---------------------------------

  // Asks for the hidden states of a step of a request, once the crew is through with those in their
  // place.
  __device__ __forceinline__ void ask_hidden(int step, int column) const {
    if (step >= block.args.num_steps || crew.lane() != 0) return;
    constexpr u32 BYTES = 2 * plan::HIDDEN_STORAGE;
    const int request = min(column, block.args.num_requests - 1);  // an absent one gets another's
    const long long first =
        request * block.args.hidden_request_stride + step * block.args.hidden_step_stride;
    const int place = step % plan::HIDDEN_PLACES;
    Barrier* landed = &block.shared.hidden_landed[place][column];
    barrier_arrive_expect(landed, BYTES);
    bulk_copy(block.shared.hidden[place][column], block.args.hidden + 2 * first, BYTES, landed);
  }

  // Multiplies them with this block's rows: parts of its sums. A sum of one row a unit is the same
  // warp's that publishes it, if the crew does.
  __device__ __forceinline__ void make_part(int step, int column) const {
    constexpr bool PROJECTOR = HEAD == Head::DOMINO;
    constexpr int EACH = PROJECTOR ? plan::BLOCK_PROJECTIONS : plan::BLOCK_UNITS;
    constexpr int ALL = PROJECTOR ? plan::PROJECTOR_ROWS : plan::UNITS;
    if (step >= block.args.num_steps) return;
    const int lane = lane_index(), first = static_cast<int>(blockIdx.x) * EACH;
    const int place = step % plan::HIDDEN_PLACES;
    barrier_wait(&block.shared.hidden_landed[place][column], step / plan::HIDDEN_PLACES & 1);
#pragma unroll 1
    for (int own = crew.member; own < plan::HIDDEN_ROWS; own += Crew::MEMBERS) {
      const int unit = first + own % EACH, row = own / EACH * ALL + unit;
      if (unit >= ALL) continue;
      float bias = 0.0f, sum[1];
      if (block.args.hidden_bias != nullptr)
        bias = bf16_value(load_global_2(block.args.hidden_bias + 2 * row));
      lane_products<1, plan::HIDDEN_STORAGE>(block.shared.hidden_weight[own], 0,
                                             block.shared.hidden[place][column], lane, sum);
      const float part = block.args.hidden_bias != nullptr ? __fadd_rn(sum[0], bias) : sum[0];
      if (lane == 0) {
        block.shared.own_part[part_slot(step)][column][own] = part;
        if (column < block.args.num_requests)  // for whoever asks what was added
          block.args.hidden_part[(column * block.args.num_steps + step) * plan::PART + row] = part;
      }
    }
    __syncwarp();
  }

  // ---- states -----------------------------------------------------------------------------------

  // Before the first step a state is zeros.
  __device__ __forceinline__ void begin_state(int request) const {
    if constexpr (STATEFUL)
      for (int i = crew.lane(); i < plan::STATE; i += Crew::LANES)
        block.shared.state[request][i] = 0;
  }

  // The state that a token leaves, from its input row and the early sums (Domino).
  __device__ __forceinline__ void take_in(int round, int column, int token) const {
    take_in_token<Crew::LANES>(block.table_row(token),
                               reinterpret_cast<const u64*>(block.shared.early[column]),
                               block.shared.state[request_of(round, column)], crew.lane());
  }
};

// Their barriers are behind those of warpgroups and of teams.
constexpr int CREW_BARRIER = plan::SWEEP_WARPS / 4 + 1 + plan::SERVICE_WARPS;

// Before the first sweep: steps whose sums are made then, a gated head's need nothing of the step
// before; and whose parts are. Those that follow are made behind or before sweeps.
constexpr int FIRST_SUMS = HEAD == Head::GATED ? 2 : 1;
constexpr int FIRST_PARTS = HEAD == Head::GATED ? 2 : HEAD == Head::RNN ? 3 : 1;

// When the kernel begins: the first hidden states, as many as there are places for. By one warp.
__device__ __forceinline__ void ask_first_hidden(const Block& block) {
  if constexpr (plan::HIDDEN_INSIDE) {
    const InnerWork<Crew<1>> work{block, {0, 0}};
#pragma unroll 1
    for (int step = 0; step < plan::HIDDEN_PLACES; ++step)
      each_column([&](int column) { work.ask_hidden(step, column); });
  }
}

// By all service warps, who have little else to do while weights come.
__device__ __forceinline__ void begin_inner_work(const Block& block, int member) {
  using Servants = Crew<plan::SERVICE_WARPS>;
  const InnerWork<Servants> work{block, {member, CREW_BARRIER + 1}};
  each_column([&](int column) { work.begin_state(column); });
  barrier_wait(&block.shared.state_landed, 0);
  work.crew.sync();
#pragma unroll 1
  for (int step = 0; step < FIRST_PARTS; ++step) {
    if constexpr (plan::HIDDEN_INSIDE) {
      each_column([&](int column) { work.make_part(step, column); });
      work.crew.sync();
      each_column([&](int column) { work.ask_hidden(step + plan::HIDDEN_PLACES, column); });
    }
    if (step < min(FIRST_SUMS, block.args.num_steps))
      each_column([&](int column) { work.publish_early(step, column); });
  }
  each_column([&](int column) { work.template gather<false>(0, column); });
  work.crew.sync();
}

using Sweepers = Crew<plan::SWEEP_WARPS>;
using SweepersWork = InnerWork<Sweepers>;

__device__ __forceinline__ SweepersWork sweepers_work(const Block& block) {
  return {block, {warp_index(), CREW_BARRIER}};
}

// Behind the sweep of a step: all blocks' sums of the next one, and parts of sums to come. A gated
// head's sums are its parts, and published at once. An RNN's parts are wanted late: when the
// latents of step s + 2 are sent, the service warps add parts of s + 3.
//   - They have seen the candidates of s + 1 by then, which each sweeping warp offers behind its
//     parts.
//   - The slot held parts of s - 1. Those were read before the latents of s - 1 came, which have
//     been swept.
//   - All warps have read the hidden states before others come in their place.
__device__ __forceinline__ void work_behind_sweep(const Block& block, int step) {
  if (step + 1 >= block.args.num_steps) return;
  const SweepersWork work = sweepers_work(block);
  each_column([&](int column) { work.template gather<false>(step + 1, column); });
  if constexpr (!SWEEPERS_TAKE_IN) warp_arrive(&block.shared.sums_gathered);
  // A Domino head's parts of the next step are there (work_before_sweep).
  constexpr int MADE = HEAD == Head::DOMINO ? 1 : FIRST_PARTS;
  if constexpr (plan::HIDDEN_INSIDE && HEAD != Head::DOMINO)
    each_column([&](int column) { work.make_part(step + MADE, column); });
  if (HEAD == Head::GATED && step + FIRST_SUMS < block.args.num_steps)
    each_column([&](int column) { work.publish_early(step + FIRST_SUMS, column); });
  if constexpr (plan::HIDDEN_INSIDE || SWEEPERS_TAKE_IN) work.crew.sync();
  if constexpr (plan::HIDDEN_INSIDE)
    each_column([&](int column) { work.ask_hidden(step + MADE + plan::HIDDEN_PLACES, column); });
}

// Before the sweep of a step (Domino): the token is taken in, for its latent and for the step to
// come. The parts of that one's projections are made last, by the warps that add them, who then
// wait for a latent anyway.
__device__ __forceinline__ void work_before_sweep(const Block& block, int step) {
  const SweepersWork work = sweepers_work(block);
  barrier_wait(&block.shared.token_known, static_cast<u32>(step) & 1u);
  each_column([&](int column) { work.take_in(step, column, block.shared.inner_token[column]); });
  work.crew.sync();
  if (step > 0) {  // the first has no latent
    each_column([&](int column) { work.publish_projections(step, column); });
    warp_arrive(&block.shared.sums_published);
  }
  if (step + 1 >= block.args.num_steps) return;
  each_column([&](int column) { work.publish_early(step + 1, column); });
  if constexpr (plan::HIDDEN_INSIDE)
    each_column([&](int column) { work.make_part(step + 1, column); });
}

// What a service warp waits for before it makes a latent: that the sums are there, or, of a Domino
// head, that this block has published its own, and then a little: asking in vain is in the words'
// way.
__device__ __forceinline__ void await_sums(const Block& block, int step) {
  if (step == 0) return;  // there since begin_inner_work
  const u32 parity = static_cast<u32>(step - 1) & 1u;
  if constexpr (SWEEPERS_TAKE_IN) {
    barrier_wait(&block.shared.sums_published, parity);
    wait_before_polling();
  } else {
    barrier_wait(&block.shared.sums_gathered, parity);
  }
}

}  // namespace wts
