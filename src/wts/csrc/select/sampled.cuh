// Requests that are sampled: their temperatures, and where their step logits are wanted.
#pragma once
#include "block.cuh"
#include "numbers.cuh"
#include "rounds.cuh"
#include "tiles.cuh"

namespace wts {

// Temperatures are read here, in the kernel, so that one captured graph serves any mix of rows.
__device__ __forceinline__ void read_temperatures(const Block& block) {
  const int request = threadIdx.x;
  if (request >= plan::GROUPS * plan::COLUMNS) return;
  float temperature = 0.0f;
  if (request < block.args.num_requests) temperature = block.args.temperatures[request];
  if (temperature > 0.0f) temperature = fmaxf(temperature, plan::LEAST_TEMPERATURE);
  block.shared.temperature[request / plan::COLUMNS][request % plan::COLUMNS] = temperature;
  // Never 0, by which a masked row's -inf would become a NaN.
  const float inverse = fmaxf(__fdiv_rn(1.0f, temperature), 1.4e-45f);
  block.shared.inverse_temperature[request / plan::COLUMNS][request % plan::COLUMNS] =
      temperature > 0.0f ? inverse : 1.0f;
}

// What a lane knows of its sampled requests, by block; read before the latents are there.
struct Sampling {
  float inverse[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];  // factor of the score
  Byte* logits[plan::SAMPLED ? plan::COLUMN_BLOCKS : 1];   // of row 0, or null: not exported
  u32 sampled = 0;                                         // a bit for each block
  bool any = false;                                        // in this warp
  bool whole = false;  // step logits can be stored two at a time: even strides, no end inside

  __device__ __forceinline__ Sampling(const Block& block, int lane, int round) {
    if constexpr (plan::SAMPLED) {
      const int group = round_group(round);
#pragma unroll
      for (int nth = 0; nth < plan::COLUMN_BLOCKS; ++nth) {
        const int column = lane_column(lane, nth), request = group * plan::COLUMNS + column;
        inverse[nth] = block.shared.inverse_temperature[group][column];
        const bool here = block.shared.temperature[group][column] > 0.0f;
        if (here) sampled |= 1u << nth;
        const long long first = request * block.args.logits_request_stride +
                                round_step(round) * block.args.logits_step_stride +
                                static_cast<long long>(blockIdx.x) * plan::ROWS;
        logits[nth] = here && block.args.logits_out != nullptr && request < block.args.num_requests
                          ? block.args.logits_out + first * STEP_BYTES
                          : nullptr;
      }
      const u64 odd = reinterpret_cast<u64>(block.args.logits_out) / STEP_BYTES |
                      static_cast<u64>(block.args.logits_request_stride) |
                      static_cast<u64>(block.args.logits_step_stride);
      whole = (odd & 1) == 0 && (blockIdx.x + 1) * plan::ROWS <= plan::VOCAB;
      any = __any_sync(0xffffffffu, sampled != 0);
    }
  }

  __device__ __forceinline__ bool is_sampled(int nth) const { return (sampled >> nth) & 1u; }

  // Stores the step logits a sampled row is drawn from, for whoever verifies the draft: a pair of
  // rows where pairs can be stored, without a branch.
  __device__ __forceinline__ void export_pair(int nth, int row, float x0, float x1) const {
    if (whole && logits[nth] != nullptr) store_step_logits(logits[nth] + row * STEP_BYTES, x0, x1);
  }

  // The same one by one.
  __device__ __forceinline__ void export_rows(int nth, int row, float x0, float x1) const {
    const int rows = plan::VOCAB - Block::first_row();
    if (logits[nth] == nullptr) return;
    if (row < rows) store_step_logit(logits[nth] + row * STEP_BYTES, x0);
    if (row + 1 < rows) store_step_logit(logits[nth] + (row + 1) * STEP_BYTES, x1);
  }
};

}  // namespace wts
