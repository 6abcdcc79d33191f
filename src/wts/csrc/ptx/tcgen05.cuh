// Tensor memory and its matrix product (9.7.16).
#pragma once
#include "plan_constants.h"
#include "ptx/base.cuh"

namespace wts {

#if WTS_TENSOR
#if WTS_QUANTISED
#define WTS_TENSOR_KIND "i8"
#else
#define WTS_TENSOR_KIND "f16"
#endif
// 9.7.16.7.1, by one warp: takes columns, a power of two, and writes where they begin to shared
// memory.
__device__ __forceinline__ void tensor_allocate(u32* begin, u32 columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                   shared_address(begin)),
               "r"(columns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

// By the same warp, before the block ends.
__device__ __forceinline__ void tensor_release(u32 begin, u32 columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(begin), "r"(columns)
               : "memory");
}

// 9.7.16.8.2: a warp's fragment, as mma.sync has it, to 16 lanes and eight columns.
__device__ __forceinline__ void tensor_store(u32 place, const u32 (&v)[4]) {
  asm volatile("tcgen05.st.sync.aligned.16x128b.x2.b32 [%0], {%1, %2, %3, %4};" ::"r"(place),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// 9.7.16.8.5: waits for all of the thread's stores.
__device__ __forceinline__ void tensor_wait_stores() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

// 9.7.16.8.1: 16 lanes of eight columns, as mma.sync leaves its sums.
__device__ __forceinline__ void tensor_load(int (&v)[4], u32 place) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x1.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(place));
}

__device__ __forceinline__ void tensor_load(float (&v)[4], u32 place) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x1.b32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(place));
}

// No use of a sum moves in front of what comes before.
__device__ __forceinline__ void pin(int& sum) { asm volatile("" : "+r"(sum)); }
__device__ __forceinline__ void pin(float& sum) { asm volatile("" : "+f"(sum)); }

// 9.7.16.8.5: waits for all of the thread's loads.
template <typename Sum, int COUNT>
__device__ __forceinline__ void tensor_wait_loads(Sum (&v)[COUNT][4]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 4 * COUNT; ++i) pin(v[i / 4][i % 4]);
}

// 9.7.16.11.1: around whatever orders threads, so that it orders their accesses of tensor memory,
// too.
__device__ __forceinline__ void tensor_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tensor_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// 9.7.13.12: true in one lane of a whole warp.
__device__ __forceinline__ bool elected() {
  u32 one;
  asm volatile(
      "{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(one));
  return one != 0;
}

// 9.7.16.10.9: D = A * B, or added to D: 128 rows and 16 columns of 32 bytes, s8 in int32 or bf16
// in fp32. D in tensor memory, A there or in shared memory; what descriptors say is in
// wts/tensor_memory.py. By one thread.
__device__ __forceinline__ void tensor_product(u32 sums, u32 a, u64 b, bool add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %4, 0;\n\t"
      "tcgen05.mma.cta_group::1.kind::" WTS_TENSOR_KIND " [%0], [%1], %2, %3, p;\n\t}" ::"r"(sums),
      "r"(a), "l"(b), "r"(plan::INSTRUCTION_DESCRIPTOR), "r"(static_cast<u32>(add))
      : "memory");
}

__device__ __forceinline__ void tensor_product(u32 sums, u64 a, u64 b, bool add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %4, 0;\n\t"
      "tcgen05.mma.cta_group::1.kind::" WTS_TENSOR_KIND " [%0], %1, %2, %3, p;\n\t}" ::"r"(sums),
      "l"(a), "l"(b), "r"(plan::INSTRUCTION_DESCRIPTOR), "r"(static_cast<u32>(add))
      : "memory");
}

// 9.7.16.12.1: the barrier gets one arrival when all of this thread's products are done; fences
// before.
__device__ __forceinline__ void tensor_commit(u64* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}
#endif

}  // namespace wts
