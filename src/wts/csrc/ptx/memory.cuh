// Loads, stores and copies of global and of shared memory.
#pragma once
#include "ptx/base.cuh"

namespace wts {

// 9.7.9.8: 16 bytes of read-only global memory, streamed past L1.
__device__ __forceinline__ void load_global_16(u32 (&v)[4], const void* pointer) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(pointer));
}

// The same of what will soon be read again.
__device__ __forceinline__ void load_global_again_16(u32 (&v)[4], const void* pointer) {
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(pointer));
}

// The same of 4, 8 or 16 bytes.
__device__ __forceinline__ void load_global_words(u32 (&v)[1], const void* pointer) {
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v[0]) : "l"(pointer));
}

__device__ __forceinline__ void load_global_words(u32 (&v)[2], const void* pointer) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v[0]), "=r"(v[1])
               : "l"(pointer));
}

__device__ __forceinline__ void load_global_words(u32 (&v)[4], const void* pointer) {
  load_global_16(v, pointer);
}

__device__ __forceinline__ u32 load_global_4(const void* pointer) {
  u32 value;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(pointer));
  return value;
}

__device__ __forceinline__ u32 load_global_2(const void* pointer) {
  u16 value;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(value) : "l"(pointer));
  return value;
}

__device__ __forceinline__ void load_shared_16(u32 (&v)[4], u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address));
}

__device__ __forceinline__ u32 load_shared_4(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

__device__ __forceinline__ void load_shared_8(u32 (&v)[2], u32 address) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address));
}

__device__ __forceinline__ void store_shared_16(u32 address, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

__device__ __forceinline__ void store_shared_2(u32 address, u32 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<u16>(value)) : "memory");
}

__device__ __forceinline__ void store_shared_4(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_8(u32 address, const u32 (&v)[2]) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v[0]), "r"(v[1]) : "memory");
}

// 9.7.9.8 with .relaxed.gpu: one single-copy-atomic word another block may be writing (8.5).
__device__ __forceinline__ u32 load_relaxed(const u32* pointer) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

__device__ __forceinline__ u64 load_relaxed(const u64* pointer) {
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(pointer) : "memory");
  return value;
}

__device__ __forceinline__ void load_relaxed_16(u32 (&v)[4], const u32* pointer) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(pointer)
               : "memory");
}

__device__ __forceinline__ void store_relaxed(u32* pointer, u32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed(u64* pointer, u64 value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(pointer), "l"(value) : "memory");
}

// 9.7.9.25.5.2: asks L2 for a row; bytes must be a multiple of 16, the pointer 16-byte aligned.
__device__ __forceinline__ void prefetch_l2(const void* pointer, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(pointer), "r"(bytes) : "memory");
}

// 9.7.9.16: asks L2 for the line of an address.
__device__ __forceinline__ void prefetch_l2(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer) : "memory");
}

// 9.7.9.25.4.1: bytes from global to shared memory, counted on barrier when they have landed.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, u32 bytes,
                                          u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// 9.7.9.25.3.1: 16 bytes from global to shared memory, past L1; part of the thread's open group.
__device__ __forceinline__ void copy_16(u32 shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// 9.7.9.25.3.2: closes the thread's open group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// 9.7.9.25.3.3: waits until at most PENDING of the thread's groups have not landed.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Orders earlier ordinary accesses of shared memory before later bulk copies into it.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace wts
