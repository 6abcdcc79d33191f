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

// A latent on its way from the table to the sweeping warps, in registers of one warp.
struct LatentInFlight {
  static constexpr int PIECES = (2 * plan::RANK + 511) / 512;
  u32 piece[PIECES][4];
  u32 scale;

  __device__ __forceinline__ void load(const Byte* table_row) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
      if ((i * 32 + lane) * 16 < 2 * plan::RANK)
        load_global_16(piece[i], table_row + (i * 32 + lane) * 16);
    scale = load_global_4(table_row + 2 * plan::RANK);
  }

  __device__ __forceinline__ void store(Shared& shared, int group, int column) const {
    const int lane = lane_index();
    const u32 target = shared_address(shared.latent[group][column]);
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
      if ((i * 32 + lane) * 16 < 2 * plan::RANK)
        store_shared_16(target + (i * 32 + lane) * 16, piece[i]);
    if (lane == 0) shared.latent_scale[group][column] = __uint_as_float(scale);
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.latents_ready[group]);
  }
};

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
    if (request >= args.num_requests) return 0;
    const long long first = request * args.base_request_stride + step * args.base_step_stride +
                            static_cast<long long>(blockIdx.x) * plan::ROWS;
    const u32 misaligned = base_misalignment(args, request, step);
    const Byte* source = args.base + first * BASE_BYTES - misaligned;
    Byte* line = shared.base[slot][column];
    const u32 wanted = misaligned + rows_here * BASE_BYTES;
    const bool whole = rows_here == plan::ROWS;
    const u32 bytes = whole ? (wanted + 15u) & ~15u : wanted & ~15u;
    if (lane == 0 && bytes > 0) {
      barrier_expect(&shared.base_landed[slot], bytes);
      bulk_copy(line, source, bytes, &shared.base_landed[slot]);
    }
    if (whole) return 0;
    const u32 offset = bytes + lane * BASE_BYTES;
    if (offset >= wanted) return NEGATIVE_INFINITY_BITS;
    return BASE_BYTES == 4 ? load_global_4(source + offset) : load_global_2(source + offset);
  }

  // Completes what begin_base left, and counts this column as staged.
  __device__ __forceinline__ void finish_base(int slot, int step, int group, u32 carried) const {
    const int lane = lane_index();
    const int column = this->column();
    const int rows_here = this->rows_here();
    const int request = this->request(group);
    if (rows_here != plan::ROWS && request < args.num_requests) {
      const u32 bytes =
          (base_misalignment(args, request, step) + rows_here * BASE_BYTES) & ~15u;
      const u32 offset = bytes + lane * BASE_BYTES;
      if (offset + BASE_BYTES <= plan::BASE_LINE_BYTES)
        store_base(shared.base[slot][column] + offset, carried);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.base_landed[slot]);
  }

  __device__ __forceinline__ int target_of(int token) const {
    return args.draft_to_target != nullptr ? __ldg(args.draft_to_target + token) : token;
  }

  __device__ __forceinline__ const Byte* table_row(int token) const {
    return args.table + static_cast<long long>(token) * plan::TABLE_ROW_BYTES;
  }

  // The anchor is the caller's: outside the table it is clamped, and counted once per request.
  __device__ __forceinline__ void send_anchor(int group) const {
    const int lane = lane_index();
    const int column = this->column();
    const int request = this->request(group);
    long long anchor = request < args.num_requests ? args.anchor[request * args.anchor_stride] : 0;
    const long long clamped = min(max(anchor, 0ll), static_cast<long long>(plan::TABLE_ROWS - 1));
    if (anchor != clamped && blockIdx.x == 0 && lane == 0)
      atomicAdd(&args.status->clamped_anchors, 1u);
    LatentInFlight latent;
    latent.load(table_row(static_cast<int>(clamped)));
    latent.store(shared, group, column);
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

  // Whether the exchange that began 256 polls or more ago has lasted too long.
  __device__ __forceinline__ bool out_of_time(u32 poll) const {
    volatile u64& deadline = shared.deadline[column()];
    if (poll == 256 && lane_index() == 0) deadline = global_timer() + 1000ull * args.timeout_us;
    __syncwarp();
    return __any_sync(0xffffffffu, global_timer() > deadline);
  }

  // Waits for all blocks' words, settles the token and, unless the walk ends, sends its latent.
  __device__ __forceinline__ void conclude(int group, int step, u32 sequence) const {
    const int request = this->request(group);
    const u32 tag = exchange_tag(sequence);
    const ExchangeWord* slots = exchange_slots(args.slots, sequence, request);
    Gathered gathered;
    // A poll that comes too early costs a whole round trip more than one a little late.
    const u32 published = clock_low();
    while (clock_low() - published < plan::FIRST_POLL_CYCLES) {
    }
    for (u32 poll = 1;; ++poll) {
      gathered.request(slots, tag);
      if (gathered.settle(tag)) break;
      if (*reinterpret_cast<volatile int*>(&shared.abandoned)) break;
      // The clock is read rarely: it is not on the path of a good walk.
      if ((poll & 255u) == 0 && out_of_time(poll))
        report_timeout(args.status, &shared.abandoned, gathered.first_missing(tag), step);
    }
    mark(args, step, DECODED);
    const int target = target_of(gathered.token);
    if (step + 1 < args.num_steps) {
      LatentInFlight latent;
      latent.load(table_row(target));
      latent.store(shared, group, column());
      mark(args, step, LATENT_SENT);
    }
    if (blockIdx.x == 0 && lane_index() == 0 && request < args.num_requests)
      args.tokens[static_cast<long long>(request) * args.num_steps + step] = target;
  }
};

// A round is one (step, group); all that depends on it is recomputed rather than carried, because a
// service warp has few registers.
__device__ __forceinline__ int round_step(int round) { return round / plan::GROUPS; }
__device__ __forceinline__ int round_group(int round) { return round % plan::GROUPS; }
__device__ __forceinline__ int round_slot(int round) { return round % plan::BASE_SLOTS; }

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
      self.finish_base(round_slot(begun), round_step(begun), round_group(begun), carried);
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
  if (blockIdx.x == 0 && threadIdx.x == plan::SWEEP_WARPS * 32)
    args.status->sequence = sequence_of(args.num_steps);
}

}  // namespace wts
