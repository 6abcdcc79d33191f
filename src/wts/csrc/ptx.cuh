// One function per machine instruction; every inline asm of the project is in this file.
// Section numbers are those of the PTX ISA manual, version 9.0.
#pragma once
#include "plan_constants.h"

namespace wts {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// ---- identity and time -------------------------------------------------------------------------

// 10.21 special registers: cycles of this SM, 32 bits.
__device__ __forceinline__ u32 clock_low() {
  u32 value;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(value));
  return value;
}

// 10.26: nanoseconds of the global timer.
__device__ __forceinline__ u64 global_timer() {
  u64 value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

// The block's dynamic shared memory.
__device__ __forceinline__ void* dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char storage[];
  return storage;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- matrix product ----------------------------------------------------------------------------

// Read anew each time: a lane number is cheaper to read than to keep beside 192 weights.
__device__ __forceinline__ int lane_index() {
  int value;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(value));
  return value;
}

__device__ __forceinline__ int warp_index() {
  int value;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
  return value >> 5;
}

// 9.7.14.5: D = A(16x32 s8, row) * B(32x8 s8, column) + D in int32; exact, so order is free.
__device__ __forceinline__ void mma_s8(int (&d)[4], const u32* a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with D = 0 + A * B: the first product of a chain needs no cleared accumulator.
__device__ __forceinline__ void mma_s8_first(int (&d)[4], const u32* a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// 9.7.14.5: D = A(16x16 bf16, row) * B(16x8 bf16, column) + D in fp32; how it is summed is the
// hardware's own.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32* a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with D = 0 + A * B.
__device__ __forceinline__ void mma_bf16_first(float (&d)[4], const u32* a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// ---- matrix product of a warpgroup (9.7.15) ----------------------------------------------------

// 9.7.15.5.1: an operand in shared memory without swizzle: core matrices of 8 rows of 16 bytes; the
// distance in bytes between two that follow each other along k, and along rows or columns.
__device__ __forceinline__ u64 operand_descriptor(u32 address, u32 along_k, u32 along_rows) {
  return static_cast<u64>((address >> 4) & 0x3fffu) | static_cast<u64>(along_k >> 4) << 16 |
         static_cast<u64>(along_rows >> 4) << 32;
}

// The same descriptor, of which the compiler knows anew that all lanes have it: what is added to it
// then stays in uniform registers, which hold few numbers for long. Products wait for each move
// into them.
__device__ __forceinline__ u64 uniform_descriptor(u64 descriptor) {
  const u32 low = __shfl_sync(0xffffffffu, static_cast<u32>(descriptor), 0);
  return descriptor & 0xffffffff00000000ull | low;
}

// 9.7.15.7.1: registers written before are what the products after it read.
__device__ __forceinline__ void warpgroup_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// 9.7.15.7.2: closes a group of products.
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// 9.7.15.7.3: waits until at most PENDING groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// 9.7.15.5: D = A(64x32 s8) * B(32x16 s8) + D, or without D for the first; A in registers, 16 rows
// a warp, or in shared memory; two blocks of four results a lane. Exact in int32.
template <bool FIRST>
__device__ __forceinline__ void wgmma_s8(int (&d)[2][4], const u32* a, u64 b) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %13, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 "
      "{%0, %1, %2, %3, "
      "%4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, p;\n\t}"
      : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]),
        "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(FIRST ? 0 : 1));
}

template <bool FIRST>
__device__ __forceinline__ void wgmma_s8(int (&d)[2][4], u64 a, u64 b) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %10, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 "
      "{%0, %1, %2, %3, "
      "%4, %5, %6, %7}, "
      "%8, %9, p;\n\t}"
      : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]),
        "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3])
      : "l"(a), "l"(b), "n"(FIRST ? 0 : 1));
}

// ---- loads and stores --------------------------------------------------------------------------

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

// A value that the compiler may not put off, to where there is less time for it.
__device__ __forceinline__ void made_here(u32& value) { asm volatile("" : "+r"(value)); }

// ---- warp-wide ---------------------------------------------------------------------------------

// 9.7.13.9: the largest of a warp's 32 signed values, in all lanes.
__device__ __forceinline__ int warp_max(int value) {
  int result;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}

__device__ __forceinline__ u32 warp_max_unsigned(u32 value) {
  u32 result;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}

// The sum of a warp's 32 values, in all lanes.
__device__ __forceinline__ u32 warp_add(u32 value) {
  u32 result;
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}

// 9.7.9.6: the value of the lane whose number differs in these bits.
__device__ __forceinline__ int lane_across(int value, int bits) {
  int result;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
               : "=r"(result)
               : "r"(value), "r"(bits));
  return result;
}

// The largest value of COUNT lanes STRIDE apart, in all of them; both are powers of two.
template <int COUNT, int STRIDE>
__device__ __forceinline__ int strided_max(int value) {
  if constexpr (COUNT == 32) return warp_max(value);
#pragma unroll
  for (int bits = STRIDE; bits < COUNT * STRIDE; bits *= 2)
    value = max(value, lane_across(value, bits));
  return value;
}

// ---- numbers -----------------------------------------------------------------------------------

// 9.7.9.21: two fp32 to two bf16, round to nearest even; NaN becomes 0x7fff.
__device__ __forceinline__ u32 round_bf16x2(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two bf16 at once: -0 becomes +0, a NaN the positive one (9.7.4.1).
__device__ __forceinline__ u32 plus_zero_bf16x2(u32 pair) {
  u32 result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0x3f803f80u), "r"(0u));
  return result;
}

// Each half becomes all ones where its sign is set (9.7.9.7).
__device__ __forceinline__ u32 signs_of_halves(u32 pair) {
  u32 result;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(result) : "r"(pair));
  return result;
}

__device__ __forceinline__ float half_to_float(u32 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
  return value;
}

__device__ __forceinline__ u32 round_half(float value) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// 9.7.3.6: a * b + c rounded once; NaN comes out as 0x7fffffff.
__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }

// The smaller, or the larger one; a NaN stays (9.7.3.11, 9.7.3.12).
__device__ __forceinline__ float at_most(float x, float limit) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(limit));
  return result;
}
__device__ __forceinline__ float at_least(float x, float limit) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(limit));
  return result;
}

// 1 / value, within one place of the nearest (9.7.3.14).
__device__ __forceinline__ float approximate_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// Square root, within 2^-22 of it (9.7.3.15).
__device__ __forceinline__ float approximate_root(float value) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// 9.7.3.20: log2 of a normal number, or of 0, by the special function unit.
__device__ __forceinline__ float fast_log2(float value) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
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

// ---- barriers in shared memory (9.7.13.15) -----------------------------------------------------

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
// and no warp waits without bound on another block (exchange.cuh).
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

// ---- tensor memory (9.7.16) ---------------------------------------------------------------------

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

// ---- register budget (9.7.19.5): takes effect for a whole warpgroup -----------------------------

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace wts
