// The matrix product of a warpgroup.
#pragma once
#include "machine.h"
#include "ptx/base.cuh"

namespace wts {

// A product of a warpgroup is done when it is waited for, with what its operands in shared memory
// hold then; until it is, its sums are garbage.
inline u64 operand_descriptor(u32 address, u32 along_k, u32 along_rows) {
  return static_cast<u64>(address >> 4) | static_cast<u64>(along_k >> 4) << 16 |
         static_cast<u64>(along_rows >> 4) << 32;
}
// All lanes have to come here, with the same descriptor.
inline u64 uniform_descriptor(u64 descriptor) {
  const u32 low = static_cast<u32>(__shfl_sync(0xffffffffu, static_cast<int>(descriptor), 0));
  if (low != static_cast<u32>(descriptor)) sim::fail("a descriptor of another lane", nullptr, low);
  return descriptor;
}
inline const signed char* operand_row(u64 descriptor, int row, int half) {
  const u32 address = static_cast<u32>(descriptor & 0x3fff) << 4;
  const u32 along_k = static_cast<u32>((descriptor >> 16) & 0x3fff) << 4;
  const u32 along_rows = static_cast<u32>((descriptor >> 32) & 0x3fff) << 4;
  return reinterpret_cast<const signed char*>(sim::check_shared(
      address + half * along_k + row / 8 * along_rows + row % 8 * 16, 16, 16));
}
inline void warpgroup_fence() {}
inline void warpgroup_commit() { ++sim::current->product_group; }
template <int BLOCKS>
void begin_product(int (&d)[BLOCKS][4], bool first, u64 a, u64 b, const u32* words) {
  sim::Product product{&d[0][0], BLOCKS, first, {}, a, b, sim::current->product_group};
  if (words != nullptr) {
    sim::Packet mine{};
    std::copy(words, words + 4, mine.word);
    const sim::Packet* all = sim::meet(mine);
    for (int row = 0; row < 2; ++row)
      for (int half = 0; half < 2; ++half)
        for (int t = 0; t < 4; ++t)
          std::memcpy(&product.rows[row][16 * half + 4 * t],
                      &all[lane_index() / 4 * 4 + t].word[2 * half + row], 4);
  }
  for (int i = 0; i < 4 * BLOCKS; ++i)
    if (first) (&d[0][0])[i] = static_cast<int>(sim::random_order());
  sim::current->products.push_back(product);
}
template <bool FIRST, int BLOCKS>
void wgmma_s8(int (&d)[BLOCKS][4], const u32* a, u64 b) {
  begin_product(d, FIRST, 0, b, a);
}
template <bool FIRST, int BLOCKS>
void wgmma_s8(int (&d)[BLOCKS][4], u64 a, u64 b) {
  begin_product(d, FIRST, a, b, nullptr);
}
template <int PENDING>
void warpgroup_wait() {
  auto& products = sim::current->products;
  size_t done = 0;
  for (; done < products.size(); ++done) {
    sim::Product& product = products[done];
    if (product.group >= sim::current->product_group - PENDING) break;
    const int lane = lane_index(), warp = warp_index() % 4;
    for (int block = 0; block < product.blocks; ++block)
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2, column = 8 * block + 2 * (lane % 4) + i % 2;
        int sum = product.first ? 0 : product.sums[4 * block + i];
        for (int k = 0; k < 32; ++k) {
          const int left =
              product.a == 0
                  ? product.rows[row][k]
                  : operand_row(product.a, 16 * warp + 8 * row + lane / 4, k / 16)[k % 16];
          sum += left * operand_row(product.b, column, k / 16)[k % 16];
        }
        product.sums[4 * block + i] = sum;
      }
  }
  products.erase(products.begin(), products.begin() + static_cast<long>(done));
}

}  // namespace wts
