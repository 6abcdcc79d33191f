// One walk in one launch: W stays on chip, tokens are selected and the state advances on the GPU.
#include "block.cuh"
#include "heads/kind.cuh"
#include "product/tcgen05.cuh"
#include "ptx/barrier.cuh"
#include "roles/load_weights.cuh"
#include "roles/service.cuh"
#include "roles/sweep.cuh"
#include "rounds.cuh"
#include "select/sampled.cuh"
#include "state/exchanged_sums.cuh"

namespace wts {

// Asks for the small things first: behind 39 MB of weights they would wait.
__device__ __forceinline__ void prepare(const Block& block) {
  barrier_init(&block.shared.weights_landed, 1);
  barrier_init(&block.shared.state_landed, 1);
  for (int place = 0; place < plan::HIDDEN_PLACES; ++place)
    for (int column = 0; column < plan::EARLY_COLUMNS; ++column)
      barrier_init(&block.shared.hidden_landed[place][column], 1);
  barrier_init(&block.shared.token_known, plan::COLUMNS * WARP_ARRIVALS);
  barrier_init(&block.shared.sums_published, plan::SWEEP_WARPS * WARP_ARRIVALS);
  barrier_init(&block.shared.sums_gathered, plan::SWEEP_WARPS * WARP_ARRIVALS);
  for (int slot = 0; slot < plan::LATENT_SLOTS; ++slot)
    barrier_init(&block.shared.latents_ready[slot], SERVING_WARPS * WARP_ARRIVALS);
  for (int slot = 0; slot < plan::BASE_SLOTS; ++slot) {
    barrier_init(&block.shared.candidates_ready[slot], plan::SWEEP_WARPS * WARP_ARRIVALS);
    barrier_init(&block.shared.base_landed[slot], plan::COLUMNS * WARP_ARRIVALS);
    for (int column = 0; column < plan::COLUMNS; ++column)
      barrier_init(&block.shared.base_copied[slot][column], WARP_ARRIVALS);
  }
  if constexpr (plan::STREAMED_FRAGMENTS > 0 &&
                (plan::WARPGROUPS || plan::COPIED_TOGETHER > 1)) {
    for (int place = 0; place < plan::RING_PLACES; ++place) {
      barrier_init(&block.shared.ring_landed[0][0] + place, 1);
      (&block.shared.ring_readers[0][0])[place] = 0;
    }
  }
#if WTS_TENSOR
  for (int i = 0; i < plan::ASYNC_ACCUMULATORS; ++i) barrier_init(&block.shared.sums_made[i], 1);
#endif
#if WTS_OWNED
  for (int group = 0; group < plan::GROUPS; ++group) {
    barrier_init(&block.shared.own_sums_made[group], plan::SWEEP_WARPS * WARP_ARRIVALS);
    barrier_init(&block.shared.states_sent[group], SERVING_WARPS * WARP_ARRIVALS);
    barrier_init(&block.shared.projections_sent[group], plan::SWEEP_WARPS * WARP_ARRIVALS);
  }
#endif
  block.shared.sequence = block.args.status->sequence;
  if constexpr (plan::SAMPLED)
    block.shared.noise_offset = static_cast<u32>(*block.args.noise_offset);
  block.shared.abandoned = 0;
#if WTS_EXACT
  block.shared.exact_weight = block.args.exact->weight;
  block.shared.exact_table = block.args.exact->table;
  block.shared.largest_scale = block.args.exact->largest_scale;
  block.shared.spread = block.args.exact->spread;
  block.shared.growth = block.args.exact->growth;
  block.shared.smallest = block.args.exact->smallest;
  block.shared.longest = block.args.exact->longest;
#endif
  fence_barrier_init();
}

// Whether this batch is another plan's to walk; the same in all threads.
__device__ __forceinline__ bool stands_aside(const Block& block) {
  if (block.args.turn == Turn::ALWAYS) return false;
  bool sampled = false;
#pragma unroll 1
  for (int request = lane_index(); request < block.args.num_requests; request += 32)
    sampled |= block.args.temperatures[request] > 0.0f;
  return __any_sync(0xffffffffu, sampled) != (block.args.turn == Turn::ANY_SAMPLED);
}

}  // namespace wts

extern "C" __global__ void __launch_bounds__(wts::plan::THREADS, 1)
    wts_walk(const __grid_constant__ wts::WalkArgs args) {
  using namespace wts;
  const Block block{args, *reinterpret_cast<Shared*>(dynamic_shared_memory())};
  if (threadIdx.x == 0) prepare(block);
  __syncwarp();
  if (stands_aside(block)) return;
  begin_tensor_memory(block);
  if constexpr (plan::SAMPLED) read_temperatures(block);
  __syncthreads();

  if (threadIdx.x < plan::SWEEP_WARPS * 32) {
    take_registers<plan::SWEEP_REGISTERS>();
    sweep_role(block);
  } else {
    give_registers<plan::SERVICE_REGISTERS>();
    if (threadIdx.x >= plan::THREADS - 32) {
      ask_first_hidden(block);
      if constexpr (EARLY || OWNED) load_inner_weights(block);
      load_shared_weights(block);
    }
    if (threadIdx.x / 32 - plan::SWEEP_WARPS < SERVING_WARPS) service_role(block);
  }
}
