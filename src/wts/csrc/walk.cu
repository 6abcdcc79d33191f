// One walk in one launch: W stays on chip, tokens are selected and the state advances on the GPU.
#include "service.cuh"

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

// Offset of each fragment outside the registers among its warp's packed tiles.
__constant__ const int away_offset[] = {WTS_AWAY_SOURCE};

// The scales and the fragments that live in shared memory, by bulk copies of one whole warp.
__device__ __forceinline__ void load_shared_weights(const WalkArgs& args, Shared& shared) {
  constexpr u32 SCALE_BYTES = plan::ROW_SCALE_WORDS * 4;
  constexpr u32 BYTES = plan::SWEEP_WARPS * plan::SHARED_FRAGMENTS * plan::FRAGMENT_BYTES;
  const int lane = lane_index();
  if (lane == 0) {
    barrier_arrive_expect(&shared.weights_landed, SCALE_BYTES + BYTES);
    bulk_copy(shared.row_scale, args.row_scale + blockIdx.x * plan::ROW_SCALE_WORDS, SCALE_BYTES,
              &shared.weights_landed);
  }
  __syncwarp();
  constexpr int UNITS = plan::SWEEP_WARPS / plan::OPERAND_WARPS, LANES = 32 / UNITS;
  const int unit = lane / LANES;
  if (unit >= UNITS) return;
#pragma unroll 1
  for (int index = lane % LANES; index < plan::SHARED_FRAGMENTS; index += LANES)
    bulk_copy(shared.fragments[(unit * plan::SHARED_FRAGMENTS + index) * plan::OPERAND_WARPS],
              packed_tiles(args, unit) + away_offset[plan::STREAMED_FRAGMENTS + index],
              OPERAND_BYTES, &shared.weights_landed);
}

// This block's rows of a matrix of KINDS times UNITS rows, EACH of every kind: their bytes.
template <int KINDS, int UNITS, int EACH, int LENGTH, typename To>
__device__ __forceinline__ u32 load_own_rows(To& to, const Byte* from, Barrier* landed, bool copy) {
  constexpr int ROW_BYTES = LENGTH * 2;
  const int first = static_cast<int>(blockIdx.x) * EACH;
  const u32 bytes = min(EACH, max(0, UNITS - first)) * ROW_BYTES;
  for (int kind = 0; copy && bytes > 0 && kind < KINDS; ++kind)
    bulk_copy(to[kind * EACH], from + static_cast<long long>(kind * UNITS + first) * ROW_BYTES,
              bytes, landed);
  return KINDS * bytes;
}

__device__ __forceinline__ void load_inner_weights(const WalkArgs& args, Shared& shared) {
  if (lane_index() != 0) return;
  Barrier* landed = &shared.state_landed;
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {  // first all bytes are announced
    const bool copy = turn == 1;
    u32 bytes = 0;
    if constexpr (plan::HIDDEN_INSIDE && HEAD == Head::DOMINO)
      bytes += load_own_rows<1, plan::PROJECTOR_ROWS, plan::BLOCK_PROJECTIONS, plan::HIDDEN>(
          shared.hidden_weight, args.hidden_weight, landed, copy);
    if constexpr (plan::HIDDEN_INSIDE && HEAD != Head::DOMINO)
      bytes += load_own_rows<plan::UNIT_ROWS, plan::UNITS, plan::BLOCK_UNITS, plan::HIDDEN>(
          shared.hidden_weight, args.hidden_weight, landed, copy);
    if constexpr (STATEFUL)
      bytes += load_own_rows<plan::UNIT_ROWS, plan::UNITS, plan::BLOCK_UNITS, plan::STATE>(
          shared.state_weight, args.state_weight, landed, copy);
    if constexpr (HEAD == Head::DOMINO)
      bytes += load_own_rows<1, plan::PROJECTOR_ROWS, plan::BLOCK_PROJECTIONS, plan::STATE>(
          shared.projector_weight, args.projector_weight, landed, copy);
    if (!copy) barrier_arrive_expect(landed, bytes);
  }
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
