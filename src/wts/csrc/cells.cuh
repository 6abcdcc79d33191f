// The latent functions of heads that read hidden states, as wts/cells.py writes them: what is left
// to do once a token is known, by one warp or a team of warps for one request. They hold vectors of
// RANK elements in runs of RUN: run i of lane l (of the team) is elements RUN (TEAM_LANES i + l)
// and on, where there are so many.
#pragma once
#include "activations.cuh"
#include "rounds.cuh"

namespace wts {

enum class Head { MARKOV, GATED, RNN, DOMINO };
constexpr Head HEAD = static_cast<Head>(plan::HEAD);
constexpr bool STATEFUL = HEAD == Head::RNN || HEAD == Head::DOMINO;
// Whether a block takes in tokens for units of its own, and blocks exchange the states they leave.
constexpr bool OWNED = WTS_OWNED;
// Whether blocks share out and exchange inner sums that need no token, ahead of it.
constexpr bool EARLY = (STATEFUL && !OWNED) || plan::HIDDEN_INSIDE;
static_assert(!EARLY || plan::GROUPS == 1, "several groups' units are owned");

// One group's requests may be fewer than the service warps: then TEAM of them make a latent
// together.
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
  return plan::RANK % (TEAM_LANES * RUN) == 0 || run_start(run, lane) < plan::RANK;
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

// R(R(sigmoid(R(part + G_e e))) e) of one run; row: G_e e in fp32, then e in bf16; early: the part
// of the run, where it was made here. What is asked for comes while `wait` waits.
template <typename Wait>
__device__ __forceinline__ void gated_run(const Byte* row, const float* part, const float* early,
                                          int first, Wait wait, float (&latent)[RUN]) {
  float product[RUN], before[RUN], element[RUN];
  load_run(product, reinterpret_cast<const float*>(row) + first);
  load_run(element, reinterpret_cast<const u16*>(row + 4 * plan::RANK) + first);
  if constexpr (plan::HIDDEN_INSIDE) {
    wait();
#pragma unroll
    for (int i = 0; i < RUN; ++i) before[i] = early[first + i];
  } else {
    load_run(before, part + first);
  }
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const float gate = rounded(sigmoid(rounded(__fadd_rn(before[i], product[i]))));
    latent[i] = rounded(__fmul_rn(gate, element[i]));
  }
}

// The latent of one run of an RNN head; row: J_e e in fp32, early: the part + J_s state. Of each,
// gates, candidates and outputs lie RANK apart. The first two, rounded, are left in `left` for the
// state, which has time until the latent is sent.
template <typename Wait>
__device__ __forceinline__ void rnn_run(const Byte* row, const float* early, int first, u16* left,
                                        Wait wait, float (&latent)[RUN]) {
  float joint[3][RUN];
#pragma unroll
  for (int kind = 0; kind < 3; ++kind)
    load_run(joint[kind], reinterpret_cast<const float*>(row) + kind * plan::RANK + first);
  wait();
#pragma unroll
  for (int kind = 2; kind >= 0; --kind) {
    const int start = kind * plan::RANK + first;
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
      const float sum = rounded(__fadd_rn(early[start + i], joint[kind][i]));
      if (kind == 2) {
        latent[i] = rounded(tanh_of(sum));
      } else {
        left[start + i] = bf16_bits(sum);
      }
    }
  }
}

// The new state of a unit of an RNN, from its rounded sums and the old one.
__device__ __forceinline__ u16 rnn_state(float gate_sum, float candidate_sum, const u16& old) {
  const float gate = rounded(sigmoid(gate_sum));
  const float candidate = rounded(tanh_of(candidate_sum));
  const float kept = rounded(__fmul_rn(gate, bf16_value(old)));
  const float taken = rounded(__fmul_rn(rounded(__fadd_rn(1.0f, -gate)), candidate));
  return bf16_bits(rounded(__fadd_rn(kept, taken)));
}

// The new state of a run, in place, from what rnn_run has left, RANK apart.
__device__ __forceinline__ void rnn_state_run(const u16* left, int first, u16* state) {
#pragma unroll
  for (int i = first; i < first + RUN; ++i)
    state[i] = rnn_state(bf16_value(left[i]), bf16_value(left[plan::RANK + i]), state[i]);
}

// The new state of a unit of a Domino head: R(W_ih e) and R(W_hh h) of resets, updates and
// candidates, and the old one.
template <typename Input, typename Sum>
__device__ __forceinline__ u16 domino_state(Input input, Sum sum, const u16& state) {
  const float reset = sigmoid(__fadd_rn(input(0), sum(0)));
  const float update = sigmoid(__fadd_rn(input(1), sum(1)));
  const float fresh = tanh_of(__fadd_rn(input(2), __fmul_rn(reset, sum(2))));
  const float old = bf16_value(state);
  const float next = __fadd_rn(fresh, __fmul_rn(update, __fadd_rn(old, -fresh)));
  return bf16_bits(rounded(next));
}

// A Domino head takes in a token: the GRU of one request, in place; row: R(W_ih e) in bf16, resets,
// updates and candidates STATE apart; early: R(W_hh h) of a unit's three in one word, resets
// lowest. A lane has four units at a time.
template <int LANES>
__device__ __forceinline__ void take_in_token(const Byte* row, const u64* early, u16* state,
                                              int lane) {
  const u16* inputs = reinterpret_cast<const u16*>(row);
#pragma unroll 1
  for (int first = 4 * lane; first < plan::STATE; first += 4 * LANES) {
    u32 input[3][2];
#pragma unroll
    for (int kind = 0; kind < 3; ++kind)
      load_global_words(input[kind], inputs + kind * plan::STATE + first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto of_row = [&](int kind) { return bf16_of_pair(input[kind][i / 2], i); };
      const u64 word = early[first + i];
      const u32 low = static_cast<u32>(word), high = static_cast<u32>(word >> 32);
      const auto sum = [&](int kind) {
        return kind == 1 ? bf16_of_pair(low, 1) : bf16_value(kind == 0 ? low : high);
      };
      state[first + i] = domino_state(of_row, sum, state[first + i]);
    }
  }
}

// R(SiLU(R(part + P_h h))) of one run; projections: part + P_h h.
__device__ __forceinline__ void projected_run(const float* projections, int first,
                                              float (&latent)[RUN]) {
#pragma unroll
  for (int i = 0; i < RUN; ++i) latent[i] = rounded(silu(rounded(projections[first + i])));
}

// ---- products with states and hidden states ----------------------------------------------------

// A row's four sums of a lane, added up.
__device__ __forceinline__ float add_sums(float (&sums)[4]) {
#pragma unroll
  for (int half = 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] = __fadd_rn(sums[i], sums[i + half]);
  return sums[0];
}

// Rows of weights times vectors, both bf16, as the emulator's lane_product sums them: element i is
// of sum i mod 4 of lane i / 8 mod 32; then trees over sums and lanes. The same in all lanes. Rows
// lie `apart` elements apart, vectors LENGTH; what is read of a row serves all vectors.
template <int ROWS, int LENGTH, int VECTORS>
__device__ __forceinline__ void lane_products(const u16* weight, int apart, const u16* vector,
                                              int lane, float (&sum)[VECTORS][ROWS]) {
  const u32 weights = shared_address(weight), elements = shared_address(vector);
  float sums[VECTORS][ROWS][4] = {};
  constexpr int AT_ONCE = ROWS * VECTORS > 1 ? 1 : 2;  // registers are few
#pragma unroll AT_ONCE
  for (int turn = 0; turn < (LENGTH + 255) / 256; ++turn) {
    const int first = (turn * 32 + lane) * 8;
    if (LENGTH % 256 != 0 && first >= LENGTH) break;
    u32 of_vector[VECTORS][4];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
      load_shared_16(of_vector[v], elements + (v * LENGTH + first) * 2);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      u32 of_row[4];
      load_shared_16(of_row, weights + (row * apart + first) * 2);
#pragma unroll
      for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          sums[v][row][i % 4] = fmaf(bf16_of_pair(of_row[i / 2], i),
                                     bf16_of_pair(of_vector[v][i / 2], i), sums[v][row][i % 4]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int v = 0; v < VECTORS; ++v)
#pragma unroll
    for (int row = 0; row < ROWS; ++row) sum[v][row] = add_sums(sums[v][row]);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2)
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
      for (int row = 0; row < ROWS; ++row)
        sum[v][row] =
            __fadd_rn(sum[v][row], __int_as_float(lane_across(__float_as_int(sum[v][row]), bit)));
}

template <int ROWS, int LENGTH>
__device__ __forceinline__ void lane_products(const u16* weight, int apart, const u16* vector,
                                              int lane, float (&sum)[ROWS]) {
  lane_products<ROWS, LENGTH, 1>(weight, apart, vector, lane,
                                 reinterpret_cast<float (&)[1][ROWS]>(sum));
}

// ---- quantisation (wts/pack.py) ----------------------------------------------------------------

constexpr int LATENT_LEVELS = 127 * 256 + 127;

// The largest absolute value of a warp's part of a latent, as bits: they are in order, NaN above
// all.
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
  const float scale = divided(__uint_as_float(largest), static_cast<float>(LATENT_LEVELS));
  if (!(fabsf(scale) < __int_as_float(0x7f800000))) return __int_as_float(0x7fffffff);
  return scale < 1e-30f ? 1e-30f : scale;
}

// value / scale to the nearest integer, within +-LATENT_LEVELS; 0 where that is not finite. What is
// so small that `divided` is not exact is nearest to 0.
__device__ __forceinline__ int latent_level(float value, float scale) {
  const float level = divided(value, scale);
  if (!(fabsf(level) < __int_as_float(0x7f800000))) return 0;
  const float nearest = rintf(level), most = static_cast<float>(LATENT_LEVELS);
  return static_cast<int>(nearest > most ? most : nearest < -most ? -most : nearest);
}

template <int BYTES, int WORDS>
__device__ __forceinline__ void store_bytes(u32 address, const u32 (&word)[WORDS]) {
  if constexpr (BYTES == 16) store_shared_16(address, word);
  if constexpr (BYTES == 8) store_shared_8(address, word);
  if constexpr (BYTES == 4) store_shared_4(address, word[0]);
  if constexpr (BYTES == 2) store_shared_2(address, word[0]);
}

// A run of a latent, whose elements are bf16 numbers already.
__device__ __forceinline__ void pack_bf16_run(const float (&latent)[RUN], u32 (&words)[RUN / 2]) {
#pragma unroll
  for (int i = 0; i < RUN / 2; ++i)
    words[i] = bf16_bits(latent[2 * i]) | static_cast<u32>(bf16_bits(latent[2 * i + 1])) << 16;
}

// The two int8 planes of a run, one byte each element.
struct PlaneRun {
  u32 word[RUN > 4 ? 2 : 1];

  __device__ __forceinline__ void put(int i, int level) {
    word[i / 4] |= (static_cast<u32>(level) & 0xffu) << 8 * (i % 4);
  }
};

// In an exact walk the squares of what is not below a sixteenth of an element, in levels, are
// summed up: of RANK elements they stay below 2^32.
__device__ __forceinline__ void quantise_run(const float (&latent)[RUN], float scale,
                                             PlaneRun& high, PlaneRun& low, u32& squares) {
  high = low = PlaneRun{};
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const int level = latent_level(latent[i], scale), rest = ((level + 128) & 255) - 128;
    high.put(i, (level - rest) >> 8);
    low.put(i, rest);
    if constexpr (plan::EXACT) {
      const u32 sixteenth = static_cast<u32>(level < 0 ? -level : level) / 16 + 1;
      squares += sixteenth * sixteenth;
    }
  }
}

}  // namespace wts
