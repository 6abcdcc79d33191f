// Whether a launch walks at all.
#pragma once
#include "plan_constants.h"
#include "types.cuh"

namespace wts {

// Which batches a launch walks; of others it leaves all as it is. By this a greedy and a sampled
// plan take turns in one captured graph, as temperatures say.
enum class Turn : u32 { WTS_TURNS };

}  // namespace wts
