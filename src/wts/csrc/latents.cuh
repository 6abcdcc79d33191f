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

  // What the hidden states add to a step's inner sums. An absent request gets another's.
  __device__ __forceinline__ const float* hidden_part(int round, int column) const {
    const int request = min(this->request(round_group(round), column), args.num_requests - 1);
    return args.hidden_part + (static_cast<long long>(request) * args.num_steps +
                               round_step(round)) * plan::PART;
  }

  // ---- products with states ----------------------------------------------------------------------

  // Each block multiplies a state with its own rows of a matrix and publishes the sums; all gather all
  // sums. Products of the next step are published as soon as there is the state, so that they are
  // under way while the step is swept; the projector's (Domino) are waited for at once. A word is
  // a sum and the number of its exchange; slots alternate. A block that publishes for step s + 2 has
  // seen every block's candidates of step s, and those came after the words for s had been read.
  template <bool PROJECTOR>
  __device__ __forceinline__ u64* product_slots(int step, int request) const {
    constexpr int ROWS = PROJECTOR ? plan::PROJECTOR_ROWS : plan::PRODUCT_ROWS;
    const int line = static_cast<int>(sequence_of(step) & 1u) * plan::STATES + request;
    u64* first = args.state_slots + (PROJECTOR ? 2ll * plan::STATES * plan::PRODUCT_ROWS : 0ll);
    return first + static_cast<long long>(line) * ROWS;
  }

  // Publishes this block's products with a request's state, for the step of a round.
  template <bool PROJECTOR>
  __device__ __forceinline__ void publish_products(int round, int column) const {
    constexpr int ROWS = PROJECTOR ? plan::PROJECTOR_ROWS : plan::PRODUCT_ROWS;
    constexpr int EACH = PROJECTOR ? plan::BLOCK_PROJECTIONS : plan::BLOCK_PRODUCTS;
    const int lane = lane_index(), step = round_step(round);
    const int request = this->request(round_group(round), column);
    const int first = static_cast<int>(blockIdx.x) * EACH;
    const u16* weight = PROJECTOR ? shared.projector_weight[0] : shared.state_weight[0];
    u64* slots = product_slots<PROJECTOR>(step, request);
#pragma unroll 1
    for (int i = member(); i < EACH && first + i < ROWS; i += TEAM) {
      const float sum = state_product(weight + i * plan::STATE, shared.state[request], lane);
      if (lane == i % 32)
        store_relaxed(slots + first + i,
                      static_cast<u64>(__float_as_uint(sum)) << 32 | sequence_of(step));
    }
  }

  // Puts all blocks' products with a request's state where its latent is made of them; by the members
  // of the team from FIRST on, who then have to wait for each other.
  template <bool PROJECTOR, int FIRST>
  __device__ __forceinline__ void gather_products(int round, int column) const {
    constexpr int ROWS = PROJECTOR ? plan::PROJECTOR_ROWS : plan::PRODUCT_ROWS;
    constexpr int EACH = PROJECTOR ? plan::BLOCK_PROJECTIONS : plan::BLOCK_PRODUCTS;
    constexpr int AT_ONCE = 8, LANES = TEAM_LANES - 32 * FIRST;  // words of a lane
    const int step = round_step(round);
    const u64* slots = product_slots<PROJECTOR>(step, request(round_group(round), column));
    const u32 tag = sequence_of(step);
    float* gathered = PROJECTOR ? shared.projections[column] : shared.products[column];
#pragma unroll 1
    for (int start = (member() - FIRST) * 32; start < ROWS; start += LANES * AT_ONCE) {
      const int first = start + lane_index();
      for (u32 poll = 1;; ++poll) {
        u64 words[AT_ONCE];
        int missing = ROWS;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const int row = first + LANES * i;
          words[i] = row < ROWS ? load_relaxed(slots + row) : tag;
        }
#pragma unroll
        for (int i = AT_ONCE - 1; i >= 0; --i) {
          const int row = first + LANES * i;
          if (static_cast<u32>(words[i]) != tag) missing = row;
          if (row < ROWS) gathered[row] = __uint_as_float(static_cast<u32>(words[i] >> 32));
        }
        if (!__any_sync(0xffffffffu, missing < ROWS)) break;
        if ((poll & 15u) == 0 && __any_sync(0xffffffffu, abandoned())) break;
        if ((poll & 255u) == 0 && out_of_time(poll)) {
          const u32 nearest = warp_max_unsigned(static_cast<u32>(ROWS - missing));
          const int row = ROWS - static_cast<int>(nearest);
          report_timeout(args.status, &shared.abandoned, row / EACH, step);
        }
      }
    }
  }

  // The same for all columns of this warp. One group has time for it while it is swept and exchanged, and
  // the leader of a team has other things to do; of several groups each gathers when it makes its
  // latents.
  static constexpr bool GATHERS_AHEAD = STATEFUL && plan::GROUPS == 1;
  __device__ __forceinline__ void gather_ahead(int round) const {
    if constexpr (GATHERS_AHEAD) {
      constexpr int FIRST = TEAM > 1 ? 1 : 0;
      if (round_step(round) >= args.num_steps || member() < FIRST) return;
#pragma unroll 1
      for (int served = 0; served < SERVED; ++served)
        gather_products<false, FIRST>(round, column(served));
      __syncwarp();
    }
  }

  // Before the first step a state is zeros.
  __device__ __forceinline__ void begin_states() const {
    if constexpr (STATEFUL) {
      barrier_wait(&shared.state_landed, 0);
#pragma unroll 1
      for (int use = 0; use < plan::GROUPS * SERVED; ++use) {
        const int group = use / SERVED, column = this->column(use % SERVED);
        u16* state = shared.state[request(group, column)];
        for (int i = team_lane(); i < plan::STATE; i += TEAM_LANES) state[i] = 0;
        team_sync();
        publish_products<false>(group, column);
      }
    }
  }

  // ---- latent functions --------------------------------------------------------------------------

  // The latent of a head that reads hidden states.
  __device__ __forceinline__ void make_latent(int round, int column, int token) const {
    const int lane = team_lane();
    const Byte* row = table_row(token);
    const float* part = hidden_part(round, column);
    u16* state = shared.state[STATEFUL ? request(round_group(round), column) : 0];
    if constexpr (STATEFUL)
      if (!GATHERS_AHEAD || round_step(round) == 0) {
        gather_products<false, 0>(round, column);
        team_sync();
      }
    if constexpr (HEAD == Head::DOMINO) {
      take_in_token(row, shared.products[column], state, lane);
      team_sync();
      if (round_step(round) > 0) {  // the first token is base logits' alone
        publish_products<true>(round, column);
        gather_products<true, 0>(round, column);
        team_sync();
      }
    }
    float latent[RUNS][RUN];
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      const int start = run_start(run, lane);
#pragma unroll
      for (int i = 0; i < RUN; ++i) latent[run][i] = 0.0f;
      if (!run_exists(run, lane)) continue;
      if constexpr (HEAD == Head::GATED) gated_run(row, part, start, latent[run]);
      if constexpr (HEAD == Head::RNN)
        rnn_run(row, part, shared.products[column], start, state, latent[run]);
      if constexpr (HEAD == Head::DOMINO)
        if (round_step(round) > 0)
          projected_run(part, shared.projections[column], start, latent[run]);
    }
    store_latent(latent, latent_slot(round), column);
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
    if constexpr (STATEFUL) {
      if (round_step(round) + 1 >= args.num_steps) return;
#pragma unroll 1
      for (int served = 0; served < SERVED; ++served)
        publish_products<false>(round + plan::GROUPS, column(served));
    }
  }
};

}  // namespace wts
