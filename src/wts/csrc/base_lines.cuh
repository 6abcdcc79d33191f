// Where base logits of a shard are staged in shared memory, a line for each request.
#pragma once
#include "block.cuh"
#include "numbers.cuh"
#include "ptx/memory.cuh"
#include "ptx/number.cuh"
#include "rounds.cuh"
#include "tiles.cuh"

namespace wts {

// Staged base logits start at a 16-byte boundary at or before the shard's first one, so that whole
// pieces can be copied. An odd element of two bytes is shifted by one once it has landed.
__device__ __forceinline__ u32 base_misalignment(const Block& block, int request, int step) {
  const u32 element = static_cast<u32>(request) * static_cast<u32>(block.args.base_request_stride) +
                      static_cast<u32>(step) * static_cast<u32>(block.args.base_step_stride) +
                      blockIdx.x * plan::ROWS;
  return (static_cast<u32>(reinterpret_cast<u64>(block.args.base)) + element * BASE_BYTES) & 15u;
}

// Where the base logits of a lane's requests are staged.
struct Lines {
  u32 base[plan::COLUMN_BLOCKS];  // shared address of row 0's

  __device__ __forceinline__ Lines(const Block& block, int lane, int round) {
    const int group = round_group(round);
#pragma unroll
    for (int nth = 0; nth < plan::COLUMN_BLOCKS; ++nth) {
      const int column = lane_column(lane, nth);
      const u32 misaligned =
          base_misalignment(block, group * plan::COLUMNS + column, round_step(round));
      base[nth] = shared_address(block.shared.base[round_slot(round)][column]) + (misaligned & ~3u);
    }
  }
};

// Two consecutive base logits in shared memory, at a multiple of four bytes.
__device__ __forceinline__ float2 load_base_pair(u32 address) {
  if constexpr (BASE_TYPE == Number::FP32) {
    return {__uint_as_float(load_shared_4(address)), __uint_as_float(load_shared_4(address + 4))};
  } else {
    const u32 pair = load_shared_4(address);
    if constexpr (BASE_TYPE == Number::FP16)
      return {half_to_float(pair & 0xffffu), half_to_float(pair >> 16)};
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

}  // namespace wts
