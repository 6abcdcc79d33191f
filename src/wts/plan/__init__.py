"""Which rows of the vocabulary projection live where on the chip, and every size that follows."""

from __future__ import annotations

from wts.plan.residency import (
    EXACT_ROWS,
    FRAGMENT_BYTES,
    LEAST_TEMPERATURE,
    PAIR_ROWS,
    SLAB_BYTES,
    TILE_ROWS,
    TILES_JUDGED,
    WARPGROUP,
    Instruction,
    ResidencyPlan,
    shared_layout,
)

__all__ = [
    "EXACT_ROWS",
    "FRAGMENT_BYTES",
    "LEAST_TEMPERATURE",
    "PAIR_ROWS",
    "SLAB_BYTES",
    "TILES_JUDGED",
    "TILE_ROWS",
    "WARPGROUP",
    "Instruction",
    "ResidencyPlan",
    "shared_layout",
]
