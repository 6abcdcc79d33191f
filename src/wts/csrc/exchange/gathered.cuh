// All blocks' words of one exchange, as one warp has seen them.
#pragma once
#include "exchange/all_to_all.cuh"
#include "exchange/word.cuh"
#include "plan_constants.h"
#include "ptx/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"

namespace wts {

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
