// The service warps: warp b serves the requests of column b in every group. It stages base logits,
// publishes the block's best row, waits for the others', and fetches the next latent.
#pragma once
#include "sweep.cuh"

namespace wts {

constexpr int NEGATIVE_INFINITY_BITS = BASE_TYPE == Number::FP32   ? 0xff800000
                                       : BASE_TYPE == Number::BF16 ? 0xff80
                                                                   : 0xfc00;

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

// Random words are drawn by the service warps that have no column, or else by the column's own.
constexpr int NOISE_WARPS = plan::SAMPLED ? plan::SERVICE_WARPS - plan::COLUMNS : 0;
constexpr int NOISE_WARPS_PER_COLUMN = NOISE_WARPS > 0 ? NOISE_WARPS / plan::COLUMNS : 1;

// Draws one warp's part of the shard's random words for one row and step of the batch. The counter
// names the token, the row, the step and the walk, so that no other part of the batch matters. Not
// inlined: its registers are not the exchange's. Three at a time hide the latency of the rounds.
__device__ __noinline__ void draw_noise(u32* words, int part, u32 row, u32 step, u32 offset,
                                        u64 key) {
  constexpr int QUADS = plan::ROWS / 4, STRIDE = 32 * NOISE_WARPS_PER_COLUMN;
#pragma unroll 3
  for (int quad = 32 * part + lane_index(); quad < QUADS; quad += STRIDE) {
    const Words4 drawn = philox(blockIdx.x * QUADS + quad, row, step, offset,
                                static_cast<u32>(key), static_cast<u32>(key >> 32));
    store_shared_16(shared_address(words + 4 * quad), drawn.word);
  }
}

__device__ __forceinline__ void draw_column(const WalkArgs& args, Shared& shared, int column,
                                            int part, int slot, int step, int group) {
  if (shared.temperature[group][column] > 0.0f)
    draw_noise(shared.noise[slot][column], part, static_cast<u32>(group * plan::COLUMNS + column),
               static_cast<u32>(step), shared.noise_offset, args.noise_key);
}

struct ServiceWarp {
  const WalkArgs& args;
  Shared& shared;

  // Few registers: what is cheap to work out again is not kept.
  __device__ __forceinline__ int column() const { return warp_index() - plan::SWEEP_WARPS; }
  __device__ __forceinline__ int request(int group) const {
    return group * plan::COLUMNS + column();
  }
  // Rows of the shard inside the vocabulary.
  __device__ __forceinline__ int rows_here() const {
    return min(plan::ROWS, max(0, plan::VOCAB - static_cast<int>(blockIdx.x) * plan::ROWS));
  }

  // Where the vocabulary ends inside the shard, its padding rows must lose before any copy lands.
  __device__ __forceinline__ void fill_padding() const {
    if (rows_here() == plan::ROWS) return;
    for (int slot = 0; slot < plan::BASE_SLOTS; ++slot) {
      Byte* line = shared.base[slot][column()];
      for (int at = lane_index() * BASE_BYTES; at < plan::BASE_LINE_BYTES; at += 32 * BASE_BYTES)
        store_base(line + at, NEGATIVE_INFINITY_BITS);
    }
    fence_async_proxy();
    __syncwarp();
  }

  __device__ __forceinline__ static void store_base(Byte* pointer, u32 bits) {
    if constexpr (BASE_BYTES == 4) {
      *reinterpret_cast<u32*>(pointer) = bits;
    } else {
      *reinterpret_cast<u16*>(pointer) = static_cast<u16>(bits);
    }
  }

  // Asks for the shard's base logits of (step, request). Whole 16-byte pieces inside the vocabulary
  // come by one bulk copy; where the vocabulary ends inside the shard, the lanes carry the rest in
  // a register until finish_base, padded with -inf so that no padding row wins.
  __device__ __forceinline__ u32 begin_base(int slot, int step, int group) const {
    const int lane = lane_index();
    const int column = this->column();
    const int rows_here = this->rows_here();
    const int request = this->request(group);
    if (request >= args.num_requests) {
      if (lane == 0) barrier_arrive(&shared.base_copied[slot][column]);
      return 0;
    }
    const long long first = request * args.base_request_stride + step * args.base_step_stride +
                            static_cast<long long>(blockIdx.x) * plan::ROWS;
    const u32 misaligned = base_misalignment(args, request, step);
    const Byte* source = args.base + first * BASE_BYTES - misaligned;
    Byte* line = shared.base[slot][column];
    const u32 wanted = misaligned + rows_here * BASE_BYTES;
    const bool whole = rows_here == plan::ROWS;
    const u32 bytes = whole ? (wanted + 15u) & ~15u : wanted & ~15u;
    if (lane == 0) {  // sweeping warps wait for the copy, or for its shift
      Barrier* copied = (misaligned & 3u) == 0 ? &shared.base_landed[slot]
                                               : &shared.base_copied[slot][column];
      if (bytes > 0) {
        barrier_expect(copied, bytes);
        bulk_copy(line, source, bytes, copied);
      }
      barrier_arrive(&shared.base_copied[slot][column]);
    }
    if (whole) return 0;
    const u32 offset = bytes + lane * BASE_BYTES;
    if (offset >= wanted) return NEGATIVE_INFINITY_BITS;
    return BASE_BYTES == 4 ? load_global_4(source + offset) : load_global_2(source + offset);
  }

  // Completes what begin_base left, and counts this column as staged.
  __device__ __forceinline__ void finish_base(int slot, int step, int group, u32 carried,
                                              u32 parity) const {
    const int column = this->column();
    if constexpr (plan::SAMPLED && NOISE_WARPS == 0)
      draw_column(args, shared, column, 0, slot, step, group);
    if (request(group) < args.num_requests) {
      Byte* line = shared.base[slot][column];
      const u32 misaligned = base_misalignment(args, request(group), step);
      if (rows_here() != plan::ROWS) {
        const u32 bytes = (misaligned + rows_here() * BASE_BYTES) & ~15u;
        const u32 offset = bytes + lane_index() * BASE_BYTES;
        if (offset + BASE_BYTES <= plan::BASE_LINE_BYTES) store_base(line + offset, carried);
        fence_async_proxy();  // a later bulk copy may cover these bytes
      }
      if ((misaligned & 3u) != 0) {
        barrier_wait(&shared.base_copied[slot][column], parity);
        shift_line(line);
      }
    }
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared.base_landed[slot]);
  }

  // Moves a line of two-byte elements one element down, words of two at a time.
  __device__ __noinline__ static void shift_line(Byte* line) {
    u32* words = reinterpret_cast<u32*>(line);
    constexpr int WORDS = plan::BASE_LINE_BYTES / 4 - 1;
    __syncwarp();
    for (int first = 0; first < WORDS; first += 32) {
      const int at = first + lane_index();
      const u32 moved = at < WORDS ? __funnelshift_r(words[at], words[at + 1], 16) : 0u;
      __syncwarp();
      if (at < WORDS) words[at] = moved;
      __syncwarp();
    }
    fence_async_proxy();
  }

  __device__ __forceinline__ int target_of(int token) const {
    if constexpr (plan::MAPPED) return __ldg(args.draft_to_target + token);
    return token;
  }

  __device__ __forceinline__ const Byte* table_row(int token) const {
    return args.table + static_cast<long long>(token) * plan::TABLE_ROW_BYTES;
  }

  // Copies a table row to where the sweeping warps read it, and says so.
  __device__ __forceinline__ void send_latent(int group, int token) const {
    constexpr int PIECES = (plan::TABLE_ROW_BYTES + 511) / 512;
    const Byte* source = table_row(token);
    const u32 line = shared_address(shared.latent[group][column()]);
    u32 piece[PIECES][4];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int at = (i * 32 + lane_index()) * 16;
      if (at < plan::TABLE_ROW_BYTES) load_global_16(piece[i], source + at);
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int at = (i * 32 + lane_index()) * 16;
      if (at < plan::TABLE_ROW_BYTES) store_shared_16(line + at, piece[i]);
    }
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared.latents_ready[group]);
  }

  // The anchor is the caller's: outside the table it is clamped, and counted once per request.
  __device__ __forceinline__ void send_anchor(int group) const {
    const int lane = lane_index();
    const int request = this->request(group);
    long long anchor = request < args.num_requests ? args.anchor[request * args.anchor_stride] : 0;
    const long long clamped = min(max(anchor, 0ll), static_cast<long long>(plan::TABLE_ROWS - 1));
    if (anchor != clamped && blockIdx.x == 0 && lane == 0)
      atomicAdd(&args.status->clamped_anchors, 1u);
    send_latent(group, static_cast<int>(clamped));
  }

  // The block's best row of this step, published as soon as the sweeping warps have offered theirs.
  // Its table row is asked into L2 at once: the winner is one of these.
  __device__ __forceinline__ void publish(int group, int step, u32 sequence) const {
    const int lane = lane_index(), column = this->column();
    const u32 tag = exchange_tag(sequence);
    ExchangeWord* slots = exchange_slots(args.slots, sequence, request(group));
    ExchangeWord* slot = slots + blockIdx.x;
    barrier_wait(&shared.candidates_ready[group], step & 1);
    mark(args, step, GATHERED);
    Best best;
    if (lane < plan::SWEEP_WARPS) {
      best.key = shared.candidate_key[group][column][lane];
      if constexpr (plan::WIDE) best.row = shared.candidate_row[group][column][lane];
    }
    best = warp_best(best);
    const ExchangeWord word = pack_word(best, tag);
    if (lane == 0) store_relaxed(slot, word);
    mark(args, step, PUBLISHED);
    if (lane == 0 && step + 1 < args.num_steps) {
      const int token = static_cast<int>(blockIdx.x) * plan::ROWS + word_row(word);
      prefetch_l2(table_row(target_of(min(token, plan::VOCAB - 1))), plan::TABLE_ROW_BYTES);
    }
  }

  __device__ __forceinline__ bool abandoned() const {
    return *reinterpret_cast<volatile int*>(&shared.abandoned) != 0;
  }

  // Whether the exchange that began 256 polls or more ago has lasted too long.
  __device__ __forceinline__ bool out_of_time(u32 poll) const {
    volatile u64& deadline = shared.deadline[column()];
    if (poll == 256 && lane_index() == 0) deadline = global_timer() + 1000ull * args.timeout_us;
    __syncwarp();
    return __any_sync(0xffffffffu, global_timer() > deadline);
  }

  // Waits for all blocks' words, settles the token and, unless the walk ends, sends its latent.
  // (Fetching the latent of the best word so far while others are missing was slower: measured.md.)
  __device__ __forceinline__ void conclude(int group, int step, u32 sequence) const {
    const int request = this->request(group);
    const u32 tag = exchange_tag(sequence);
    const ExchangeWord* slots = exchange_slots(args.slots, sequence, request);
    // A poll that comes too early costs a whole round trip more than one a little late.
    const u32 published = clock_low();
    while (clock_low() - published < plan::FIRST_POLL_CYCLES) {
    }
    Gathered gathered;
    for (u32 poll = 1;; ++poll) {
      gathered.request(slots, tag);
      if (gathered.complete(tag)) break;
      // These are asked rarely, not on the path of a good walk, and by a vote, so that the lanes
      // leave together whenever another warp gives up.
      if ((poll & 15u) == 0 && __any_sync(0xffffffffu, abandoned())) break;
      if ((poll & 255u) == 0 && out_of_time(poll))
        report_timeout(args.status, &shared.abandoned, gathered.first_missing(tag), step);
    }
    const int target = target_of(gathered.winner());
    mark(args, step, DECODED);
    if (step + 1 < args.num_steps) {
      send_latent(group, target);
      mark(args, step, LATENT_SENT);
    }
    if (blockIdx.x == 0 && lane_index() == 0 && request < args.num_requests)
      args.tokens[static_cast<long long>(request) * args.num_steps + step] = target;
  }
};

__device__ __forceinline__ void service_role(const WalkArgs& args, Shared& shared) {
  const ServiceWarp self{args, shared};
  const int rounds = args.num_steps * plan::GROUPS;
  const auto sequence_of = [&](int step) {
    return *reinterpret_cast<volatile u32*>(&shared.sequence) + static_cast<u32>(step);
  };

  // Base logits are asked for BASE_SLOTS - 1 rounds ahead and completed one round later.
  u32 carried = 0;
  const auto stage = [&](int round) {
    const int begun = round - 1;
    if (begun >= 0 && begun < rounds)
      self.finish_base(round_slot(begun), round_step(begun), round_group(begun), carried,
                       round_slot_parity(begun));
    if (round < rounds)
      carried = self.begin_base(round_slot(round), round_step(round), round_group(round));
  };
  self.fill_padding();
#pragma unroll 1
  for (int round = 0; round < plan::BASE_SLOTS - 1; ++round) stage(round);
#pragma unroll 1
  for (int group = 0; group < plan::GROUPS; ++group) self.send_anchor(group);

#pragma unroll 1
  for (int round = 0; round < rounds + plan::EXCHANGE_LAG; ++round) {
    if (plan::EXCHANGE_LAG == 0 || round < rounds) {
      stage(round + plan::BASE_SLOTS - 1);
      const int step = round_step(round), group = round_group(round);
      self.publish(group, step, sequence_of(step));
    }
    if (plan::EXCHANGE_LAG == 0 || round >= plan::EXCHANGE_LAG) {
      const int late = round - plan::EXCHANGE_LAG;
      self.conclude(round_group(late), round_step(late), sequence_of(round_step(late)));
    }
  }
  // Block 0 ends after every block has published step 0, so all have read the old value.
  if (blockIdx.x == 0 && threadIdx.x == plan::SWEEP_WARPS * 32) {
    args.status->sequence = sequence_of(args.num_steps);
    if constexpr (plan::SAMPLED) *args.noise_offset += 1;
  }
}

// A service warp without a column draws noise, a full ring ahead. Its arrival at every step's
// latents keeps the sweep from running ahead of it, so that it never misses a phase of candidates.
__device__ __forceinline__ void noise_role(const WalkArgs& args, Shared& shared) {
  const int extra = warp_index() - plan::SWEEP_WARPS - plan::COLUMNS;
  const int rounds = args.num_steps * plan::GROUPS;
  const auto draw = [&](int round) {
    if (round >= rounds) return;
    draw_column(args, shared, extra % plan::COLUMNS, extra / plan::COLUMNS, round_slot(round),
                round_step(round), round_group(round));
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared.base_landed[round_slot(round)]);
  };
#pragma unroll 1
  for (int group = 0; group < plan::GROUPS; ++group)
    if (lane_index() == 0) barrier_arrive(&shared.latents_ready[group]);
#pragma unroll 1
  for (int round = 0; round < plan::BASE_SLOTS; ++round) draw(round);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    const int group = round_group(round);
    barrier_wait(&shared.candidates_ready[group], round_step(round) & 1);
    if (lane_index() == 0 && round_step(round) + 1 < args.num_steps)
      barrier_arrive(&shared.latents_ready[group]);
    draw(round + plan::BASE_SLOTS);
  }
}

}  // namespace wts
