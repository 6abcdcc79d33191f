"""Which rows of the vocabulary projection live where on the chip, and every size that follows.

The plan is the only author of sizes: it renders the constants that the kernel is compiled with
(`ResidencyPlan.render_header`), tells packing how rows become tiles, and tells the emulator which
rows a block owns. How one is made is in `planner`. Pure integers; no torch.

Rows come in tiles of 16, tiles in pairs of 32 consecutive tokens. A block owns a shard: a run of
`rows` consecutive tokens; each of its sweeping warps owns `warp_tiles` tiles of it. On Blackwell
the last of them may be multiplied by tcgen05, one of every warp together, from tensor memory or
from shared memory, while warps multiply their others.

`residency` has the plan and its sizes; `sweep` the order of fragments and their places, `layout`
shared memory, `header` what is rendered for the kernel, `ledger` what is printed. Others import
from here.
"""

from __future__ import annotations

from wts.plan.layout import shared_layout
from wts.plan.residency import ResidencyPlan
from wts.plan.units import (
    EXACT_ROWS,
    EXACT_SOURCE_WORDS,
    FRAGMENT_BYTES,
    LARGEST_EXACT_PRODUCT,
    LEAST_EXACT_PRODUCT,
    LEAST_TEMPERATURE,
    PAIR_ROWS,
    SLAB_BYTES,
    TILE_ROWS,
    TILES_JUDGED,
    WARPGROUP,
    Instruction,
    Place,
)

__all__ = [
    "EXACT_ROWS",
    "EXACT_SOURCE_WORDS",
    "FRAGMENT_BYTES",
    "LARGEST_EXACT_PRODUCT",
    "LEAST_EXACT_PRODUCT",
    "LEAST_TEMPERATURE",
    "PAIR_ROWS",
    "SLAB_BYTES",
    "TILES_JUDGED",
    "TILE_ROWS",
    "WARPGROUP",
    "Instruction",
    "Place",
    "ResidencyPlan",
    "shared_layout",
]
