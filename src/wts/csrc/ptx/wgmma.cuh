// The matrix product of a warpgroup (9.7.15).
#pragma once
#include "types.cuh"

namespace wts {

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

}  // namespace wts
