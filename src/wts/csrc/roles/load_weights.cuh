// What a block loads before its first step, and keeps.
#pragma once
#include "block.cuh"
#include "heads/kind.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "tiles.cuh"

namespace wts {

// Offset of each fragment outside the registers among its warp's packed tiles.
__constant__ const int away_offset[] = {WTS_AWAY_SOURCE};

// The scales and the fragments that live in shared memory, by bulk copies of one whole warp.
__device__ __forceinline__ void load_shared_weights(const Block& block) {
  constexpr u32 SCALE_BYTES = plan::ROW_SCALE_WORDS * 4;
  constexpr u32 BYTES = plan::SWEEP_WARPS * plan::SHARED_FRAGMENTS * plan::FRAGMENT_BYTES;
  const int lane = lane_index();
  if (lane == 0) {
    barrier_arrive_expect(&block.shared.weights_landed, SCALE_BYTES + BYTES);
    bulk_copy(block.shared.row_scale, block.args.row_scale + blockIdx.x * plan::ROW_SCALE_WORDS,
              SCALE_BYTES, &block.shared.weights_landed);
  }
  __syncwarp();
  constexpr int UNITS = plan::SWEEP_WARPS / plan::OPERAND_WARPS, LANES = 32 / UNITS;
  const int unit = lane / LANES;
  if (unit >= UNITS) return;
#pragma unroll 1
  for (int index = lane % LANES; index < plan::SHARED_FRAGMENTS; index += LANES)
    bulk_copy(block.shared.fragments[(unit * plan::SHARED_FRAGMENTS + index) * plan::OPERAND_WARPS],
              packed_tiles(block, unit) + away_offset[plan::STREAMED_FRAGMENTS + index],
              OPERAND_BYTES, &block.shared.weights_landed);
}

// This block's rows of a matrix of KINDS times UNITS rows, EACH of every kind: their bytes.
template <int KINDS, int UNITS, int EACH, int LENGTH, typename To>
__device__ __forceinline__ u32 load_own_rows(To& to, const Byte* from, Barrier* landed, bool copy) {
  constexpr int ROW_BYTES = LENGTH * 2;
  const int first = static_cast<int>(blockIdx.x) * EACH;
  const u32 bytes = min(EACH, max(0, UNITS - first)) * ROW_BYTES;
  for (int kind = 0; copy && bytes > 0 && kind < KINDS; ++kind)
    bulk_copy(to[kind * EACH], from + static_cast<long long>(kind * UNITS + first) * ROW_BYTES,
              bytes, landed);
  return KINDS * bytes;
}

__device__ __forceinline__ void load_inner_weights(const Block& block) {
  if (lane_index() != 0) return;
  Barrier* landed = &block.shared.state_landed;
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {  // first all bytes are announced
    const bool copy = turn == 1;
    u32 bytes = 0;
    if constexpr (plan::HIDDEN_INSIDE && HEAD == Head::DOMINO)
      bytes += load_own_rows<1, plan::PROJECTOR_ROWS, plan::BLOCK_PROJECTIONS, plan::HIDDEN>(
          block.shared.hidden_weight, block.args.hidden_weight, landed, copy);
    if constexpr (plan::HIDDEN_INSIDE && HEAD != Head::DOMINO)
      bytes += load_own_rows<plan::UNIT_ROWS, plan::UNITS, plan::BLOCK_UNITS, plan::HIDDEN>(
          block.shared.hidden_weight, block.args.hidden_weight, landed, copy);
    if constexpr (STATEFUL)
      bytes += load_own_rows<plan::UNIT_ROWS, plan::UNITS, plan::BLOCK_UNITS, plan::STATE>(
          block.shared.state_weight, block.args.state_weight, landed, copy);
    if constexpr (HEAD == Head::DOMINO)
      bytes += load_own_rows<1, plan::PROJECTOR_ROWS, plan::BLOCK_PROJECTIONS, plan::STATE>(
          block.shared.projector_weight, block.args.projector_weight, landed, copy);
    if (!copy) barrier_arrive_expect(landed, bytes);
  }
}

}  // namespace wts
