// Which head a kernel walks, and how its inner sums are shared out.
#pragma once
#include "plan_constants.h"

namespace wts {

enum class Head { MARKOV, GATED, RNN, DOMINO };
constexpr Head HEAD = static_cast<Head>(plan::HEAD);
constexpr bool STATEFUL = HEAD == Head::RNN || HEAD == Head::DOMINO;
// Whether a block takes in tokens for units of its own, and blocks exchange the states they leave.
constexpr bool OWNED = WTS_OWNED;
// Whether blocks share out and exchange inner sums that need no token, ahead of it.
constexpr bool EARLY = (STATEFUL && !OWNED) || plan::HIDDEN_INSIDE;
static_assert(!EARLY || plan::GROUPS == 1, "several groups' units are owned");

}  // namespace wts
