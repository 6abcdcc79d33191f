// The latent functions of heads that read hidden states, as wts/cells.py writes them: what is left to
// do once a token is known, by one warp or a team of warps for one request. They hold vectors of RANK
// elements in runs of RUN: run i of lane l (of the team) is elements RUN (TEAM_LANES i + l) and on, where
// there are so many.
#pragma once
#include "activations.cuh"
#include "rounds.cuh"

namespace wts {

enum class Head { MARKOV, GATED, RNN, DOMINO };
constexpr Head HEAD = static_cast<Head>(plan::HEAD);
constexpr bool STATEFUL = HEAD == Head::RNN || HEAD == Head::DOMINO;

// One group's requests may be fewer than the service warps: then TEAM of them make a latent together.
constexpr int SERVED = (plan::COLUMNS + plan::SERVICE_WARPS - 1) / plan::SERVICE_WARPS;
constexpr int TEAMS = plan::COLUMNS / SERVED;
constexpr int TEAM =
    HEAD == Head::MARKOV || plan::GROUPS > 1 ? 1 : plan::SERVICE_WARPS / TEAMS;
static_assert(SERVED * TEAMS == plan::COLUMNS, "columns are shared out evenly");
static_assert(TEAM == 1 || TEAM == 2 || TEAM == 4, "a run is a power of two");
constexpr int TEAM_LANES = 32 * TEAM;

constexpr int RUN = 8 / TEAM;
constexpr int RUNS = (plan::RANK / RUN + TEAM_LANES - 1) / TEAM_LANES;

// Where a lane's run of the RANK elements begins, and whether there is one.
__device__ __forceinline__ int run_start(int run, int lane) {
  return (TEAM_LANES * run + lane) * RUN;
}
__device__ __forceinline__ bool run_exists(int run, int lane) {
  return run_start(run, lane) < plan::RANK;
}

// Consecutive fp32 or bf16 numbers at a multiple of their size.
__device__ __forceinline__ void load_run(float (&values)[RUN], const float* at) {
  constexpr int PIECE = RUN < 4 ? RUN : 4;
  u32 words[RUN / PIECE][PIECE];
#pragma unroll
  for (int i = 0; i < RUN / PIECE; ++i) load_global_words(words[i], at + PIECE * i);
#pragma unroll
  for (int i = 0; i < RUN; ++i) values[i] = __uint_as_float(words[i / PIECE][i % PIECE]);
}

__device__ __forceinline__ void load_run(float (&values)[RUN], const u16* at) {
  u32 words[RUN / 2];
  load_global_words(words, at);
#pragma unroll
  for (int i = 0; i < RUN; ++i) values[i] = bf16_of_pair(words[i / 2], i);
}

// R(R(sigmoid(R(part + G_e e))) e) of one run; row: G_e e in fp32, then e in bf16.
__device__ __forceinline__ void gated_run(const Byte* row, const float* part, int first,
                                          float (&latent)[RUN]) {
  float product[RUN], before[RUN], element[RUN];
  load_run(product, reinterpret_cast<const float*>(row) + first);
  load_run(before, part + first);
  load_run(element, reinterpret_cast<const u16*>(row + 4 * plan::RANK) + first);
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const float gate = rounded(sigmoid(rounded(__fadd_rn(before[i], product[i]))));
    latent[i] = rounded(__fmul_rn(gate, element[i]));
  }
}

// One run of an RNN head: the new state goes where the old one is, in bf16; row: J_e e in fp32;
// products: J_s state. Of each, gates, candidates and outputs lie RANK apart.
__device__ __forceinline__ void rnn_run(const Byte* row, const float* part, const float* products,
                                        int first, u16* state, float (&latent)[RUN]) {
  u32 joint[3][RUN / 2];  // two in a word: registers are few
#pragma unroll
  for (int kind = 0; kind < 3; ++kind) {
    const int start = kind * plan::RANK + first;
    const float* after = reinterpret_cast<const float*>(row) + start;
#pragma unroll
    for (int i = 0; i < RUN; i += 2) {
      u32 parts[2], rows[2];
      load_global_words(parts, part + start + i);
      load_global_words(rows, after + i);
      float sum[2];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        sum[j] = __fadd_rn(__fadd_rn(__uint_as_float(parts[j]), products[start + i + j]),
                           __uint_as_float(rows[j]));
      joint[kind][i / 2] = round_bf16x2(sum[0], sum[1]);
    }
  }
  const auto number = [&](int kind, int i) { return bf16_of_pair(joint[kind][i / 2], i); };
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const float gate = rounded(sigmoid(number(0, i))), candidate = rounded(tanh_of(number(1, i)));
    const float old = bf16_value(state[first + i]);
    const float kept = rounded(__fmul_rn(gate, old));
    const float taken = rounded(__fmul_rn(rounded(__fadd_rn(1.0f, -gate)), candidate));
    state[first + i] = bf16_bits(rounded(__fadd_rn(kept, taken)));
    latent[i] = rounded(tanh_of(number(2, i)));
  }
}

// A Domino head takes in a token: the GRU of one request, in place; row: R(W_ih e) in bf16, products:
// W_hh h. Of each, resets, updates and candidates lie STATE apart.
__device__ __forceinline__ void take_in_token(const Byte* row, const float* products, u16* state,
                                              int lane) {
  const u16* inputs = reinterpret_cast<const u16*>(row);
#pragma unroll 2
  for (int i = lane; i < plan::STATE; i += TEAM_LANES) {
    float input[3], product[3];
#pragma unroll
    for (int kind = 0; kind < 3; ++kind) {
      input[kind] = bf16_value(load_global_2(inputs + kind * plan::STATE + i));
      product[kind] = rounded(products[kind * plan::STATE + i]);
    }
    const float reset = sigmoid(__fadd_rn(input[0], product[0]));
    const float update = sigmoid(__fadd_rn(input[1], product[1]));
    const float fresh = tanh_of(__fadd_rn(input[2], __fmul_rn(reset, product[2])));
    const float old = bf16_value(state[i]);
    const float next = __fadd_rn(fresh, __fmul_rn(update, __fadd_rn(old, -fresh)));
    state[i] = bf16_bits(rounded(next));
  }
}

// R(SiLU(R(part + P_h h))) of one run; projections: P_h h.
__device__ __forceinline__ void projected_run(const float* part, const float* projections,
                                              int first, float (&latent)[RUN]) {
  float before[RUN];
  load_run(before, part + first);
#pragma unroll
  for (int i = 0; i < RUN; ++i)
    latent[i] = rounded(silu(rounded(__fadd_rn(before[i], projections[first + i]))));
}

// ---- the product with the state ----------------------------------------------------------------

// One row of weights times a state, both bf16, as the emulator's lane_product sums it: element i is
// of lane i mod 32, then lanes in a tree. The same in all lanes.
__device__ __forceinline__ float state_product(const u16* weight, const u16* state, int lane) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = lane; i < plan::STATE; i += 32)
    sum = fmaf(bf16_value(weight[i]), bf16_value(state[i]), sum);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2)
    sum = __fadd_rn(sum, __int_as_float(lane_across(__float_as_int(sum), apart)));
  return sum;
}

// ---- quantisation (wts/pack.py) ----------------------------------------------------------------

constexpr int LATENT_LEVELS = 127 * 256 + 127;

// The largest absolute value of a warp's part of a latent, as bits: they are in order, NaN above all.
__device__ __forceinline__ u32 largest_of(const float (&latent)[RUNS][RUN]) {
  u32 largest = 0;
#pragma unroll
  for (int run = 0; run < RUNS; ++run)
#pragma unroll
    for (int i = 0; i < RUN; ++i)
      largest = max(largest, __float_as_uint(latent[run][i]) & 0x7fffffffu);
  return warp_max_unsigned(largest);
}

// The scale of a latent: its largest element over LATENT_LEVELS; NaN where one is not finite.
__device__ __forceinline__ float latent_scale_of(u32 largest) {
  const float scale = __fdiv_rn(__uint_as_float(largest), static_cast<float>(LATENT_LEVELS));
  if (!(fabsf(scale) < __int_as_float(0x7f800000))) return __int_as_float(0x7fffffff);
  return scale < 1e-30f ? 1e-30f : scale;
}

// value / scale to the nearest integer, within +-LATENT_LEVELS; 0 where that is not finite.
__device__ __forceinline__ int latent_level(float value, float scale) {
  const float level = __fdiv_rn(value, scale);
  if (!(fabsf(level) < __int_as_float(0x7f800000))) return 0;
  const float nearest = rintf(level), most = static_cast<float>(LATENT_LEVELS);
  return static_cast<int>(nearest > most ? most : nearest < -most ? -most : nearest);
}

template <int BYTES, int WORDS>
__device__ __forceinline__ void store_bytes(u32 address, const u32 (&word)[WORDS]) {
  if constexpr (BYTES == 8) store_shared_8(address, word);
  if constexpr (BYTES == 4) store_shared_4(address, word[0]);
  if constexpr (BYTES == 2) store_shared_2(address, word[0]);
}

// The two int8 planes of a run, one byte each element.
struct PlaneRun {
  u32 word[RUN > 4 ? 2 : 1];

  __device__ __forceinline__ void put(int i, int level) {
    word[i / 4] |= (static_cast<u32>(level) & 0xffu) << 8 * (i % 4);
  }
  __device__ __forceinline__ void store(u32 address) const { store_bytes<RUN>(address, word); }
};

__device__ __forceinline__ void quantise_run(const float (&latent)[RUN], float scale,
                                             PlaneRun& high, PlaneRun& low) {
  high = low = PlaneRun{};
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const int level = latent_level(latent[i], scale), rest = ((level + 128) & 255) - 128;
    high.put(i, (level - rest) >> 8);
    low.put(i, rest);
  }
}

}  // namespace wts
