// How the service warps share out a group's requests, its columns.
#pragma once
#include "heads/kind.cuh"
#include "plan_constants.h"

namespace wts {

// One group's requests may be fewer than the service warps: then TEAM of them make a latent
// together.
constexpr int SERVED = (plan::COLUMNS + plan::SERVICE_WARPS - 1) / plan::SERVICE_WARPS;
constexpr int TEAMS = plan::COLUMNS / SERVED;
constexpr int TEAM =
    HEAD == Head::MARKOV || plan::GROUPS > 1 ? 1 : plan::SERVICE_WARPS / TEAMS;
static_assert(SERVED * TEAMS == plan::COLUMNS, "columns are shared out evenly");
static_assert(TEAM == 1 || TEAM == 2 || TEAM == 4, "a run is a power of two");
constexpr int TEAM_LANES = 32 * TEAM;

constexpr int SERVING_WARPS = TEAMS * TEAM;  // the others have nothing to do
// Columns whose words a service warp holds at once.
constexpr int TOGETHER = plan::SERVED_TOGETHER;

// Tokens kept for their latents to be fetched later; one where they are fetched at once.
constexpr int LATER = plan::LATER_TOKENS;

}  // namespace wts
