// From the sums of a product to the candidates of a warp: step logits, scores, the best of them.
#pragma once
#include "noise.cuh"
#include "rounds.cuh"

namespace wts {

// ---- what a lane keeps of a round --------------------------------------------------------------

// Whether scores are precise, where that is known when the kernel is compiled; elsewhere a bool
// says so.
struct Precisely {
  __device__ constexpr operator bool() const { return true; }
};
struct Roughly {
  __device__ constexpr operator bool() const { return false; }
};

// The best rows a lane has seen of one request, where rows may be sampled: ordered scores,
// approximate ones of sampled rows. A row is named by its place among the lane's: 2 * accumulator +
// j.
struct Contest {
  int key = NEVER;
  int second = NEVER;
  int place = 0;
  float logit = 0.0f;

  // Places come in ascending order, so the first of equals has the lowest row.
  __device__ __forceinline__ void offer(int score_key, int score_place, float x) {
    second = max(second, min(key, score_key));
    if (score_key > key) {
      place = score_place;
      logit = x;
    }
    key = max(key, score_key);
  }
};

// By block of operand columns, so by request of this lane.
struct Offers {
  Best best[plan::SAMPLED ? 1 : plan::COLUMN_BLOCKS];
  Contest contest[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];
};

// Where the base logits of a lane's requests are staged.
struct Lines {
  u32 base[plan::COLUMN_BLOCKS];  // shared address of row 0's

  __device__ __forceinline__ Lines(const WalkArgs& args, const Shared& shared, int lane,
                                   int round) {
    const int group = round_group(round);
#pragma unroll
    for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
      const int column = lane_column(lane, block);
      const u32 misaligned =
          base_misalignment(args, group * plan::COLUMNS + column, round_step(round));
      base[block] =
          shared_address(shared.base[round_slot(round)][column]) + (misaligned & ~3u);
    }
  }
};

// Column pairs without a tile of an accumulator must not win.
__device__ __forceinline__ bool tile_present(int lane, int accumulator) {
  const int variants = min(SHARING, plan::WARP_TILES - accumulator * SHARING);
  return variants * BLOCK_REQUESTS == 4 || (lane & 3) < variants * BLOCK_REQUESTS;
}

// ---- sampled requests --------------------------------------------------------------------------

// What a lane knows of its sampled requests, by block; read before the latents are there.
struct Sampling {
  float inverse[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];  // factor of the score
  Byte* logits[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];   // of row 0, or null: not exported
  u32 sampled = 0;                                         // a bit for each block
  bool any = false;                                        // in this warp
  bool whole = false;  // step logits can be stored two at a time: even strides, no end inside

  __device__ __forceinline__ Sampling(const WalkArgs& args, const Shared& shared, int lane,
                                      int round) {
    if constexpr (plan::SAMPLED) {
      const int group = round_group(round);
#pragma unroll
      for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
        const int column = lane_column(lane, block), request = group * plan::COLUMNS + column;
        inverse[block] = shared.inverse_temperature[group][column];
        const bool here = shared.temperature[group][column] > 0.0f;
        if (here) sampled |= 1u << block;
        const long long first = request * args.logits_request_stride +
                                round_step(round) * args.logits_step_stride +
                                static_cast<long long>(blockIdx.x) * plan::ROWS;
        logits[block] = here && args.logits_out != nullptr && request < args.num_requests
                            ? args.logits_out + first * STEP_BYTES
                            : nullptr;
      }
      const u64 odd = reinterpret_cast<u64>(args.logits_out) / STEP_BYTES |
                      static_cast<u64>(args.logits_request_stride) |
                      static_cast<u64>(args.logits_step_stride);
      whole = (odd & 1) == 0 && (blockIdx.x + 1) * plan::ROWS <= plan::VOCAB;
      any = __any_sync(0xffffffffu, sampled != 0);
    }
  }

  __device__ __forceinline__ bool is_sampled(int block) const { return (sampled >> block) & 1u; }

  // Stores the step logits a sampled row is drawn from, for whoever verifies the draft: a pair of
  // rows where pairs can be stored, without a branch.
  __device__ __forceinline__ void export_pair(int block, int row, float x0, float x1) const {
    if (whole && logits[block] != nullptr)
      store_step_logits(logits[block] + row * STEP_BYTES, x0, x1);
  }

  // The same one by one.
  __device__ __forceinline__ void export_rows(int block, int row, float x0, float x1) const {
    const int rows = plan::VOCAB - static_cast<int>(blockIdx.x) * plan::ROWS;
    if (logits[block] == nullptr) return;
    if (row < rows) store_step_logit(logits[block] + row * STEP_BYTES, x0);
    if (row + 1 < rows) store_step_logit(logits[block] + (row + 1) * STEP_BYTES, x1);
  }
};

// ---- noise -------------------------------------------------------------------------------------

// The random words of the four consecutive tokens that a token belongs to.
__device__ __forceinline__ Words4 draw_words(const WalkArgs& args, const Shared& shared, u32 token,
                                             int group, int column, int step) {
  return philox(token >> 2, static_cast<u32>(group * plan::COLUMNS + column),
                static_cast<u32>(step), shared.noise_offset, static_cast<u32>(args.noise_key),
                static_cast<u32>(args.noise_key >> 32));
}

// Their noise, approximately, for a row of the shard; none for a greedy request.
__device__ __forceinline__ void draw_noise(const WalkArgs& args, const Shared& shared, int row,
                                           int round, int column, bool sampled,
                                           float (&noise)[4]) {
  const Words4 drawn = draw_words(args, shared, blockIdx.x * plan::ROWS + row,
                                  round_group(round), column, round_step(round));
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // not in a branch: four at once
    const float approximate = approximate_noise(drawn.word[i]);
    noise[i] = sampled ? approximate : 0.0f;
  }
}

// Where a thread parks the first of an accumulator's two numbers.
__device__ __forceinline__ int noise_place(int accumulator, int block) {
  return 2 * (accumulator * plan::COLUMN_BLOCKS + block);
}

// The noise of all rows of a warp, while the latents are not known.
__device__ __forceinline__ void park_noise(const WalkArgs& args, Shared& shared,
                                           const Sampling& sampling, int warp, int lane,
                                           int round) {
  const LaneRows rows(warp, lane);
  const int thread = threadIdx.x;
  constexpr int STEP = SHARING == 1 ? 2 : 1;  // accumulators that four tokens belong to
  // Code has a price, too.
  constexpr int UNROLLED = !plan::WARPGROUPS && ACCUMULATORS <= 12 ? ACCUMULATORS : 1;
#pragma unroll UNROLLED
  for (int accumulator = 0; accumulator < ACCUMULATORS; accumulator += STEP) {
    const int row = rows.row(accumulator);
#pragma unroll
    for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
      float noise[4];
      draw_noise(args, shared, row, round, lane_column(lane, block), sampling.is_sampled(block),
                 noise);
      const int at = noise_place(accumulator, block);
      const bool whole = SHARING == 1 && accumulator + 1 < ACCUMULATORS;
      const bool second = !whole && (row & 2);  // half of the tokens are another tile's
      shared.noise[at][thread] = second ? noise[2] : noise[0];
      shared.noise[at + 1][thread] = second ? noise[3] : noise[1];
      if (whole) {
        shared.noise[noise_place(accumulator + 1, block)][thread] = noise[2];
        shared.noise[noise_place(accumulator + 1, block) + 1][thread] = noise[3];
      }
    }
  }
}

// ---- step logits and scores --------------------------------------------------------------------

// What is judged at once: some accumulators, and all blocks of columns of each.
struct Judged {
  int first;
  __device__ __forceinline__ int accumulator(int i) const {
    return first + i / plan::COLUMN_BLOCKS;
  }
  __device__ __forceinline__ int block(int i) const { return i % plan::COLUMN_BLOCKS; }
  __device__ __forceinline__ bool exists(int i) const {
    return accumulator(i) < (first < LONE_ACCUMULATORS ? LONE_ACCUMULATORS : ACCUMULATORS);
  }
};

// Where approximations were too close: precise scores of the rows that may win, approximate ones of
// the others. Rolled, through shared memory, because it is rare.
template <int COUNT>
__device__ __forceinline__ void score_precisely(const WalkArgs& args, Shared& shared,
                                              const Judged& judged, const LaneRows& rows,
                                              int lane, int round,
                                              const float (&logits)[COUNT][2],
                                              const float (&limit)[plan::COLUMN_BLOCKS],
                                              float (&scores)[COUNT][2]) {
  const int thread = threadIdx.x, group = round_group(round);
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) shared.logits[2 * i + j][thread] = logits[i][j];
#pragma unroll 1
  for (int i = 0; i < 2 * COUNT; ++i) {
    if (!judged.exists(i >> 1)) continue;
    const int block = judged.block(i >> 1), column = lane_column(lane, block);
    const int row = rows.row(judged.accumulator(i >> 1)) + (i & 1);
    const float x = shared.logits[i][thread], temperature = shared.temperature[group][column];
    float least = limit[0];
#pragma unroll
    for (int j = 1; j < plan::COLUMN_BLOCKS; ++j) least = j == block ? limit[j] : least;
    float score = fused(x, 1.0f, 0.0f);
    if (temperature > 0.0f && x != minus_infinity()) {
      const u32 word = word_of(draw_words(args, shared, blockIdx.x * plan::ROWS + row, group,
                                          column, round_step(round)),
                               row);
      score = fused(x, shared.inverse_temperature[group][column], approximate_noise(word));
      if (!(score < least)) score = __fadd_rn(sampled_score(x, temperature, word), 0.0f);
    }
    shared.logits[i][thread] = score;
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) scores[i][j] = shared.logits[2 * i + j][thread];
}

// The approximate noise of what is judged at once: parked, or drawn now.
template <int COUNT>
__device__ __forceinline__ void find_noise(const WalkArgs& args, const Shared& shared,
                                           const Sampling& sampling, const LaneRows& rows, int lane,
                                           int round, const Judged& judged,
                                           float (&noise)[COUNT][2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) noise[i][0] = noise[i][1] = 0.0f;
  if (!sampling.any) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int accumulator = judged.accumulator(i), block = judged.block(i);
    if (!judged.exists(i)) continue;
    if constexpr (plan::NOISE_AHEAD) {
      noise[i][0] = shared.noise[noise_place(accumulator, block)][threadIdx.x];
      noise[i][1] = shared.noise[noise_place(accumulator, block) + 1][threadIdx.x];
    } else if (accumulator % 2 == 0) {  // and of the tile after it, which is judged with it
      const int row = rows.row(accumulator);
      float drawn[4];
      draw_noise(args, shared, row, round, lane_column(lane, block), sampling.is_sampled(block),
                 drawn);
      const bool half = accumulator == WHOLE_TILES && (row & 2);
      noise[i][0] = half ? drawn[2] : drawn[0];
      noise[i][1] = half ? drawn[3] : drawn[1];
      const int next = i + plan::COLUMN_BLOCKS;
      if (next < COUNT) {
        noise[next][0] = drawn[2];
        noise[next][1] = drawn[3];
      }
    }
  }
}

// Turns sums into step logits and offers what may win. sum_of(i, block) gives the sums of the i-th
// accumulator, after wait().
template <int ACCUMULATORS_HERE, typename Precise, typename Wait, typename SumOf>
__device__ __forceinline__ void offer_sums(const WalkArgs& args, Shared& shared, const Lines& lines,
                                           const Sampling& sampling, int warp, int lane, int round,
                                           int first, const Wait& wait, const SumOf& sum_of,
                                           Precise precise,
                                           const float (&limit)[plan::COLUMN_BLOCKS],
                                           Offers& offers) {
  constexpr int BLOCKS = plan::COLUMN_BLOCKS, COUNT = ACCUMULATORS_HERE * BLOCKS;
  const Judged judged{first};
  const LaneRows rows(warp, lane);
  wait();
  PairScale scales[COUNT];
  float2 bases[COUNT];
  float latent_scales[BLOCKS], slacks[BLOCKS];
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    if constexpr (plan::QUANTISED)
      latent_scales[block] = shared.latent_scale[latent_slot(round)][lane_column(lane, block)];
    slacks[block] = slack_of(shared, latent_slot(round), lane_column(lane, block));
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (!judged.exists(i)) continue;
    const int row = rows.row(judged.accumulator(i));
    if (i % BLOCKS == 0) {
      scales[i] = load_pair_scale(shared, row);
    } else {
      scales[i] = scales[i - 1];
    }
    bases[i] = load_base_pair(lines.base[judged.block(i)] + row * BASE_BYTES);
  }
  __syncwarp();  // these loads together, not each before its use
  // The first token of a Domino head is decided by the base logits alone.
  // Padding rows have base logits of -inf and weights of 0. With an infinite element of a bf16
  // latent that would be NaN, which wins.
  constexpr bool PADDED = !plan::QUANTISED && plan::VOCAB % plan::ROWS != 0;
  [[maybe_unused]] const int rows_here = plan::VOCAB - static_cast<int>(blockIdx.x) * plan::ROWS;
  const bool plain = plan::PROJECTOR_ROWS > 0 && round_step(round) == 0;
  float logits[COUNT][2];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    logits[i][0] = logits[i][1] = minus_infinity();
    if (!judged.exists(i)) continue;
    step_pair(sum_of(i / BLOCKS, judged.block(i)), judged.block(i), scales[i],
              latent_scales[i % BLOCKS], bases[i], slacks[i % BLOCKS], logits[i]);
    if constexpr (PADDED) {
      const int row = rows.row(judged.accumulator(i));
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (row + j >= rows_here) logits[i][j] = minus_infinity();
    }
    if (plain) {
      // Of bounds a NaN has to be the one of arithmetic.
      logits[i][0] = plan::EXACT ? __fadd_rn(bases[i].x, 0.0f) : bases[i].x;
      logits[i][1] = plan::EXACT ? __fadd_rn(bases[i].y, 0.0f) : bases[i].y;
    }
    if constexpr (!plan::WIDE) {
      offers.best[judged.block(i)].offer_pair(logits[i], rows.row(judged.accumulator(i)),
                                              tile_present(lane, judged.accumulator(i)));
    } else {
      round_pair(logits[i][0], logits[i][1]);
    }
  }
  if constexpr (!plan::WIDE) {
    return;
  } else if constexpr (!plan::SAMPLED) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!judged.exists(i)) continue;
      const int accumulator = judged.accumulator(i), row = rows.row(accumulator);
      const bool present = tile_present(lane, accumulator);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        offers.best[judged.block(i)].offer(present ? ordered_key(logits[i][j]) : NEVER, row + j);
    }
  } else {
    float noise[COUNT][2], scores[COUNT][2];
    find_noise<COUNT>(args, shared, sampling, rows, lane, round, judged, noise);
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        // A greedy row's score is its step logit: times one, plus a zero that makes -0 a +0.
        scores[i][j] = fused(logits[i][j], sampling.inverse[judged.block(i)], noise[i][j]);
    if (plan::NOISE_AHEAD && !precise && !sampling.whole) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        if (judged.exists(i) && tile_present(lane, judged.accumulator(i)))
          sampling.export_rows(judged.block(i), rows.row(judged.accumulator(i)), logits[i][0],
                               logits[i][1]);
    }
    if (precise)
      score_precisely<COUNT>(args, shared, judged, rows, lane, round, logits, limit, scores);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!judged.exists(i)) continue;
      const int accumulator = judged.accumulator(i), block = judged.block(i);
      const bool present = tile_present(lane, accumulator);
      if (!precise && present) {
        if (sampling.whole || plan::NOISE_AHEAD) {
          sampling.export_pair(block, rows.row(accumulator), logits[i][0], logits[i][1]);
        } else {
          sampling.export_rows(block, rows.row(accumulator), logits[i][0], logits[i][1]);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        offers.contest[block].offer(present ? score_order(scores[i][j]) : NEVER,
                                    2 * accumulator + j, logits[i][j]);
      }
    }
  }
}

// ---- the best of a warp ------------------------------------------------------------------------

__device__ __forceinline__ void post(Shared& shared, int round, int column, int place, int key,
                                     int row, float logit) {
  const int slot = candidate_slot(round);
  shared.candidate_key[slot][column][place] = key;
  if constexpr (plan::WIDE) shared.candidate_row[slot][column][place] = row;
  if constexpr (plan::SAMPLED) shared.candidate_logit[slot][column][place] = logit;
}

// Leaves the best of the warp for the service warps.
__device__ __forceinline__ void post_best(Shared& shared, int warp, int lane, int round,
                                          const Offers& offers) {
#if WTS_EXACT
  if constexpr (plan::LANE_SLOTS > 0)
    lane_candidates(shared, round, warp)[lane] = {offers.best[0].key, offers.best[0].second};
#endif
#pragma unroll
  for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
#pragma unroll
    for (int of_block = 0; of_block < BLOCK_REQUESTS; ++of_block) {
      Best best = offers.best[block];
      const bool other = (lane & 3) % BLOCK_REQUESTS != of_block;
      if (other) best.key = NEVER;
      const Best winner = warp_best(best);
      if (lane == 0)
        post(shared, round, 4 * block + of_block, warp, winner.key, winner.row, 0.0f);
#if WTS_EXACT
      const bool wins = best.key == winner.key;
      const int others = other ? NEVER : wins ? best.second : best.key;
      const int next = warp_max(others);
      if constexpr (plan::LANE_SLOTS > 0) {
        if (lane == 0)
          post(shared, round, 4 * block + of_block, plan::SWEEP_WARPS + warp, next, 0, 0.0f);
        continue;
      }
      // A lane keeps its two best rows: where these are the warp's, its next may be as good as the
      // second.
      const int third = warp_max(other            ? NEVER
                                 : others != next ? others
                                 : wins           ? next
                                                  : best.second);
      if (lane == 0) {
        post(shared, round, 4 * block + of_block, plan::SWEEP_WARPS + warp, next, 0, 0.0f);
        post(shared, round, 4 * block + of_block, 2 * plan::SWEEP_WARPS + warp, third, 0, 0.0f);
      }
#endif
    }
  }
}

// Lanes that hold rows of one request are every BLOCK_REQUESTS-th; all requests are judged at once.
constexpr int REQUEST_LANES = 32 / BLOCK_REQUESTS;
__device__ __forceinline__ int request_max(int value) {
  return strided_max<REQUEST_LANES, BLOCK_REQUESTS>(value);
}

// Leaves the two best of each sampled request, in case they are too close to tell apart; false
// where a third is too close to leave it at that.
template <typename Precise>
__device__ __forceinline__ bool post_contests(Shared& shared, int warp, int lane, int round,
                                              const Offers& offers, Precise precise,
                                              float (&limit)[plan::COLUMN_BLOCKS]) {
  constexpr u32 OF_REQUEST = BLOCK_REQUESTS == 1   ? 0xffffffffu
                             : BLOCK_REQUESTS == 2 ? 0x55555555u
                                                   : 0x11111111u;
  const int group = round_group(round);
  bool crowded = false;
#pragma unroll
  for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
    const Contest& contest = offers.contest[block];
    const int column = lane_column(lane, block), key = contest.key;
    const int row = LaneRows(warp, lane).row(contest.place >> 1) + (contest.place & 1);
    const int top = request_max(key);
    // Of a greedy or precise row the lowest of equals is left; so of one of which every row is
    // masked, or NaN.
    const float score = score_of_key(top);
    const bool open =
        shared.temperature[group][column] > 0.0f && !precise && score > minus_infinity();
    const float least = score - score_slack(score);
    const bool contends = key != NEVER && (open ? !(score_of_key(key) < least) : key == top);
    const bool also =
        open && contest.second != NEVER && !(score_of_key(contest.second) < least);
    const u32 close =
        __ballot_sync(0xffffffffu, contends) & (OF_REQUEST << (lane & (BLOCK_REQUESTS - 1)));
    const int lowest = request_max(key == top ? -row : -plan::ROWS);
    const bool first =
        open ? lane == __ffs(static_cast<int>(close)) - 1 : contends && -row == lowest;
    crowded |= also || (open && __popc(close) > 2);
    if (first) {
      post(shared, round, column, warp, key, row, contest.logit);
      if (!open || __popc(close) < 2)
        post(shared, round, column, plan::SWEEP_WARPS + warp, NEVER, 0, 0.0f);
    } else if (open && contends) {
      post(shared, round, column, plan::SWEEP_WARPS + warp, key, row, contest.logit);
    }
    if (open) limit[block] = least;
  }
  return !__any_sync(0xffffffffu, crowded);
}

}  // namespace wts
