// How blocks agree on a token: each publishes its best row, each reads everybody's.
//
// One word per (request, block) carries candidate and tag together, so it is true as soon as it is
// seen: single-copy atomicity (PTX 8.5) is the only ordering needed, no fence, no counter.
//   The tag names the exchange: sequence number / 2, since slots alternate by its parity. When a
// block waits in exchange s, every block has published s - 1 (else it would still wait there), and
// none can have published s + 2 (that needs this block's s + 1). So a slot of parity s holds the
// word of s - 2 or of s, whose tags differ by one: two bits are enough, and wrap without harm.
// Every exchange writes every slot of its parity, also for absent requests, so no word grows old.
// The sequence number lives in the workspace, read at the start and advanced at the end of a walk:
// replays of a captured graph need no reset.
//   A walk that was given up breaks this order (its blocks no longer wait), so words may be stale
// until the host has seen the error and cleared the workspace; the error stays until then.
#pragma once
#include "plan_constants.h"

namespace wts {

// Words a lane reads of one exchange: 16 bytes at once as long as that leaves no lane idle (a
// vector access is its elements' accesses in some order, PTX 8.2.2, and no order is needed), then
// one by one. Long words come one by one: in pairs they took registers that there are not.
constexpr int VECTOR_WORDS = plan::WIDE ? 1 : 4;
constexpr int VECTORS = plan::NUM_BLOCKS / (32 * VECTOR_WORDS);
constexpr int SINGLES = (plan::NUM_BLOCKS - VECTORS * 32 * VECTOR_WORDS + 31) / 32;
constexpr int BLOCKS_PER_LANE = VECTORS * VECTOR_WORDS + SINGLES;
// The block of a lane's word; ascending with i within a lane.
__device__ __forceinline__ int block_of(int lane, int i) {
  if (i < VECTORS * VECTOR_WORDS)
    return (i / VECTOR_WORDS * 32 + lane) * VECTOR_WORDS + i % VECTOR_WORDS;
  return VECTORS * 32 * VECTOR_WORDS + (i - VECTORS * VECTOR_WORDS) * 32 + lane;
}
__device__ __forceinline__ int lane_of(int block) {
  return (block < VECTORS * 32 * VECTOR_WORDS ? block / VECTOR_WORDS : block) & 31;
}

}  // namespace wts
