// How service warps stage base logits, some rounds ahead.
#pragma once
#include "base_lines.cuh"
#include "block.cuh"
#include "numbers.cuh"
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"
#include "rounds.cuh"

namespace wts {

constexpr int NEGATIVE_INFINITY_BITS = BASE_TYPE == Number::FP32   ? 0xff800000
                                       : BASE_TYPE == Number::BF16 ? 0xff80
                                                                   : 0xfc00;

// Whether the vocabulary goes on behind the shard, so that a copy's last 16 bytes may reach past
// it: as far as they may, or the last line of all would be read past its end.
__device__ __forceinline__ bool more_follow(const Block& block) {
  constexpr int LAST_ROWS = plan::VOCAB - (plan::NUM_BLOCKS - 1) * plan::ROWS;
  constexpr int TOO_FEW = LAST_ROWS < 16 / BASE_BYTES - 1 ? LAST_ROWS : 0;
  return static_cast<int>(blockIdx.x + 1) * plan::ROWS + TOO_FEW < plan::VOCAB;
}

__device__ __forceinline__ void store_base(Byte* pointer, u32 bits) {
  if constexpr (BASE_BYTES == 4) {
    *reinterpret_cast<u32*>(pointer) = bits;
  } else {
    *reinterpret_cast<u16*>(pointer) = static_cast<u16>(bits);
  }
}

// Where the vocabulary ends inside the shard, its padding rows must lose before any copy lands.
__device__ __forceinline__ void fill_padding(const Block& block) {
  if (block.rows_here() == plan::ROWS) return;
  for (int use = 0; use < plan::BASE_SLOTS * SERVED; ++use) {
    Byte* line = block.shared.base[use / SERVED][block.column(use % SERVED)];
    for (int at = lane_index() * BASE_BYTES; at < plan::BASE_LINE_BYTES; at += 32 * BASE_BYTES)
      store_base(line + at, NEGATIVE_INFINITY_BITS);
  }
  fence_async_proxy();
  __syncwarp();
}

// The shard's first base logit.
__device__ __forceinline__ const Byte* base_source(const Block& block, int request, int step) {
  const long long first = request * block.args.base_request_stride +
                          step * block.args.base_step_stride +
                          static_cast<long long>(blockIdx.x) * plan::ROWS;
  return block.args.base + first * BASE_BYTES;
}

// The bits in which the addresses of the walk's lines may differ from multiples of a power of two.
__device__ __forceinline__ u64 line_starts(const Block& block) {
  return reinterpret_cast<u64>(block.args.base) |
         static_cast<u64>(block.args.base_request_stride * BASE_BYTES) |
         static_cast<u64>(block.args.base_step_stride * BASE_BYTES);
}

// Whether all lines of the walk begin and end at whole 16-byte pieces, so that bulk copies bring
// all and the padding behind stays as it was filled.
__device__ __forceinline__ bool tidy(const Block& block) {
  return ((line_starts(block) | static_cast<u64>(block.rows_here() * BASE_BYTES)) & 15u) == 0;
}

// Asks L2 for what begin_line will fetch by loads, and wait for.
__device__ __forceinline__ void prefetch_rest(const Block& block, int column, int round) {
  const int request = request_of(round, column);
  if (round_step(round) >= block.args.num_steps || request >= block.args.num_requests) return;
  const u32 misaligned = base_misalignment(block, request, round_step(round));
  const u32 wanted = misaligned + block.rows_here() * BASE_BYTES;
  const u32 offset = (wanted & ~15u) + lane_index() * BASE_BYTES;
  if (offset < wanted)
    prefetch_l2(base_source(block, request, round_step(round)) - misaligned + offset);
}

// Asks for the shard's base logits of one column. Whole 16-byte pieces inside the vocabulary come
// by one bulk copy; where the vocabulary ends with the shard, lanes fetch the rest, padded with
// -inf so that no padding row wins. Unless the line must be shifted, the column counts as staged
// when the copy has landed.
__device__ __forceinline__ void begin_line(const Block& block, int column, int round) {
  const int lane = lane_index(), slot = round_slot(round), step = round_step(round);
  const int request = request_of(round, column);
  if (request >= block.args.num_requests) {
    warp_arrive(&block.shared.base_copied[slot][column]);
    warp_arrive(&block.shared.base_landed[slot]);
    return;
  }
  const u32 misaligned = base_misalignment(block, request, step);
  const Byte* source = base_source(block, request, step) - misaligned;
  Byte* line = block.shared.base[slot][column];
  const u32 wanted = misaligned + block.rows_here() * BASE_BYTES;
  const bool whole = more_follow(block), shifted = (misaligned & 3u) != 0;
  const u32 bytes = whole ? (wanted + 15u) & ~15u : wanted & ~15u;
  Barrier* copied =
      shifted ? &block.shared.base_copied[slot][column] : &block.shared.base_landed[slot];
  if (lane == 0 && bytes > 0) {
    barrier_expect(copied, bytes);
    bulk_copy(line, source, bytes, copied);
  }
  if (!whole && !tidy(block)) {
    const u32 offset = bytes + lane * BASE_BYTES;
    u32 bits = NEGATIVE_INFINITY_BITS;
    if (offset < wanted)
      bits = BASE_BYTES == 4 ? load_global_4(source + offset) : load_global_2(source + offset);
    if (offset + BASE_BYTES <= plan::BASE_LINE_BYTES) store_base(line + offset, bits);
    prefetch_rest(block, column, round + 1);
    fence_async_proxy();  // a later bulk copy may cover these bytes
  }
  warp_arrive(&block.shared.base_copied[slot][column]);
  if (!shifted) warp_arrive(&block.shared.base_landed[slot]);
}

// Moves a line of two-byte elements one element down, words of two at a time.
__device__ __noinline__ void shift_line(Byte* line) {
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

// Shifts a line that begin_line has asked for, and counts its column as staged.
__device__ __forceinline__ void finish_line(const Block& block, int column, int round) {
  const int slot = round_slot(round);
  const int request = request_of(round, column);
  barrier_wait(&block.shared.base_copied[slot][column], round_slot_parity(round));
  if (request >= block.args.num_requests) return;
  if ((base_misalignment(block, request, round_step(round)) & 3u) == 0) return;
  shift_line(block.shared.base[slot][column]);
  warp_arrive(&block.shared.base_landed[slot]);
}

// Where every line is copied whole and none must be shifted, a lane asks for each column: the
// same as begin_line, all at once. Nothing is left to finish then.
__device__ __forceinline__ bool simple(const Block& block) {
  return (line_starts(block) & 3u) == 0 && (more_follow(block) || tidy(block));
}

__device__ __forceinline__ void begin_lines(const Block& block, int round) {
  const int column = block.column(lane_index()), slot = round_slot(round);
  const int request = request_of(round, column);
  if (lane_index() >= SERVED) return;
  Barrier* landed = &block.shared.base_landed[slot];
  if (request < block.args.num_requests) {
    const u32 misaligned = base_misalignment(block, request, round_step(round));
    const u32 bytes = (misaligned + block.rows_here() * BASE_BYTES + 15u) & ~15u;
    barrier_expect(landed, bytes);
    if (bytes > 0)
      bulk_copy(block.shared.base[slot][column],
                base_source(block, request, round_step(round)) - misaligned, bytes, landed);
  }
  for (u32 i = 0; i < WARP_ARRIVALS; ++i) barrier_arrive(landed);
}

}  // namespace wts
