// One walk in one launch: W stays on chip, tokens are selected and the state advances on the GPU.
#include "args.cuh"
#include "heads/kind.cuh"
#include "plan_constants.h"
#include "product/tcgen05.cuh"
#include "ptx/barrier.cuh"
#include "ptx/base.cuh"
#include "roles/load_weights.cuh"
#include "roles/service.cuh"
#include "roles/sweep.cuh"
#include "rounds.cuh"
#include "select/sampled.cuh"
#include "shared.cuh"
#include "state/exchanged_sums.cuh"
#include "teams.cuh"

namespace wts {

// Asks for the small things first: behind 39 MB of weights they would wait.
__device__ __forceinline__ void prepare(const WalkArgs& args, Shared& shared) {
  barrier_init(&shared.weights_landed, 1);
  barrier_init(&shared.state_landed, 1);
  for (int place = 0; place < plan::HIDDEN_PLACES; ++place)
    for (int column = 0; column < plan::EARLY_COLUMNS; ++column)
      barrier_init(&shared.hidden_landed[place][column], 1);
  barrier_init(&shared.token_known, plan::COLUMNS * WARP_ARRIVALS);
  barrier_init(&shared.sums_published, plan::SWEEP_WARPS * WARP_ARRIVALS);
  barrier_init(&shared.sums_gathered, plan::SWEEP_WARPS * WARP_ARRIVALS);
  for (int slot = 0; slot < plan::LATENT_SLOTS; ++slot)
    barrier_init(&shared.latents_ready[slot], SERVING_WARPS * WARP_ARRIVALS);
  for (int slot = 0; slot < plan::BASE_SLOTS; ++slot) {
    barrier_init(&shared.candidates_ready[slot], plan::SWEEP_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.base_landed[slot], plan::COLUMNS * WARP_ARRIVALS);
    for (int column = 0; column < plan::COLUMNS; ++column)
      barrier_init(&shared.base_copied[slot][column], WARP_ARRIVALS);
  }
  if constexpr (plan::STREAMED_FRAGMENTS > 0 &&
                (plan::WARPGROUPS || plan::COPIED_TOGETHER > 1)) {
    for (int place = 0; place < plan::RING_PLACES; ++place) {
      barrier_init(&shared.ring_landed[0][0] + place, 1);
      (&shared.ring_readers[0][0])[place] = 0;
    }
  }
#if WTS_TENSOR
  for (int i = 0; i < plan::ASYNC_ACCUMULATORS; ++i) barrier_init(&shared.sums_made[i], 1);
#endif
#if WTS_OWNED
  for (int group = 0; group < plan::GROUPS; ++group) {
    barrier_init(&shared.own_sums_made[group], plan::SWEEP_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.states_sent[group], SERVING_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.projections_sent[group], plan::SWEEP_WARPS * WARP_ARRIVALS);
  }
#endif
  shared.sequence = args.status->sequence;
  if constexpr (plan::SAMPLED) shared.noise_offset = static_cast<u32>(*args.noise_offset);
  shared.abandoned = 0;
#if WTS_EXACT
  shared.exact_weight = args.exact->weight;
  shared.exact_table = args.exact->table;
  shared.largest_scale = args.exact->largest_scale;
  shared.spread = args.exact->spread;
  shared.growth = args.exact->growth;
  shared.smallest = args.exact->smallest;
  shared.longest = args.exact->longest;
#endif
  fence_barrier_init();
}

// Whether this batch is another plan's to walk; the same in all threads.
__device__ __forceinline__ bool stands_aside(const WalkArgs& args) {
  if (args.turn == Turn::ALWAYS) return false;
  bool sampled = false;
#pragma unroll 1
  for (int request = lane_index(); request < args.num_requests; request += 32)
    sampled |= args.temperatures[request] > 0.0f;
  return __any_sync(0xffffffffu, sampled) != (args.turn == Turn::ANY_SAMPLED);
}

}  // namespace wts

extern "C" __global__ void __launch_bounds__(wts::plan::THREADS, 1)
    wts_walk(const __grid_constant__ wts::WalkArgs args) {
  using namespace wts;
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  if (threadIdx.x == 0) prepare(args, shared);
  __syncwarp();
  if (stands_aside(args)) return;
  begin_tensor_memory(shared);
  if constexpr (plan::SAMPLED) read_temperatures(args, shared);
  __syncthreads();

  if (threadIdx.x < plan::SWEEP_WARPS * 32) {
    take_registers<plan::SWEEP_REGISTERS>();
    sweep_role(args, shared);
  } else {
    give_registers<plan::SERVICE_REGISTERS>();
    if (threadIdx.x >= plan::THREADS - 32) {
      ask_first_hidden(args, shared);
      if constexpr (EARLY || OWNED) load_inner_weights(args, shared);
      load_shared_weights(args, shared);
    }
    if (threadIdx.x / 32 - plan::SWEEP_WARPS < SERVING_WARPS) service_role(args, shared);
  }
}
