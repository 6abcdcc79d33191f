// Tensor memory: 128 lanes of 512 words. Products and commits are done late, one after the other;
// until then sums are garbage and operands are not read.
#pragma once
#include "machine.h"
#include "plan_constants.h"
#include "ptx/base.cuh"

namespace wts {

inline u32* tensor_cell(sim::Block& block, u32 lane, u32 column) {
  if (lane >= 128 || column >= block.tensor_columns)
    sim::fail("outside tensor memory", reinterpret_cast<void*>(lane << 16 | column), 4);
  return &block.tensor[lane * 512 + column];
}
inline void tensor_allocate(u32* begin, u32 columns) {
  sim::meet(columns);
  if (lane_index() != 0) return;
  sim::Block& block = *sim::current->block;
  const bool power = columns >= 32 && columns <= 512 && (columns & (columns - 1)) == 0;
  if (!power || block.tensor_columns != 0) sim::fail("not to be allocated", begin, columns);
  block.tensor_columns = columns;
  for (u32& word : block.tensor) word = static_cast<u32>(sim::random_order());
  *begin = 0;
}
inline void tensor_release(u32 begin, u32 columns) {
  sim::meet(columns);
  if (lane_index() != 0) return;
  sim::Block& block = *sim::current->block;
  if (begin != 0 || columns != block.tensor_columns || !block.tensor_work.empty())
    sim::fail("not to be released", nullptr, columns);
  block.tensor_columns = 0;
}
// The 16 lanes from where a warp may begin (9.7.16.8.1).
inline u32 tensor_lane(u32 place) {
  const u32 lane = place >> 16;
  if (lane % 16 != 0 || lane / 32 != static_cast<u32>(warp_index() % 4))
    sim::fail("a lane that is another warp's", reinterpret_cast<void*>(place), 16);
  return lane;
}
inline void tensor_store(u32 place, const u32 (&v)[4]) {
  const u32 lane = tensor_lane(place) + lane_index() / 4,
            column = (place & 0xffff) + lane_index() % 4;
  for (u32 i = 0; i < 4; ++i)
    *tensor_cell(*sim::current->block, lane + 8 * (i % 2), column + 4 * (i / 2)) = v[i];
}
template <typename Sum>
void tensor_load(Sum (&v)[4], u32 place) {
  const u32 lane = tensor_lane(place) + lane_index() / 4;
  const u32 column = (place & 0xffff) + lane_index() % 4 * 2;
  for (u32 i = 0; i < 4; ++i)
    std::memcpy(&v[i], tensor_cell(*sim::current->block, lane + 8 * (i / 2), column + i % 2), 4);
}
inline void tensor_wait_stores() {}
template <typename Sum, int COUNT>
void tensor_wait_loads(Sum (&)[COUNT][4]) {}
inline void tensor_fence_before() {}
inline void tensor_fence_after() {}
inline bool elected() { return lane_index() == 0; }
inline void begin_tensor_work(sim::TensorWork work) {
  sim::Block& block = *sim::current->block;
  constexpr u32 columns = (plan::INSTRUCTION_DESCRIPTOR >> 17 & 0x3f) * 8;
  if (work.barrier == nullptr && !work.add)
    for (u32 lane = 0; lane < 128; ++lane)
      for (u32 column = 0; column < columns; ++column)
        *tensor_cell(block, lane, work.sums + column) = static_cast<u32>(sim::random_order());
  work.delay = static_cast<int>(sim::random_order() % 4 == 0);
  block.tensor_work.push_back(work);
}
inline void tensor_product(u32 sums, u32 a, u64 b, bool add) {
  begin_tensor_work({nullptr, 0, sums, a, 0, b, true, add});
}
inline void tensor_product(u32 sums, u64 a, u64 b, bool add) {
  begin_tensor_work({nullptr, 0, sums, 0, a, b, false, add});
}
inline void tensor_commit(u64* pointer) {
  begin_tensor_work({&sim::barrier(pointer), 0, 0, 0, 0, 0, false, false});
}
// 16 bytes of a row of an operand in shared memory: core matrices of eight rows, no swizzle
// (9.7.16.4.1).
inline const signed char* tensor_row(sim::Block& block, u64 descriptor, int row, int half) {
  const auto field = [&](int low) { return static_cast<u32>(descriptor >> low & 0x3fff) << 4; };
  const u32 address = field(0) + half * field(16) + row / 8 * field(32) + row % 8 * 16;
  if (descriptor >> 46 != 1 || address + 16 > block.memory.size() - 128)
    sim::fail("no operand", reinterpret_cast<void*>(address), 16);
  return reinterpret_cast<const signed char*>(block.shared + address);
}
inline void do_product(sim::Block& block, const sim::TensorWork& work) {
  constexpr u32 descriptor = plan::INSTRUCTION_DESCRIPTOR;
  constexpr int rows = (descriptor >> 24 & 0x1f) * 16, columns = (descriptor >> 17 & 0x3f) * 8;
  // Dense, K-major, s8 x s8 in s32 or bf16 x bf16 in f32.
  constexpr u32 types = descriptor & 0x1ffff, sums = plan::QUANTISED ? 2 : 1;
  static_assert(types == (sums << 4 | 1u << 7 | 1u << 10) && rows == 128 && columns % 16 == 0);
  for (int row = 0; row < rows; ++row) {
    signed char a[32];
    for (u32 word = 0; word < 8 && work.a_in_tensor; ++word)
      std::memcpy(a + 4 * word, tensor_cell(block, row, work.a + word), 4);
    for (int half = 0; half < 2 && !work.a_in_tensor; ++half)
      std::memcpy(a + 16 * half, tensor_row(block, work.a_matrix, row, half), 16);
    for (int column = 0; column < columns; ++column) {
      signed char b[32];
      for (int half = 0; half < 2; ++half)
        std::memcpy(b + 16 * half, tensor_row(block, work.b_matrix, column, half), 16);
      u32* cell = tensor_cell(block, row, work.sums + column);
      const u32 before = work.add ? *cell : 0;
      if constexpr (plan::QUANTISED) {
        int sum = static_cast<int>(before);
        for (int k = 0; k < 32; ++k) sum += a[k] * b[k];
        *cell = static_cast<u32>(sum);
      } else {  // summed as mma_bf16 does
        const auto element = [](const signed char* bytes) {
          u16 bits;
          std::memcpy(&bits, bytes, 2);
          return static_cast<double>(bits_as<float>(static_cast<u32>(bits) << 16));
        };
        double sum = 0;
        for (int k = 0; k < 32; k += 2) sum += element(a + k) * element(b + k);
        *cell = __float_as_uint(
            one_nan(static_cast<float>(static_cast<double>(bits_as<float>(before)) + sum)));
      }
    }
  }
}
inline void do_tensor_work(sim::Block& block) {
  while (!block.tensor_work.empty() && block.tensor_work.front().delay-- <= 0) {
    const sim::TensorWork work = block.tensor_work.front();
    block.tensor_work.pop_front();
    if (work.barrier == nullptr) {
      do_product(block, work);
    } else {
      --work.barrier->missing;
      work.barrier->settle();
    }
  }
}

}  // namespace wts
