"""Units that plans count in, and the few numbers of the kernel that no plan chooses."""

from __future__ import annotations

from typing import Literal

__all__ = [
    "COMPACT_ROWS",
    "EXACT_ROWS",
    "FIRST_EXACT_POLL_CYCLES",
    "FIRST_POLL_CYCLES",
    "FIRST_SAMPLED_POLL_CYCLES",
    "FRAGMENT_BYTES",
    "MOST_DRAWING_TILES",
    "PAIR_ROWS",
    "SERVICE_WARPS",
    "SUMS_JUDGED",
    "TILES_JUDGED",
    "TILE_ROWS",
    "WARPGROUP",
    "Instruction",
    "Place",
]

# "mma": each warp multiplies for up to four requests, latents in registers (mma.sync). "wgmma":
# four warps together multiply for eight requests, latents in shared memory (wgmma.mma_async).
Instruction = Literal["mma", "wgmma"]
Place = Literal["register", "shared", "streamed"]  # of a fragment of a lone tile
TILE_ROWS = 16
PAIR_ROWS = 32
FRAGMENT_BYTES = 512  # one slab of one tile
SERVICE_WARPS = 4

# Of a warp of a warpgroup: more, each drawing its own noise, do not fit in the instruction cache.
MOST_DRAWING_TILES = 10
TILES_JUDGED = 2  # of such a warp, at once: a pair, whose noise comes together
WARPGROUP = 4  # warps that issue a warpgroup's matrix instruction together

# After publishing; sampled blocks are further apart, so that some wait anyway (docs/measured.md).
FIRST_POLL_CYCLES, FIRST_SAMPLED_POLL_CYCLES, FIRST_EXACT_POLL_CYCLES = 200, 100, 330
COMPACT_ROWS = 4096  # rows a one-word candidate can name
EXACT_ROWS = 2048  # in an exact walk, whose words say more
SUMS_JUDGED = 2  # accumulators of tcgen05 that a warp reads and judges at once
