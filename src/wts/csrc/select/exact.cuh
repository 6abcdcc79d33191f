// The exact walk: int8 sums only tell which rows may have the best logit of the unquantised head;
// where these are several, their exact logits decide, of weights in memory (numerics.md,
// docs/exact.md).
//   Candidates are upper bounds of exact logits before their last rounding, which they bound when
// they are rounded alike. How far below its bound a row may be depends on its scale: a margin. A
// block is decided if every other row's bound is below what its best row has at least; its word
// says the rounded bound and, by a code, how many places of bf16 below it that row may be. Often
// none: its exact logit is known. What may be better than the likely winner has at least, or as
// good with a lower token, contends. No contender but it, decided: the winner. Several: every block
// computes the exact logits of the decided ones, so that nothing more is exchanged; an undecided
// one's block finds its own best row and says it in a second word, for which the others wait.
#pragma once
#include "block.cuh"
#include "exchange/all_to_all.cuh"
#include "exchange/gathered.cuh"
#include "exchange/wait.cuh"
#include "exchange/word.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/exact_bounds.cuh"
#include "select/exact_logits.cuh"
#include "select/key.cuh"
#include "tiles.cuh"

namespace wts {

#if WTS_EXACT

// In a list of contenders: an entry is an undecided block, not a token.
constexpr u32 BLOCK_NOT_TOKEN = 1u << 31;

// The block's best row of a column, in all lanes, and its word in the lane that has it: it says
// whether another row is too close, or its bound says nothing. Each sweeping warp offers two. What
// every lane's word would be is made before lanes agree, so that little is left to do behind that.
__device__ __forceinline__ int block_best(const Block& block, int round, int column, u32 tag,
                                          bool& mine_is_best, ExchangeWord& word) {
  const int lane = lane_index();
  const int* candidates = block.shared.candidate_key[candidate_slot(round)][column];
  const float margin = block.shared.margin[request_of(round, column)];
  const int mine = candidates[lane % (2 * plan::SWEEP_WARPS)];  // some lanes the same
  const int key = bound_key(mine), least = least_of_row(block, mine, margin);
  const u32 places = code_of_places((static_cast<u32>(key) - static_cast<u32>(least)) >> 16);
  word = static_cast<u32>(key | (mine & LAST_ROW) << ROW_SHIFT) | tag |
         (bounded(mine) ? places : UNDECIDED) << TAG_BITS;
  made_here(word);
  const int best = warp_max(mine);
  const int rival = warp_max(mine == best ? NEVER : key);
  mine_is_best = mine == best && lane < plan::SWEEP_WARPS;
  word |= rival >= least ? UNDECIDED << TAG_BITS : 0;
  return candidate_row(best);
}

// The most that any word's row has for certain. Of an undecided one the scale may be the largest.
__device__ __forceinline__ int least_of_bounded(const Block& block, const Gathered& gathered,
                                                int round, int column) {
  const float margin = block.shared.margin[request_of(round, column)];
  int least = NEVER;
#pragma unroll
  for (int i = 0; i < BLOCKS_PER_LANE; ++i) {
    const ExchangeWord word = gathered.words[i];
    const float bound = key_value(word_key(word));
    if (word_key(word) == NEVER || !(fabsf(bound) < LARGEST_DECIDED)) continue;
    const int rough = least_key(bound, HALF_PLACE, block.shared.largest_scale, margin);
    least = max(least, word_code(word) == UNDECIDED ? never_if_nan(rough, word_key(word))
                                                    : least_of(word));
  }
  return warp_max(least);
}

__device__ __forceinline__ u64* exact_slots(const Block& block, int request) {
  return block.args.exact_slots + static_cast<long long>(request) * plan::NUM_BLOCKS;
}

// Rows of a sweeping warp: of its own pairs of tiles, then, where their number is odd, of the
// pair that it has one tile of.
constexpr int OWN_ROWS = WHOLE_TILES * 16;
constexpr int WARP_ROWS = OWN_ROWS + (plan::WARP_TILES % 2) * 32;
__device__ __forceinline__ int warp_row(int warp, int at) {
  if (at < OWN_ROWS) return warp * OWN_ROWS + at;
  return plan::SWEEP_WARPS * OWN_ROWS + (warp >> 1) * 32 + at - OWN_ROWS;
}

// Rows that a lane of a warp that multiplies alone holds of its request.
constexpr int LANE_ROWS = 2 * ACCUMULATORS;

// The place of a bit of a mask that has so many bits below it.
__device__ __forceinline__ int place_of_bit(u32 mask, int below) {
  for (; below > 0; --below) mask &= mask - 1;
  return max(__ffs(static_cast<int>(mask)) - 1, 0);
}

// Whether a lane of a warp that multiplies alone holds rows of a column's request.
__device__ __forceinline__ bool of_column(int lane, int column) {
  return (lane & 3) % BLOCK_REQUESTS == column;
}

// Finds this block's best row by exact logits, among those whose bound is not below `least`, and
// publishes it. Of a sweeping warp that multiplies alone, its lanes' two best are looked at (all
// rows of a lane, if both may have won). Others offer two rows, and how good a third may be:
// where that may have won, too, all of the warp's rows are computed.
__device__ __forceinline__ void publish_exact(const Block& block, int round, int column,
                                              int least) {
  const int lane = lane_index(), first = block.first_row();
  int candidate = NEVER;
  if (lane < plan::CANDIDATES)
    candidate = block.shared.candidate_key[candidate_slot(round)][column][lane];
  // Its own rows may have more for certain than its word has told.
  int certain = NEVER;
  if (lane < plan::SWEEP_WARPS && candidate != NEVER && bounded(candidate))
    certain =
        never_if_nan(least_of_row(block, candidate, block.shared.margin[request_of(round, column)]),
                     bound_key(candidate));
  least = max(least, warp_max(certain));
  const auto is_close = [&](int candidate) {
    return candidate != NEVER && bound_key(candidate) >= least;
  };
  const u32 close = __ballot_sync(0xffffffffu, is_close(candidate));
  // Warps whose lanes' candidates are looked at, or all rows; and what else warps have offered.
  const u32 crowded = plan::LANE_SLOTS > 0 ? close & ((1u << plan::SWEEP_WARPS) - 1)
                                           : close >> (2 * plan::SWEEP_WARPS);
  const u32 offered = plan::LANE_SLOTS > 0 ? 0
                                           : close & ~(crowded << plan::SWEEP_WARPS | crowded) &
                                                 ((1u << 2 * plan::SWEEP_WARPS) - 1);
  Found best;
  u32 computed = 0;
  // What warps offered, then one crowded warp after the other.
#pragma unroll 1
  for (u32 rest = crowded << 1 | (offered != 0); rest != 0; rest &= rest - 1) {
    const int warp = __ffs(static_cast<int>(rest)) - 2;
    u32 single = offered, deep = 0;  // lanes of which one row may have won, or more
    int value = candidate, others = 0;
    if (warp >= 0) {
      single = 0;
      others = WARP_ROWS;
      if constexpr (plan::LANE_SLOTS > 0) {
        const int2 kept = lane_candidates(block, round, warp)[lane];
        const bool mine = of_column(lane, column);
        value = kept.x;
        deep = __ballot_sync(0xffffffffu, mine && is_close(kept.y));
        single = __ballot_sync(0xffffffffu, mine && is_close(value)) & ~deep;
        others = __popc(deep) * LANE_ROWS;
      }
    }
    const int alone = __popc(single), items = alone + others;
    const auto row_of = [&](int item) {
      const int at = min(item, items - 1), behind = at - alone;
      const bool one = behind < 0;
      const int place = one ? place_of_bit(single, at) : place_of_bit(deep, behind / LANE_ROWS);
      const int row = candidate_row(__shfl_sync(0xffffffffu, value, place));
      if (one) return row;
      if constexpr (plan::LANE_SLOTS == 0) return warp_row(warp, behind);
      return LaneRows(warp, place).row(behind % LANE_ROWS / 2) + behind % 2;
    };
    // All at once: behind one another they would come from memory.
#pragma unroll 1
    for (int at = 0; at < items; at += 32) prefetch_weight(block, row_of(at + lane));
#pragma unroll 1
    for (int at = 0; at < items; at += ROWS_AT_ONCE) {
      const int token = min(first + row_of(at + share()), plan::VOCAB - 1);
      best.offer(exact_key(block, round, column, token), token);
    }
    computed += static_cast<u32>(items);
  }
  best = best.of_warp();
  if (lane != 0) return;
  const u32 row = static_cast<u32>(max(best.token - first, 0));
  const u32 low = (static_cast<u32>(best.key) & 0xffff0000u) | row;
  const u64 word = static_cast<u64>(block.sequence_of(round_step(round))) << 32 | low;
  store_relaxed(exact_slots(block, request_of(round, column)) + blockIdx.x, word);
  atomicAdd(&block.args.status->rescored_rows, computed);
}

// The best row of an undecided block, which that block publishes; of no block where there is none.
__device__ __forceinline__ void await_exact(const Block& block, int round, int column, int owner,
                                            Found& best) {
  const u64* slot = exact_slots(block, request_of(round, column)) + max(owner, 0);
  const u32 sequence = block.sequence_of(round_step(round));
  u64 word = 0;
#pragma unroll 1
  for (u32 poll = 1;; ++poll) {
    word = load_relaxed(slot);
    const bool missing = owner >= 0 && static_cast<u32>(word >> 32) != sequence;
    if (!__any_sync(0xffffffffu, missing)) break;
    if ((poll & 15u) == 0 && __any_sync(0xffffffffu, is_abandoned(block))) break;
    if ((poll & 255u) == 0 && out_of_time(block, poll))
      report_timeout(block.args.status, &block.shared.abandoned, warp_max(missing ? owner : 0),
                     round_step(round));
  }
  const u32 low = static_cast<u32>(word);
  if (owner >= 0)
    best.offer(key_part(static_cast<int>(low)),
               min(owner * plan::ROWS + static_cast<int>(low & 0xffffu), plan::VOCAB - 1));
}

// What blocks' words say of a column: the best bound's token, which is the winner unless another
// may have won as well.
struct Verdict {
  int token;
  int owner, lane;  // block and lane that have its word
  ExchangeWord word;
};

__device__ __forceinline__ Verdict likely(const Gathered& gathered) {
  u32 owner;
  const ExchangeWord mine = gathered.best_of_lane(owner);
  const u32 first = Gathered::best_block(mine, owner);
  Verdict verdict;
  verdict.owner = static_cast<int>(first);
  verdict.lane = lane_of(verdict.owner);
  verdict.word =
      static_cast<u32>(__shfl_sync(0xffffffffu, static_cast<int>(mine), verdict.lane));
  verdict.token = Gathered::token_of(verdict.word, verdict.owner);
  return verdict;
}

// What the likely winner has at least, as a rank: its token beats others that are as good.
__device__ __forceinline__ int least_rank(const Verdict& verdict) {
  return rank_of(least_of(verdict.word), verdict.owner);
}

// Whether it is the winner: its block is sure, and no other word ranks as high as it does at least.
__device__ __forceinline__ bool decided(const Block& block, const Gathered& gathered,
                                        const Verdict& verdict, int round, int column) {
  const int lane = lane_index(), least = least_rank(verdict);
  int above = lane == verdict.lane ? -1 : 0;
#pragma unroll
  for (int i = 0; i < BLOCKS_PER_LANE; ++i)
    above += rank_of(word_key(gathered.words[i]), block_of(lane, i)) >= least;
  const bool open = __any_sync(0xffffffffu, above > 0) || word_code(verdict.word) == UNDECIDED;
  return !open || request_of(round, column) >= block.args.num_requests;
}

// The winner where several may have won. Through shared memory and rolled up, because registers
// are few.
__device__ __forceinline__ int rescore(const Block& block, const Gathered& gathered,
                                       const Verdict& verdict, int round, int column) {
  const int lane = lane_index();
  u32* list = block.shared.race[block.service()];
  // An undecided block's word says less than others may.
  const bool sure = word_code(verdict.word) != UNDECIDED;
  const int least = sure ? least_rank(verdict) : least_of_bounded(block, gathered, round, column);
  int contenders = 0, undecided_ones = 0;
  bool own = false;
#pragma unroll
  for (int i = 0; i < BLOCKS_PER_LANE; ++i) {
    const ExchangeWord word = gathered.words[i];
    const int owner = block_of(lane, i);
    const bool in = owner < plan::NUM_BLOCKS && rank_of(word_key(word), owner) >= least;
    const bool undecided = in && word_code(word) == UNDECIDED;
    const u32 lanes = __ballot_sync(0xffffffffu, in);
    if (in)
      list[contenders + __popc(lanes & ((1u << lane) - 1))] =
          undecided ? BLOCK_NOT_TOKEN | static_cast<u32>(owner)
                    : static_cast<u32>(Gathered::token_of(word, owner));
    own |= undecided && owner == static_cast<int>(blockIdx.x);
    contenders += __popc(lanes);
    undecided_ones += __popc(__ballot_sync(0xffffffffu, undecided));
  }
  __syncwarp();
  if (__any_sync(0xffffffffu, own)) publish_exact(block, round, column, key_part(least));
  Found best;
#pragma unroll 1
  for (int at = 0; at < contenders && undecided_ones < contenders; at += ROWS_AT_ONCE) {
    const u32 entry = list[min(at + share(), contenders - 1)];
    const bool decided = (entry & BLOCK_NOT_TOKEN) == 0;
    const int token = decided ? static_cast<int>(entry) : 0;
    const int key = exact_key(block, round, column, token);
    if (decided) best.offer(key, token);
  }
#pragma unroll 1
  for (int at = 0; at < contenders && undecided_ones > 0; at += 32) {
    const u32 entry = list[min(at + lane, contenders - 1)];
    const bool undecided = (entry & BLOCK_NOT_TOKEN) != 0;
    await_exact(block, round, column, undecided ? static_cast<int>(entry & ~BLOCK_NOT_TOKEN) : -1,
                best);
  }
  best = best.of_warp();  // and the list is read
  if (blockIdx.x == 0 && lane == 0) {
    atomicAdd(&block.args.status->rescored_steps, 1u);
    atomicAdd(&block.args.status->rescored_rows, static_cast<u32>(contenders - undecided_ones));
  }
  return best.token;
}

#endif

}  // namespace wts
