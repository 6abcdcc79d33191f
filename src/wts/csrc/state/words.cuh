// Words in which blocks tell each other sums and states.
#pragma once
#include "block.cuh"
#include "heads/kind.cuh"
#include "ptx/number.cuh"
#include "rounds.cuh"

namespace wts {

// A word is a sum, or a unit's three in bf16 (Domino), and the number of its exchange; slots
// alternate. A block that publishes for step s + 2 has seen every block's candidates of step s, and
// those came after the words for s had been read. A gated head's words are published up to one step
// earlier, into twice as many slots.
constexpr bool PACKED = HEAD == Head::DOMINO;

template <bool PROJECTOR>
__device__ __forceinline__ u64* early_slots(const Block& block, u32 sequence, int request) {
  constexpr int WORDS = PROJECTOR ? plan::PROJECTOR_ROWS : plan::EARLY_WORDS;
  constexpr int REQUESTS = plan::GROUPS * plan::COLUMNS;
  const int line = static_cast<int>(sequence % plan::EARLY_SLOTS) * REQUESTS + request;
  u64* first = block.args.state_slots +
               (PROJECTOR ? 1ll * plan::EARLY_SLOTS * REQUESTS * plan::EARLY_WORDS : 0ll);
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

// One of several numbers that all lanes have: the lane's.
template <int COUNT>
__device__ __forceinline__ float of_lane(const float (&values)[COUNT], int lane) {
  float mine = values[0];
#pragma unroll
  for (int i = 1; i < COUNT; ++i) mine = lane == i ? values[i] : mine;
  return mine;
}

// What the hidden states add to the inner sums of a request's step, where it is given. An absent
// request gets another's.
__device__ __forceinline__ const float* given_part(const Block& block, int round, int column) {
  const int request = min(request_of(round, column), block.args.num_requests - 1);
  return block.args.hidden_part +
         (static_cast<long long>(request) * block.args.num_steps + round_step(round)) * plan::PART;
}

}  // namespace wts
