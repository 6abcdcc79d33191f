// The logits of the unquantised head that an exact walk computes (select/exact.cuh), of weights in
// memory.
#pragma once
#include "block.cuh"
#include "heads/kind.cuh"
#include "heads/lane_products.cuh"
#include "numbers.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"
#include "rounds.cuh"
#include "select/exact_bounds.cuh"
#include "select/key.cuh"

namespace wts {

#if WTS_EXACT

constexpr int LATENT_TURNS = (plan::RANK + 255) / 256;  // of eight elements a lane
// Rows whose exact logits are computed together, each for the lanes of its share of the warp.
constexpr int ROWS_AT_ONCE = 2, SHARE = 32 / ROWS_AT_ONCE;
__device__ __forceinline__ int share() { return lane_index() / SHARE; }

// The best exact logit that a lane has seen: the largest key, then the lowest token.
struct Found {
  int key = NEVER;
  int token = 0;

  __device__ __forceinline__ void offer(int other_key, int other_token) {
    if (other_key < key || (other_key == key && other_token >= token)) return;
    key = other_key;
    token = other_token;
  }

  // The best of all lanes, in all of them.
  __device__ __forceinline__ Found of_warp() const {
    Found best;
    best.key = warp_max(key);
    best.token = -warp_max(key == best.key ? -token : -plan::VOCAB);
    return best;
  }
};

__device__ __forceinline__ const Byte* weight_row(const Block& block, int token) {
  return block.shared.exact_weight + static_cast<long long>(token) * (2 * plan::RANK);
}

// Asks L2 for a row's exact weights.
__device__ __forceinline__ void prefetch_weight(const Block& block, int row) {
  const int token = min(block.first_row() + row, plan::VOCAB - 1);
  prefetch_l2(weight_row(block, token), 2 * plan::RANK);
}

// Eight elements of a request's latent before the step, in bf16.
__device__ __forceinline__ void load_latent(const Block& block, u32 (&of_latent)[4], int round,
                                            int column, int first) {
  if constexpr (HEAD == Head::MARKOV) {
    const long long row = block.shared.previous[request_of(round, column)];
    load_global_16(of_latent, block.shared.exact_table + (row * plan::RANK + first) * 2);
  } else {
    load_shared_16(
        of_latent,
        shared_address(block.shared.exact_latent[round % plan::EXACT_LATENT_SLOTS][column]) +
            first * 2);
  }
}

__device__ __forceinline__ bool in_latent(int start) {
  return plan::RANK % 256 == 0 || start < plan::RANK;
}

// The key of the exact logit of a share's token, which is in the vocabulary:
// R(base + R(W . latent)), summed as lane_products sums.
__device__ __forceinline__ int exact_key(const Block& block, int round, int column, int token) {
  const int lane = lane_index(), step = round_step(round);
  const long long at = request_of(round, column) * block.args.base_request_stride +
                       step * block.args.base_step_stride + token;
  const float base = bf16_value(load_global_2(block.args.base + at * BASE_BYTES));
  u32 of_latent[LATENT_TURNS][4], of_row[ROWS_AT_ONCE][LATENT_TURNS][4];
#pragma unroll
  for (int turn = 0; turn < LATENT_TURNS; ++turn) {
    const int start = (turn * 32 + lane) * 8;
    if (in_latent(start)) load_latent(block, of_latent[turn], round, column, start);
  }
#pragma unroll
  for (int i = 0; i < ROWS_AT_ONCE; ++i) {
    const Byte* row = weight_row(block, __shfl_sync(0xffffffffu, token, i * SHARE));
#pragma unroll
    for (int turn = 0; turn < LATENT_TURNS; ++turn) {
      const int start = (turn * 32 + lane) * 8;
      if (in_latent(start)) load_global_16(of_row[i][turn], row + start * 2);
    }
  }
  float bias[ROWS_AT_ONCE];
#pragma unroll
  for (int i = 0; i < ROWS_AT_ONCE; ++i) {
    float sums[4] = {};
#pragma unroll
    for (int turn = 0; turn < LATENT_TURNS; ++turn) {
      if (!in_latent((turn * 32 + lane) * 8)) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        sums[j % 4] = fmaf(bf16_of_pair(of_row[i][turn][j / 2], j),
                           bf16_of_pair(of_latent[turn][j / 2], j), sums[j % 4]);
    }
    bias[i] = add_sums(sums);
  }
  __syncwarp();
  // The tree over lanes, in which a lane keeps half of its rows until one is left: its share's.
  int rows = ROWS_AT_ONCE;
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    const bool keeps_upper = (lane & bit) != 0 && rows > 1;
    rows = max(rows / 2, 1);
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int other = bit >= SHARE ? i + rows : i;
      const float kept = keeps_upper ? bias[other] : bias[i];
      const float sent = keeps_upper ? bias[i] : bias[other];
      bias[i] = __fadd_rn(kept, __int_as_float(lane_across(__float_as_int(sent), bit)));
    }
  }
  // The first token of a Domino head is decided by the base logits alone.
  const bool plain = HEAD == Head::DOMINO && step == 0;
  return key_of(plain ? base : __fadd_rn(base, rounded(bias[0])));
}

#endif

}  // namespace wts
