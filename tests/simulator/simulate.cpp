// Runs one launch of the walk kernel on the CPU, fiber by fiber.
#include "walk.cu"

namespace sim {

void enter(unsigned high, unsigned low) {
  const auto* args = reinterpret_cast<const wts::WalkArgs*>(
      (static_cast<uintptr_t>(high) << 32) | static_cast<uintptr_t>(low));
  wts_walk(*args);
  current->done = true;
  for (;;) yield();
}

void land_copies(Block& block) {
  for (size_t i = 0; i < block.copies.size();) {
    Copy& copy = block.copies[i];
    if (copy.delay-- > 0) {
      ++i;
      continue;
    }
    std::memcpy(copy.to, copy.from, copy.bytes);
    copy.barrier->bytes -= copy.bytes;
    copy.barrier->settle();
    block.copies.erase(block.copies.begin() + static_cast<long>(i));
  }
}

}  // namespace sim

// Returns 0 when every thread ended; 1 on a bad access; 2 when nothing ended for too long. The
// first `absent` blocks never run, as if the GPU had no room for them.
extern "C" int simulate(const wts::WalkArgs* args, const sim::Range* ranges, int num_ranges,
                        unsigned seed, int absent, long long most_turns, char* message) {
  using namespace sim;
  constexpr int STACK = 64 << 10;
  namespace plan = wts::plan;
  sim::ranges.assign(ranges, ranges + num_ranges);
  random_order.seed(seed);
  now = 0;
  failed = false;
  std::vector<Block> blocks(plan::NUM_BLOCKS);
  std::vector<Fiber> fibers;
  fibers.reserve(static_cast<size_t>(plan::NUM_BLOCKS) * plan::THREADS);
  for (int index = absent; index < plan::NUM_BLOCKS; ++index) {
    Block& block = blocks[static_cast<size_t>(index)];
    block.memory.resize(plan::SHARED_BYTES + 128);
    for (unsigned char& byte : block.memory) byte = static_cast<unsigned char>(random_order());
    const auto start = reinterpret_cast<uintptr_t>(block.memory.data());
    block.shared = block.memory.data() + (128 - start % 128) % 128;
    block.warps.resize(plan::THREADS / LANES);
    for (int thread = 0; thread < plan::THREADS; ++thread) {
      fibers.emplace_back();
      Fiber& fiber = fibers.back();
      fiber.stack = std::make_unique<char[]>(STACK);
      fiber.block = &block;
      fiber.block_index = index;
      fiber.thread = thread;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = STACK;
      const auto address = reinterpret_cast<uintptr_t>(args);
      makecontext(&fiber.context, reinterpret_cast<void (*)()>(enter), 2,
                  static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    }
  }
  // Whole warps take turns in a random order, some more often than others.
  const int warps = static_cast<int>(fibers.size()) / LANES;
  std::vector<int> order(static_cast<size_t>(warps));
  for (int i = 0; i < warps; ++i) order[static_cast<size_t>(i)] = i;
  int result = 2;
  for (long long turn = 0; turn < most_turns && result == 2; ++turn) {
    std::shuffle(order.begin(), order.end(), random_order);
    bool all_done = true;
    for (const int warp : order) {
      const int repeats = 1 + static_cast<int>(random_order() % 8);
      for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int lane = 0; lane < LANES; ++lane) {
          Fiber& fiber = fibers[static_cast<size_t>(warp * LANES + lane)];
          if (fiber.done) continue;
          all_done = false;
          current = &fiber;
          swapcontext(&scheduler, &fiber.context);
        }
        now += 10;
      }
      if (failed) break;
    }
    scheduling = true;
    for (Block& block : blocks) {
      land_copies(block);
      try {
        wts::do_tensor_work(block);
      } catch (Failed) {  // what has failed is noted
      }
    }
    scheduling = false;
    if (failed) result = 1;
    else if (all_done) result = 0;
  }
  for (const Block& block : blocks)
    if (result == 0 && block.tensor_columns != 0) {
      result = 1;
      failed = true;
      std::snprintf(sim::message, sizeof sim::message, "tensor memory was not released");
    }
  std::snprintf(message, 256, "%s", failed ? sim::message : result == 2 ? "no end in sight" : "");
  return result;
}
