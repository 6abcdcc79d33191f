// What a warp's lanes find out together: they meet.
#pragma once
#include "machine.h"
#include "ptx/base.cuh"

namespace wts {

inline int lane_across(int value, int bits) {
  return __shfl_sync(0xffffffffu, value, lane_index() ^ bits);
}
template <int COUNT, int STRIDE>
int strided_max(int value) {
  for (int bits = STRIDE; bits < COUNT * STRIDE; bits *= 2)
    value = std::max(value, lane_across(value, bits));
  return value;
}

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

}  // namespace wts
