// Barriers and votes.
#pragma once
#include "machine.h"
#include "ptx/base.cuh"

namespace wts {

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

}  // namespace wts
