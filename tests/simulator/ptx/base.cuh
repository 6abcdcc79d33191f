// Stands in for csrc/ptx on a CPU: each CUDA thread is a fiber, each warp instruction a meeting of
// its 32 lanes, each barrier and copy a few lines of plain C++. The rest of csrc is compiled as it
// is. Fibers take turns in an order drawn from a seed, bulk copies land late, shared memory starts
// as garbage, and every access of global memory is checked against what the launch was given.
#pragma once
#include "machine.h"
#include "types.cuh"

namespace wts {

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

inline void made_here(u32&) {}
template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}

}  // namespace wts
