// Runs one launch on the CPU, fiber by fiber.
#include "machine.h"

namespace sim {

Fiber* current = nullptr;
std::mt19937 random_order;
unsigned long long now = 0;

namespace {

constexpr int STACK = 64 << 10;
jmp_buf scheduler;
const Launch* launched = nullptr;
bool failed = false;
char message[256];
bool scheduling = false;  // no fiber runs
struct Failed {};

void enter() {
  launched->kernel();
  current->done = true;
  for (;;) yield();
}

void resume(Fiber& fiber) {
  current = &fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber.stack.get();
  start.uc_stack.ss_size = STACK;
  makecontext(&start, enter, 0);
  setcontext(&start);
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

}  // namespace

// Not swapcontext: that asks the operating system for the mask of signals, twice a turn.
void yield() {
  if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
}

void wait_while(const unsigned& watched, unsigned seen) {
  current->watched = &watched;
  current->seen = seen;
  while (watched == seen) yield();
  current->watched = nullptr;
}

void fail(const char* what, const void* where, unsigned bytes) {
  if (!failed)
    std::snprintf(message, sizeof message, "%s: %u bytes at %p (block %d, thread %d)", what, bytes,
                  where, current->block_index, current->thread);
  failed = true;
  if (scheduling) throw Failed{};
  for (;;) yield();
}

void check_global(const void* pointer, unsigned bytes, unsigned alignment) {
  const char* first = static_cast<const char*>(pointer);
  if (reinterpret_cast<uintptr_t>(first) % alignment != 0) fail("misaligned", pointer, bytes);
  for (int i = 0; i < launched->num_ranges; ++i) {
    const Range& range = launched->ranges[i];
    if (first >= range.first && first + bytes <= range.first + range.bytes) return;
  }
  fail("outside global memory", pointer, bytes);
}

unsigned char* check_shared(unsigned address, unsigned bytes, unsigned alignment) {
  if (address % alignment != 0 || address + bytes > current->block->memory.size() - 128)
    fail("outside shared memory, or misaligned", reinterpret_cast<void*>(address), bytes);
  return current->block->shared + address;
}

const Packet* meet(const Packet& mine) {
  Meeting& meeting = current->block->warps[current->thread / LANES];
  const unsigned generation = meeting.generation;
  Packet* packets = meeting.packets[generation & 1];
  packets[current->thread % LANES] = mine;
  if (++meeting.come == LANES) {
    meeting.come = 0;
    ++meeting.generation;
  } else {
    wait_while(meeting.generation, generation);
  }
  return packets;
}

MBarrier& barrier(const void* pointer) { return current->block->barriers[pointer]; }

int run(const Launch& launch, char* said) {
  launched = &launch;
  random_order.seed(launch.seed);
  now = 0;
  failed = false;
  std::vector<Block> blocks(static_cast<size_t>(launch.blocks));
  std::vector<Fiber> fibers;
  fibers.reserve(static_cast<size_t>(launch.blocks) * static_cast<size_t>(launch.threads));
  for (int index = launch.absent; index < launch.blocks; ++index) {
    Block& block = blocks[static_cast<size_t>(index)];
    block.memory.resize(launch.shared_bytes + 128);
    for (unsigned char& byte : block.memory) byte = static_cast<unsigned char>(random_order());
    const auto start = reinterpret_cast<uintptr_t>(block.memory.data());
    block.shared = block.memory.data() + (128 - start % 128) % 128;
    block.warps.resize(static_cast<size_t>(launch.threads / LANES));
    for (int thread = 0; thread < launch.threads; ++thread) {
      fibers.emplace_back();
      Fiber& fiber = fibers.back();
      fiber.stack.reset(new char[STACK]);
      fiber.block = &block;
      fiber.block_index = index;
      fiber.thread = thread;
    }
  }
  // Whole warps take turns in a random order, some more often than others.
  const int warps = static_cast<int>(fibers.size()) / LANES;
  std::vector<int> order(static_cast<size_t>(warps));
  for (int i = 0; i < warps; ++i) order[static_cast<size_t>(i)] = i;
  int result = 2;
  for (long long turn = 0; turn < launch.most_turns && result == 2; ++turn) {
    std::shuffle(order.begin(), order.end(), random_order);
    bool all_done = true;
    for (const int warp : order) {
      const int repeats = 1 + static_cast<int>(random_order() % 8);
      for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int lane = 0; lane < LANES; ++lane) {
          Fiber& fiber = fibers[static_cast<size_t>(warp * LANES + lane)];
          if (fiber.done) continue;
          all_done = false;
          if (fiber.watched == nullptr || *fiber.watched != fiber.seen) resume(fiber);
        }
        now += 10;
      }
      if (failed) break;
    }
    scheduling = true;
    for (Block& block : blocks) {
      land_copies(block);
      try {
        launch.tensor_work(block);
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
      std::snprintf(message, sizeof message, "tensor memory was not released");
    }
  std::snprintf(said, 256, "%s", failed ? message : result == 2 ? "no end in sight" : "");
  return result;
}

}  // namespace sim
