// Types that the kernel's structs are made of. Plain C++, as the structs are: g++ checks them, too.
#pragma once
#include "plan_constants.h"

// Where a member lies, for the assertions of rendered structs: NVRTC has its own way to ask.
#ifdef __CUDACC_RTC__
#define WTS_OFFSETOF(type, member) __INTADDR__(&((type*)0)->member)
#else
#define WTS_OFFSETOF(type, member) __builtin_offsetof(type, member)
#endif

namespace wts {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

using Byte = unsigned char;
using Barrier = unsigned long long;

// Scales of rows: one each, or, of bf16 weights, a bit each of a word for 32: set where the scale
// is NaN, not 1.
#if WTS_QUANTISED
using RowScale = float;
#else
using RowScale = unsigned int;
#endif

// What a block publishes of a request and a step (exchange/word.cuh).
#if WTS_WIDE
using ExchangeWord = u64;
#else
using ExchangeWord = u32;
#endif

}  // namespace wts
