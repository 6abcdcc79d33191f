// How blocks agree on a token: each publishes its best row, each reads everybody's.
//
// One word per (request, block) carries candidate and tag together, so it is true as soon as it is
// seen: single-copy atomicity (PTX 8.5) is the only ordering needed, no fence, no counter.
//   The tag names the exchange: sequence number / 2, since slots alternate by its parity. When a
// block waits in exchange s, every block has published s - 1 (else it would still wait there), and
// none can have published s + 2 (that needs this block's s + 1). So a slot of parity s holds the
// word of s - 2 or of s, whose tags differ by one: two bits are enough, and wrap without harm.
// Every exchange writes every slot of its parity, also for absent requests, so no word grows old.
// The sequence number lives in the workspace, read at the start and advanced at the end of a walk:
// replays of a captured graph need no reset.
//   A walk that was given up breaks this order (its blocks no longer wait), so words may be stale
// until the host has seen the error and cleared the workspace; the error stays until then.
#pragma once
#include "select.cuh"

namespace wts {

// Words a lane reads of one exchange: 16 bytes at once as long as that leaves no lane idle (a
// vector access is its elements' accesses in some order, PTX 8.2.2, and no order is needed), then
// one by one. Long words come one by one: in pairs they took registers that there are not.
constexpr int VECTOR_WORDS = plan::WIDE ? 1 : 4;
constexpr int VECTORS = plan::NUM_BLOCKS / (32 * VECTOR_WORDS);
constexpr int SINGLES = (plan::NUM_BLOCKS - VECTORS * 32 * VECTOR_WORDS + 31) / 32;
constexpr int BLOCKS_PER_LANE = VECTORS * VECTOR_WORDS + SINGLES;
// The block of a lane's word; ascending with i within a lane.
__device__ __forceinline__ int block_of(int lane, int i) {
  if (i < VECTORS * VECTOR_WORDS)
    return (i / VECTOR_WORDS * 32 + lane) * VECTOR_WORDS + i % VECTOR_WORDS;
  return VECTORS * 32 * VECTOR_WORDS + (i - VECTORS * VECTOR_WORDS) * 32 + lane;
}
__device__ __forceinline__ int lane_of(int block) {
  return (block < VECTORS * 32 * VECTOR_WORDS ? block / VECTOR_WORDS : block) & 31;
}

#if WTS_WIDE
// key : 32 | inverted row : 16 | tag : 16, or where it is an approximate score's,
// key : 32 | step logit : 16 | inverted row : 12 | tag : 4.
using ExchangeWord = u64;
constexpr u32 TAG_MASK = plan::SCORED ? 0xfu : 0xffffu;
#else
// key : 16 | inverted row : 12 | tag : 4, or in an exact walk
// key : 16 | inverted row : 11 | code : 3 | tag : 2.
using ExchangeWord = u32;
constexpr u32 TAG_MASK = (1u << TAG_BITS) - 1;
#endif

// Counters a walk leaves behind, in global memory; the host reads them when asked.
struct Status {
  u32 sequence;         // exchanges done since the workspace was cleared
  u32 error;            // 0, or 1 + the block whose word did not come
  u32 error_block;      // who waited
  u32 error_step;       // at which step of the walk
  u32 clamped_anchors;  // anchors outside the table, so far
  u32 rescored_steps;   // steps of a request that an exact walk decided by exact logits, so far
  u32 rescored_rows;    // rows that it computed them of, each once
};

__device__ __forceinline__ u32 exchange_tag(u32 sequence) { return (sequence >> 1) & TAG_MASK; }

__device__ __forceinline__ ExchangeWord pack_word(const Best& best, u32 tag) {
  if constexpr (plan::WIDE) {
    u32 low = ((0xffffu - static_cast<u32>(best.row)) << 16) | tag;
    if constexpr (plan::SCORED)
      low = step_bits(best.logit) << 16 | static_cast<u32>(LAST_ROW - best.row) << TAG_BITS | tag;
    return static_cast<ExchangeWord>(
        (static_cast<u64>(static_cast<u32>(best.key)) << 32) | low);
  } else {
    return static_cast<ExchangeWord>(static_cast<u32>(best.key) | tag);
  }
}

// What stands for a block that does not exist: it has come, and never wins.
__device__ __forceinline__ ExchangeWord absent_word(u32 tag) {
  Best nobody;
  return pack_word(nobody, tag);
}

__device__ __forceinline__ u32 word_tag(ExchangeWord word) {
  return static_cast<u32>(word) & TAG_MASK;
}

__device__ __forceinline__ int word_key(ExchangeWord word) {
  if constexpr (plan::WIDE) return static_cast<int>(static_cast<u64>(word) >> 32);
  return static_cast<int>(static_cast<u32>(word) & 0xffff0000u);
}

__device__ __forceinline__ int word_row(ExchangeWord word) {
  if constexpr (plan::WIDE && !plan::SCORED) {
    return static_cast<int>(0xffffu - ((static_cast<u32>(word) >> 16) & 0xffffu));
  } else {
    return compact_row(static_cast<u32>(word));
  }
}

// The slots of one request at one parity: one word per block.
__device__ __forceinline__ ExchangeWord* exchange_slots(ExchangeWord* workspace, u32 sequence,
                                                        int request) {
  const int line = static_cast<int>(sequence & 1u) * (plan::GROUPS * plan::COLUMNS) + request;
  return workspace + line * plan::SLOT_LINE_WORDS;
}

// The words one warp has seen of one exchange.
struct Gathered {
  ExchangeWord words[BLOCKS_PER_LANE];

  __device__ __forceinline__ void request(const ExchangeWord* slots, u32 tag) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const ExchangeWord* from = slots + block_of(lane, i * VECTOR_WORDS);
      if constexpr (VECTOR_WORDS == 1) {
        words[i] = load_relaxed(from);
      } else {
        load_relaxed_16(reinterpret_cast<u32(&)[4]>(words[4 * i]),
                        reinterpret_cast<const u32*>(from));
      }
    }
#pragma unroll
    for (int i = VECTORS * VECTOR_WORDS; i < BLOCKS_PER_LANE; ++i) {
      const int block = block_of(lane, i);
      words[i] = block < plan::NUM_BLOCKS ? load_relaxed(slots + block) : absent_word(tag);
    }
  }

  __device__ __forceinline__ bool complete(u32 tag) const {
    bool missing = false;
#pragma unroll
    for (int i = 0; i < BLOCKS_PER_LANE; ++i) missing |= word_tag(words[i]) != tag;
    return !__any_sync(0xffffffffu, missing);
  }

  // The token a word names; in range for any bits in memory.
  __device__ __forceinline__ static int token_of(ExchangeWord word, int block) {
    return min(max(block * plan::ROWS + word_row(word), 0), plan::VOCAB - 1);
  }

  // This lane's best word, and its block.
  __device__ __forceinline__ ExchangeWord best_of_lane(u32& block) const {
    const int lane = lane_index();
    ExchangeWord mine = words[0];
    block = static_cast<u32>(block_of(lane, 0));
#pragma unroll
    for (int i = 1; i < BLOCKS_PER_LANE; ++i) {
      if (word_key(words[i]) > word_key(mine)) {
        mine = words[i];
        block = static_cast<u32>(block_of(lane, i));
      }
    }
    return mine;
  }

  // The block all agree on: of the largest key, then the lowest.
  __device__ __forceinline__ static u32 best_block(ExchangeWord mine, u32 block) {
    const int key = word_key(mine);
    u32 first;
    if constexpr (plan::WIDE) {
      const int best = warp_max(key);
      first = 0xffffu - warp_max_unsigned(key == best ? 0xffffu - block : 0u);
    } else {  // the key leaves sixteen bits free for the inverted block
      const u32 keyed = static_cast<u32>(key) | (0xffffu - block);
      first = 0xffffu - (static_cast<u32>(warp_max(static_cast<int>(keyed))) & 0xffffu);
    }
    return first;
  }

  // The row all agree on: the best block's, that block's lowest row of the key. Shards ascend with
  // the block number, so this is the lowest token among equals.
  __device__ __forceinline__ int winner() const {
    u32 block;
    const ExchangeWord mine = best_of_lane(block);
    const u32 first = best_block(mine, block);
    const int row = __shfl_sync(0xffffffffu, word_row(mine), lane_of(static_cast<int>(first)));
    // In range for any bits in memory.
    return min(max(static_cast<int>(first) * plan::ROWS + row, 0), plan::VOCAB - 1);
  }

  // The lowest block whose word has not come, for a report.
  __device__ __forceinline__ int first_missing(u32 tag) const {
    int missing = plan::NUM_BLOCKS;
#pragma unroll
    for (int i = BLOCKS_PER_LANE - 1; i >= 0; --i)
      if (word_tag(words[i]) != tag) missing = block_of(lane_index(), i);
    const u32 distance = static_cast<u32>(plan::NUM_BLOCKS - missing);
    return plan::NUM_BLOCKS - static_cast<int>(warp_max_unsigned(distance));
  }
};

}  // namespace wts
