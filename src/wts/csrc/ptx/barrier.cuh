// Barriers in shared memory (9.7.13.15), and a block's named ones.
#pragma once
#include "ptx/base.cuh"

namespace wts {

__device__ __forceinline__ void barrier_init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Release at block scope: what this thread wrote before is seen by whoever waits for the phase.
__device__ __forceinline__ void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// One arrival that also announces bytes a bulk copy will deliver.
__device__ __forceinline__ void barrier_arrive_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Announces bytes without arriving: the arrival comes when the rest of the slot is written.
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Acquire at block scope. Bounded by construction: every arrival comes from a warp of this block,
// and no warp waits without bound on another block (exchange/all_to_all.cuh).
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// 9.7.13.5, acquire and release at block scope: counts up, and gives the count before.
__device__ __forceinline__ u32 count_shared(u32* counter) {
  u32 before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "r"(shared_address(counter))
               : "memory");
  return before;
}

// Makes mbarrier.init visible to the asynchronous proxy before the first bulk copy (9.7.13.15.7).
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// 9.7.13.1: whether any of a warpgroup's 128 threads says so; barrier 0 is __syncthreads.
__device__ __forceinline__ bool warpgroup_any(int warpgroup, bool value) {
  u32 any;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\t"
      "barrier.cta.red.or.pred q, %2, 128, p;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(static_cast<u32>(value)), "r"(warpgroup + 1)
      : "memory");
  return any != 0;
}

// 9.7.13.1: waits until `threads` threads of this block have come to the named barrier.
__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace wts
