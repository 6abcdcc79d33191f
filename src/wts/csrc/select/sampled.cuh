// Requests that are sampled: their temperatures, and where their step logits are wanted.
#pragma once
#include "args.cuh"
#include "numbers.cuh"
#include "plan_constants.h"
#include "rounds.cuh"
#include "shared.cuh"
#include "tiles.cuh"

namespace wts {

// Temperatures are read here, in the kernel, so that one captured graph serves any mix of rows.
__device__ __forceinline__ void read_temperatures(const WalkArgs& args, Shared& shared) {
  const int request = threadIdx.x;
  if (request >= plan::GROUPS * plan::COLUMNS) return;
  float temperature = 0.0f;
  if (request < args.num_requests) temperature = args.temperatures[request];
  if (temperature > 0.0f) temperature = fmaxf(temperature, plan::LEAST_TEMPERATURE);
  shared.temperature[request / plan::COLUMNS][request % plan::COLUMNS] = temperature;
  // Never 0, by which a masked row's -inf would become a NaN.
  const float inverse = fmaxf(__fdiv_rn(1.0f, temperature), 1.4e-45f);
  shared.inverse_temperature[request / plan::COLUMNS][request % plan::COLUMNS] =
      temperature > 0.0f ? inverse : 1.0f;
}

// What a lane knows of its sampled requests, by block; read before the latents are there.
struct Sampling {
  float inverse[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];  // factor of the score
  Byte* logits[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];   // of row 0, or null: not exported
  u32 sampled = 0;                                         // a bit for each block
  bool any = false;                                        // in this warp
  bool whole = false;  // step logits can be stored two at a time: even strides, no end inside

  __device__ __forceinline__ Sampling(const WalkArgs& args, const Shared& shared, int lane,
                                      int round) {
    if constexpr (plan::SAMPLED) {
      const int group = round_group(round);
#pragma unroll
      for (int block = 0; block < plan::COLUMN_BLOCKS; ++block) {
        const int column = lane_column(lane, block), request = group * plan::COLUMNS + column;
        inverse[block] = shared.inverse_temperature[group][column];
        const bool here = shared.temperature[group][column] > 0.0f;
        if (here) sampled |= 1u << block;
        const long long first = request * args.logits_request_stride +
                                round_step(round) * args.logits_step_stride +
                                static_cast<long long>(blockIdx.x) * plan::ROWS;
        logits[block] = here && args.logits_out != nullptr && request < args.num_requests
                            ? args.logits_out + first * STEP_BYTES
                            : nullptr;
      }
      const u64 odd = reinterpret_cast<u64>(args.logits_out) / STEP_BYTES |
                      static_cast<u64>(args.logits_request_stride) |
                      static_cast<u64>(args.logits_step_stride);
      whole = (odd & 1) == 0 && (blockIdx.x + 1) * plan::ROWS <= plan::VOCAB;
      any = __any_sync(0xffffffffu, sampled != 0);
    }
  }

  __device__ __forceinline__ bool is_sampled(int block) const { return (sampled >> block) & 1u; }

  // Stores the step logits a sampled row is drawn from, for whoever verifies the draft: a pair of
  // rows where pairs can be stored, without a branch.
  __device__ __forceinline__ void export_pair(int block, int row, float x0, float x1) const {
    if (whole && logits[block] != nullptr)
      store_step_logits(logits[block] + row * STEP_BYTES, x0, x1);
  }

  // The same one by one.
  __device__ __forceinline__ void export_rows(int block, int row, float x0, float x1) const {
    const int rows = plan::VOCAB - static_cast<int>(blockIdx.x) * plan::ROWS;
    if (logits[block] == nullptr) return;
    if (row < rows) store_step_logit(logits[block] + row * STEP_BYTES, x0);
    if (row + 1 < rows) store_step_logit(logits[block] + (row + 1) * STEP_BYTES, x1);
  }
};

}  // namespace wts
