// Conversions, and arithmetic as far from the truth as the device's may be.
#pragma once
#include "machine.h"
#include "types.cuh"

namespace wts {

inline float fused(float a, float b, float c) { return one_nan(std::fma(a, b, c)); }
// As far from the truth as the real one may be.
inline float fast_log2(float value) {
  const float exact = std::log2(value), wrong = (sim::random_order() % 3 - 1.0f) * 2.3e-7f;
  if (!std::isfinite(exact)) return exact;
  return value > 0.5f && value < 2.0f ? exact + wrong : exact * (1.0f + wrong);
}
// As far off as the device's may be.
inline float approximate_root(float value) { return std::nextafter(std::sqrt(value), 0.0f); }
inline u32 round_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  if (value != value) return 0x7fffu;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline u32 round_bf16x2(float low, float high) {
  return round_bf16(low) | (round_bf16(high) << 16);
}
inline u32 plus_zero_bf16x2(u32 pair) {
  const auto half = [](u32 bits) {
    return round_bf16(__fadd_rn(__uint_as_float(bits << 16), 0.0f));
  };
  return half(pair & 0xffffu) | (half(pair >> 16) << 16);
}
inline u32 signs_of_halves(u32 pair) {
  return (pair & 0x8000u ? 0xffffu : 0u) | (pair & 0x80000000u ? 0xffff0000u : 0u);
}
inline float half_to_float(u32 bits) {
  const u16 narrow = static_cast<u16>(bits);
  _Float16 value;
  std::memcpy(&value, &narrow, 2);
  return static_cast<float>(value);
}
inline u32 round_half(float value) {
  const _Float16 narrow = static_cast<_Float16>(value);
  u16 bits;
  std::memcpy(&bits, &narrow, 2);
  return value != value ? 0x7fffu : bits;
}

}  // namespace wts
