// One plan's kernel as a launch of the machine's.
#include "ptx/tcgen05.cuh"
#include "resident.cu"

namespace {

const wts::WalkArgs* arguments = nullptr;

void kernel() { wts_walk(*arguments); }

}  // namespace

extern "C" int simulate(const wts::WalkArgs* args, const sim::Range* ranges, int num_ranges,
                        unsigned seed, int absent, long long most_turns, char* message) {
  namespace plan = wts::plan;
  arguments = args;
  return sim::run({plan::NUM_BLOCKS, absent, plan::THREADS, plan::SHARED_BYTES, kernel,
                   wts::do_tensor_work, ranges, num_ranges, seed, most_turns},
                  message);
}
