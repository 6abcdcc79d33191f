// Stands in for csrc/ptx.cuh on a CPU: each CUDA thread is a fiber, each warp instruction a meeting
// of its 32 lanes, each barrier and copy a few lines of plain C++. The rest of csrc is compiled as
// it is. Fibers take turns in an order drawn from a seed, bulk copies land late, shared memory
// starts as garbage, and every access of global memory is checked against what the launch was
// given.
#pragma once
#include "machine.h"
#include "plan_constants.h"

namespace wts {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

inline u32 clock_low() {
  sim::yield();
  return static_cast<u32>(sim::now += 100);
}
inline u64 global_timer() { return sim::now += 1000; }
inline void* dynamic_shared_memory() { return sim::current->block->shared; }
inline u32 shared_address(const void* pointer) {
  return static_cast<u32>(static_cast<const u8*>(pointer) - sim::current->block->shared);
}
inline int lane_index() { return sim::current->thread % sim::LANES; }
inline int warp_index() { return sim::current->thread / sim::LANES; }

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

inline float fused(float a, float b, float c) { return one_nan(std::fma(a, b, c)); }
// As far from the truth as the real one may be.
inline float fast_log2(float value) {
  const float exact = std::log2(value), wrong = (sim::random_order() % 3 - 1.0f) * 2.3e-7f;
  if (!std::isfinite(exact)) return exact;
  return value > 0.5f && value < 2.0f ? exact + wrong : exact * (1.0f + wrong);
}

inline bool warpgroup_any(int warpgroup, bool value) {
  auto& vote = sim::current->block->votes[warpgroup];
  const unsigned generation = vote.generation;
  vote.any[generation & 1] |= value;
  if (++vote.come == 128) {
    vote.come = 0;
    ++vote.generation;
    vote.any[vote.generation & 1] = false;
  } else {
    sim::wait_while(vote.generation, generation);
  }
  return vote.any[generation & 1];
}

inline void named_barrier(int name, int threads) {
  auto& barrier = sim::current->block->named[name];
  const unsigned generation = barrier.generation;
  if (++barrier.come == threads) {
    barrier.come = 0;
    ++barrier.generation;
  } else {
    sim::wait_while(barrier.generation, generation);
  }
}

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

// ---- tensor memory: 128 lanes of 512 words. Products and commits are done late, one after the
// other; until then sums are garbage and operands are not read.

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

inline int lane_across(int value, int bits) {
  return __shfl_sync(0xffffffffu, value, lane_index() ^ bits);
}
template <int COUNT, int STRIDE>
int strided_max(int value) {
  for (int bits = STRIDE; bits < COUNT * STRIDE; bits *= 2)
    value = std::max(value, lane_across(value, bits));
  return value;
}
inline void load_global_16(u32 (&v)[4], const void* pointer) {
  sim::check_global(pointer, 16, 16);
  std::memcpy(v, pointer, 16);
}
inline void load_global_again_16(u32 (&v)[4], const void* pointer) { load_global_16(v, pointer); }
template <int WORDS>
void load_global_words(u32 (&v)[WORDS], const void* pointer) {
  sim::check_global(pointer, 4 * WORDS, 4 * WORDS);
  std::memcpy(v, pointer, 4 * WORDS);
}
inline u32 load_global_4(const void* pointer) {
  sim::check_global(pointer, 4, 4);
  return *static_cast<const u32*>(pointer);
}
inline u32 load_global_2(const void* pointer) {
  sim::check_global(pointer, 2, 2);
  return *static_cast<const u16*>(pointer);
}
inline void load_shared_16(u32 (&v)[4], u32 address) {
  std::memcpy(v, sim::check_shared(address, 16, 16), 16);
}
inline u32 load_shared_4(u32 address) {
  u32 value;
  std::memcpy(&value, sim::check_shared(address, 4, 4), 4);
  return value;
}
inline void load_shared_8(u32 (&v)[2], u32 address) {
  std::memcpy(v, sim::check_shared(address, 8, 8), 8);
}
inline void store_shared_16(u32 address, const u32 (&v)[4]) {
  std::memcpy(sim::check_shared(address, 16, 16), v, 16);
}
inline void store_shared_2(u32 address, u32 value) {
  const u16 half = static_cast<u16>(value);
  std::memcpy(sim::check_shared(address, 2, 2), &half, 2);
}
inline void store_shared_4(u32 address, u32 value) {
  std::memcpy(sim::check_shared(address, 4, 4), &value, 4);
}
inline void store_shared_8(u32 address, const u32 (&v)[2]) {
  std::memcpy(sim::check_shared(address, 8, 8), v, 8);
}
template <typename Word>
Word load_relaxed(const Word* pointer) {
  sim::check_global(pointer, sizeof(Word), sizeof(Word));
  return *pointer;
}
template <typename Word>
void store_relaxed(Word* pointer, Word value) {
  sim::check_global(pointer, sizeof(Word), sizeof(Word));
  *pointer = value;
}
template <typename Word, size_t COUNT>
void load_relaxed_16(Word (&v)[COUNT], const Word* pointer) {
  sim::check_global(pointer, 16, 16);
  for (size_t i = 0; i < COUNT; ++i) v[i] = pointer[i];
}
inline void prefetch_l2(const void* pointer) { sim::check_global(pointer, 1, 1); }
inline void prefetch_l2(const void* pointer, u32 bytes) {
  sim::check_global(pointer, bytes, 16);
  if (bytes % 16 != 0) sim::fail("prefetch of odd size", pointer, bytes);
}

inline void made_here(u32&) {}

inline int warp_max(int value) {
  const sim::Packet* all = sim::meet(static_cast<u32>(value));
  int most = static_cast<int>(all[0].word[0]);
  for (int lane = 1; lane < sim::LANES; ++lane)
    most = max(most, static_cast<int>(all[lane].word[0]));
  return most;
}
inline u32 warp_max_unsigned(u32 value) {
  const sim::Packet* all = sim::meet(value);
  u32 most = all[0].word[0];
  for (int lane = 1; lane < sim::LANES; ++lane) most = max(most, all[lane].word[0]);
  return most;
}

inline u32 warp_add(u32 value) {
  const sim::Packet* all = sim::meet(value);
  u32 sum = 0;
  for (int lane = 0; lane < sim::LANES; ++lane) sum += all[lane].word[0];
  return sum;
}
// As far off as the device's may be.
inline float approximate_root(float value) { return std::nextafter(std::sqrt(value), 0.0f); }
inline u32 round_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  if (value != value) return 0x7fffu;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline u32 round_bf16x2(float low, float high) {
  return round_bf16(low) | (round_bf16(high) << 16);
}
inline u32 plus_zero_bf16x2(u32 pair) {
  const auto half = [](u32 bits) {
    return round_bf16(__fadd_rn(__uint_as_float(bits << 16), 0.0f));
  };
  return half(pair & 0xffffu) | (half(pair >> 16) << 16);
}
inline u32 signs_of_halves(u32 pair) {
  return (pair & 0x8000u ? 0xffffu : 0u) | (pair & 0x80000000u ? 0xffff0000u : 0u);
}
inline float half_to_float(u32 bits) {
  const u16 narrow = static_cast<u16>(bits);
  _Float16 value;
  std::memcpy(&value, &narrow, 2);
  return static_cast<float>(value);
}
inline u32 round_half(float value) {
  const _Float16 narrow = static_cast<_Float16>(value);
  u16 bits;
  std::memcpy(&bits, &narrow, 2);
  return value != value ? 0x7fffu : bits;
}

inline void barrier_init(u64* pointer, u32 arrivals) {
  sim::barrier(pointer) = {static_cast<int>(arrivals), static_cast<int>(arrivals), 0, 0};
}
inline void barrier_arrive(u64* pointer) {
  sim::MBarrier& barrier = sim::barrier(pointer);
  if (barrier.missing == 0) sim::fail("one arrival too many", pointer, 0);
  --barrier.missing;
  barrier.settle();
}
inline u32 count_shared(u32* counter) { return (*counter)++; }
inline void barrier_expect(u64* pointer, u32 bytes) { sim::barrier(pointer).bytes += bytes; }
inline void barrier_arrive_expect(u64* pointer, u32 bytes) {
  barrier_expect(pointer, bytes);
  barrier_arrive(pointer);
}
inline void barrier_wait(u64* pointer, u32 parity) {
  const unsigned& phase = sim::barrier(pointer).phase;
  while ((phase & 1u) == parity) sim::wait_while(phase, phase);
}
inline void fence_barrier_init() {}
inline void copy_16(u32 shared, const void* global) {
  sim::check_global(global, 16, 16);
  sim::current->pieces.push_back(
      {sim::check_shared(shared, 16, 16), global, sim::current->piece_group});
}
inline void commit_copies() { ++sim::current->piece_group; }
// A piece lands when it is waited for; before that, what it will overwrite is garbage.
template <int PENDING>
void wait_copies() {
  auto& pieces = sim::current->pieces;
  size_t done = 0;
  for (; done < pieces.size() && pieces[done].group < sim::current->piece_group - PENDING; ++done)
    std::memcpy(pieces[done].to, pieces[done].from, 16);
  pieces.erase(pieces.begin(), pieces.begin() + static_cast<long>(done));
}
inline void fence_async_proxy() {}
inline void bulk_copy(void* shared, const void* global, u32 bytes, u64* pointer) {
  sim::check_global(global, bytes, 16);
  sim::check_shared(shared_address(shared), bytes, 16);
  if (bytes % 16 != 0) sim::fail("bulk copy of odd size", global, bytes);
  const int delay = static_cast<int>(sim::random_order() % 4);
  sim::current->block->copies.push_back({shared, global, bytes, &sim::barrier(pointer), delay});
}
template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}

}  // namespace wts
