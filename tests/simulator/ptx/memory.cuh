// Loads, stores and copies, checked.
#pragma once
#include "machine.h"
#include "ptx/base.cuh"

namespace wts {

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

}  // namespace wts
