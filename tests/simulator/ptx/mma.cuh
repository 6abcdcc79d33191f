// The matrix product of a warp.
#pragma once
#include "machine.h"
#include "ptx/base.cuh"

namespace wts {

// m16n8k32, row by column: lane 4 g + t holds rows g, g + 8 and bytes 4 t.., 16 + 4 t.. of A, bytes
// 4 t.., 16 + 4 t.. of column g of B, and columns 2 t, 2 t + 1 of the result's rows g, g + 8. What
// the products add to these four, of words of COUNT elements each.
template <int COUNT, typename Element>
inline auto products(const u32* a, u32 b0, u32 b1, Element element) {
  sim::Packet mine{};
  std::copy(a, a + 4, mine.word);
  mine.word[4] = b0;
  mine.word[5] = b1;
  const sim::Packet* all = sim::meet(mine);
  const int group = lane_index() / 4, t = lane_index() % 4;
  std::array<decltype(element(0u, 0)), 4> sums{};
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, column = 2 * t + i % 2;
    for (int part = 0; part < 4; ++part)
      for (int k = 0; k < COUNT; ++k) {
        const u32* left = all[4 * group + part].word;
        const u32* right = all[4 * column + part].word;
        sums[i] += element(left[half], k) * element(right[4], k);
        sums[i] += element(left[2 + half], k) * element(right[5], k);
      }
  }
  return sums;
}

inline void mma_s8(int (&d)[4], const u32* a, u32 b0, u32 b1) {
  const auto sums = products<4>(a, b0, b1, [](u32 word, int index) {
    return static_cast<int>(static_cast<signed char>(word >> (8 * index)));
  });
  for (int i = 0; i < 4; ++i) d[i] += sums[i];
}
inline void mma_s8_first(int (&d)[4], const u32* a, u32 b0, u32 b1) {
  std::fill(d, d + 4, 0);
  mma_s8(d, a, b0, b1);
}

// m16n8k16 of bf16: the same words of two elements each. 16 products are added to the sum in fp64,
// which is exact but where they are very different, and rounded once: as the emulator does.
inline void mma_bf16(float (&d)[4], const u32* a, u32 b0, u32 b1) {
  const auto sums = products<2>(a, b0, b1, [](u32 word, int index) {
    return static_cast<double>(bits_as<float>(index ? word & 0xffff0000u : word << 16));
  });
  for (int i = 0; i < 4; ++i)
    d[i] = one_nan(static_cast<float>(static_cast<double>(d[i]) + sums[i]));
}
inline void mma_bf16_first(float (&d)[4], const u32* a, u32 b0, u32 b1) {
  std::fill(d, d + 4, 0.0f);
  mma_bf16(d, a, b0, b1);
}

}  // namespace wts
