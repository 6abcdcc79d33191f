// Where a latent lies in shared memory, as the product wants it.
#pragma once
#include "block.cuh"
#include "ptx/memory.cuh"
#include "tiles.cuh"

namespace wts {

template <int BYTES, int WORDS>
__device__ __forceinline__ void store_bytes(u32 address, const u32 (&word)[WORDS]) {
  if constexpr (BYTES == 16) store_shared_16(address, word);
  if constexpr (BYTES == 8) store_shared_8(address, word);
  if constexpr (BYTES == 4) store_shared_4(address, word[0]);
  if constexpr (BYTES == 2) store_shared_2(address, word[0]);
}

// Where a 16-byte piece of a latent goes: piece 2 s + h of a plane is half h of slab s.
__device__ __forceinline__ u32 latent_place(const Block& block, int slot, int column, int piece) {
  const u32 latents = shared_address(block.shared.latent[slot]);
  if constexpr (!plan::WARPGROUPS)
    return latents + column * plan::LATENT_LINE_BYTES + piece * 16;
  // Core matrices [slab][k half][block][operand column][16 bytes]; columns are two a request.
  const int slab = piece >> 2, plane = (piece >> 1) & 1, half = piece & 1;
  return latents + ((slab * 2 + half) * plan::COLUMN_BLOCKS + column / 4) * 128 +
         (2 * (column % 4) + plane) * 16;
}

// Where tcgen05 reads a word of a latent, by its place among the latent's bytes, or its plane's.
// Rows of 16 bytes, one for each operand column (product/mma.cuh), in the order in which weights
// are packed (pack.py): of a slab of 32 bytes, words 0, 2, 4 and 6, then the others.
__device__ __forceinline__ u32 operand_place(const Block& block, int slot, int column, int plane,
                                             int byte) {
  const int word = byte % 32 / 4, chunk = byte / 32 * 2 + word % 2;
  const int odd = plan::QUANTISED ? plane : column / 4;
  const int row = plan::OPERAND_LEAD + plan::REQUEST_COLUMNS * (column % 4) + odd;
  return shared_address(block.shared.latent[slot]) + (chunk * plan::OPERAND_ROWS + row) * 16 +
         word / 2 * 4;
}

// Puts a 16-byte piece of a latent, as its table row has it, where it is read.
__device__ __forceinline__ void put_piece(const Block& block, int slot, int column, int piece,
                                          const u32 (&words)[4]) {
  if constexpr (ASYNC_TILES == 0) {
    store_shared_16(latent_place(block, slot, column, piece), words);
  } else {
    const int byte = plan::QUANTISED ? piece / 4 * 32 + piece % 2 * 16 : piece * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 pair[2] = {words[i], words[i + 2]};
      store_shared_8(operand_place(block, slot, column, piece / 2 % 2, byte + 4 * i), pair);
    }
  }
}

// Puts BYTES of a latent, or of one of its planes, there, from byte `start` on.
template <int BYTES, int WORDS>
__device__ __forceinline__ void put_run(const Block& block, int slot, int column, int plane,
                                        int start, const u32 (&words)[WORDS]) {
  if constexpr (ASYNC_TILES > 0) {
    constexpr int PART = BYTES < 4 ? BYTES : 4;
#pragma unroll
    for (int i = 0; i < BYTES / PART; ++i) {
      const u32 word[1] = {words[i]};
      store_bytes<PART>(operand_place(block, slot, column, plane, start + 4 * i) + start % 4, word);
    }
  } else if constexpr (plan::QUANTISED) {
    const int piece = start / 32 * 4 + start / 16 % 2;
    store_bytes<BYTES>(latent_place(block, slot, column, piece + 2 * plane) + start % 16, words);
  } else {
    store_bytes<BYTES>(latent_place(block, slot, column, 0) + start, words);
  }
}

// Where tensor cores read latents themselves, they see what was stored before.
__device__ __forceinline__ void show_latents() {
  if constexpr (plan::WARPGROUPS || ASYNC_TILES > 0) fence_async_proxy();
}

}  // namespace wts
