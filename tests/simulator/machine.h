// What the kernel's instructions are imitated with, whatever the plan: fibers, their meetings,
// barriers and copies, and the intrinsics of CUDA. Compiled once for all plans, as a header and as
// machine.cpp. Fibers take turns in an order drawn from a seed, bulk copies land late, shared
// memory starts as garbage, and every access of global memory is checked against what the launch
// was given.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__

using std::fmaf;
inline float fmaxf(float a, float b) { return a > b || b != b ? a : b; }
using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct uint2 {
  unsigned x, y;
};
struct int2 {
  int x, y;
};

// ---- fibers ------------------------------------------------------------------------------------

namespace sim {

constexpr int LANES = 32;

struct MBarrier {
  int arrivals = 0, missing = 0;
  long long bytes = 0;
  unsigned phase = 0;
  void settle() {
    if (missing == 0 && bytes == 0) {
      ++phase;
      missing = arrivals;
    }
  }
};

struct Packet {  // what a lane brings to a meeting
  unsigned word[12];
};

struct Meeting {
  int come = 0;
  unsigned generation = 0;
  Packet packets[2][LANES];
};

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  MBarrier* barrier;
  int delay;
};

struct TensorWork {  // a product of tcgen05, or a commit of those before it
  MBarrier* barrier;  // null for a product
  int delay;
  unsigned sums, a;
  unsigned long long a_matrix, b_matrix;
  bool a_in_tensor, add;
};

struct Block {
  std::vector<unsigned> tensor = std::vector<unsigned>(128 * 512);  // [lane][column]
  unsigned tensor_columns = 0;  // allocated
  std::deque<TensorWork> tensor_work;
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;
  std::map<const void*, MBarrier> barriers;
  std::vector<Meeting> warps;
  std::vector<Copy> copies;
  struct Vote {
    int come = 0;
    unsigned generation = 0;
    bool any[2] = {false, false};
  } votes[4];
  struct Named {
    int come = 0;
    unsigned generation = 0;
  } named[16];
  int at_barrier = 0;
  unsigned barrier_generation = 0;
};

struct Product {  // of a warpgroup, begun but not yet done: what one lane contributes
  int* sums;
  int blocks;
  bool first;
  signed char rows[2][32];
  unsigned long long a, b;  // descriptors; a is 0 where the rows were in registers
  int group;
};

struct Piece {  // a copy of 16 bytes that a thread waits for itself
  unsigned char* to;
  const void* from;
  int group;
};

struct Fiber {
  bool done = false, started = false;
  unsigned seen = 0;
  const unsigned* watched = nullptr;  // no turn as long as this is still `seen`
  std::vector<Piece> pieces;
  int piece_group = 0;
  std::vector<Product> products;
  int product_group = 0;
  jmp_buf place;  // where it goes on
  std::unique_ptr<char[]> stack;
  Block* block = nullptr;
  int block_index = 0, thread = 0;
};

struct Range {
  const char* first;
  long long bytes;
};

extern Fiber* current;
extern std::mt19937 random_order;
extern unsigned long long now;

// The next fiber's turn.
void yield();
// Turns of the others, until this is not what it was.
void wait_while(const unsigned& watched, unsigned seen);
// Ends the launch, with what is said of it.
void fail(const char* what, const void* where, unsigned bytes);
void check_global(const void* pointer, unsigned bytes, unsigned alignment);
unsigned char* check_shared(unsigned address, unsigned bytes, unsigned alignment);
// All lanes of the warp bring a packet and get everybody's.
const Packet* meet(const Packet& mine);
MBarrier& barrier(const void* pointer);

struct Launch {
  // The first `absent` blocks never run, as if the GPU had no room for them.
  int blocks, absent, threads;
  size_t shared_bytes;
  void (*kernel)();
  void (*tensor_work)(Block&);
  const Range* ranges;
  int num_ranges;
  unsigned seed;
  long long most_turns;
};

// Returns 0 when every thread ended; 1 on a bad access; 2 when nothing ended for too long.
int run(const Launch& launch, char* message);

inline const Packet* meet(unsigned word) {
  Packet packet{};
  packet.word[0] = word;
  return meet(packet);
}

struct Index {
  unsigned x;
};

}  // namespace sim

#define threadIdx (sim::Index{static_cast<unsigned>(sim::current->thread)})
#define blockIdx (sim::Index{static_cast<unsigned>(sim::current->block_index)})

inline void __syncwarp() { sim::meet(0u); }

inline void __syncthreads() {
  sim::Block& block = *sim::current->block;
  const unsigned generation = block.barrier_generation;
  if (++block.at_barrier == static_cast<int>(block.warps.size()) * sim::LANES) {
    block.at_barrier = 0;
    ++block.barrier_generation;
  } else {
    sim::wait_while(block.barrier_generation, generation);
  }
}

inline bool __any_sync(unsigned, bool value) {
  const sim::Packet* packets = sim::meet(value);
  bool any = false;
  for (int lane = 0; lane < sim::LANES; ++lane) any |= packets[lane].word[0] != 0;
  return any;
}

inline unsigned __ballot_sync(unsigned, bool value) {
  const sim::Packet* packets = sim::meet(value);
  unsigned lanes = 0;
  for (int lane = 0; lane < sim::LANES; ++lane) lanes |= (packets[lane].word[0] != 0) << lane;
  return lanes;
}

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) {
  return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline int __ffs(int value) { return __builtin_ffs(value); }

inline int __shfl_sync(unsigned, int value, int lane) {
  return static_cast<int>(sim::meet(static_cast<unsigned>(value))[lane & 31].word[0]);
}

template <typename T>
T bits_as(unsigned bits) {
  T value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline int __float_as_int(float value) { return static_cast<int>(__float_as_uint(value)); }
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline float __int_as_float(int bits) { return bits_as<float>(static_cast<unsigned>(bits)); }

// The GPU's arithmetic makes one NaN only.
inline float one_nan(float value) { return value == value ? value : __uint_as_float(0x7fffffffu); }
inline float __fmul_rn(float a, float b) { return one_nan(a * b); }
inline float __fadd_rn(float a, float b) { return one_nan(a + b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
// A NaN stays.
inline float at_most(float x, float limit) { return x > limit ? limit : x; }
inline float at_least(float x, float limit) { return x < limit ? limit : x; }
// As far off as the device's may be.
inline float approximate_reciprocal(float value) { return std::nextafter(1.0f / value, 0.0f); }
inline float __int2float_rn(int value) { return static_cast<float>(value); }
inline float __uint2float_rn(unsigned value) { return static_cast<float>(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32) | low) >> shift);
}
inline int __ldg(const int* pointer) {
  sim::check_global(pointer, 4, 4);
  return *pointer;
}
inline unsigned atomicAdd(unsigned* pointer, unsigned value) {
  const unsigned old = *pointer;
  *pointer += value;
  return old;
}
inline unsigned atomicCAS(unsigned* pointer, unsigned compare, unsigned value) {
  const unsigned old = *pointer;
  if (old == compare) *pointer = value;
  return old;
}
inline long long clock64() { return static_cast<long long>(++sim::now); }
