"""Which rows of the vocabulary a block owns, and a warp of it."""

from __future__ import annotations

from dataclasses import dataclass

from wts.numerics.limits import SLAB_BYTES
from wts.selection.request import WalkRequest

__all__ = ["FRAGMENT_BYTES", "PAIR_ROWS", "TILE_ROWS", "Shard"]

TILE_ROWS = 16
PAIR_ROWS = 32
FRAGMENT_BYTES = 512  # one slab of one tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The rows of a block: whole tiles of 16 rows for each of its sweeping warps.

    Args:
        num_blocks: blocks, one for each shard.
        sweep_warps: warps of a block that multiply.
        warp_tiles: tiles of each of them.
    """

    request: WalkRequest
    num_blocks: int
    sweep_warps: int
    warp_tiles: int

    @property
    def rows(self) -> int:
        """Tokens of one shard."""
        return self.sweep_warps * self.warp_tiles * TILE_ROWS

    @property
    def padded_vocab(self) -> int:
        """Rows of the packed projection."""
        return self.num_blocks * self.rows

    @property
    def slabs(self) -> int:
        """Matrix instructions per tile and sweep."""
        return self.request.row_bytes // SLAB_BYTES

    @property
    def warp_fragments(self) -> int:
        """Fragments of all tiles of a warp, whoever multiplies them."""
        return self.warp_tiles * self.slabs

    @property
    def tile_bytes(self) -> int:
        """Bytes of one packed tile: 16 rows."""
        return TILE_ROWS * self.request.row_bytes

    @property
    def row_scale_words(self) -> int:
        """32-bit words of a block's row scales: one each.

        A row of bf16 weights has a bit: its scale is 1, or NaN where the row is not finite.
        """
        return self.rows if self.request.quantised else self.rows // 32

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        return {
            "SLABS": self.slabs,
            "ROW_SCALE_WORDS": self.row_scale_words,
            "NUM_BLOCKS": self.num_blocks,
            "SWEEP_WARPS": self.sweep_warps,
            "ROWS": self.rows,
            "TILE_BYTES": self.tile_bytes,
            "WARP_TILES": self.warp_tiles,
            "FRAGMENT_BYTES": FRAGMENT_BYTES,
        }
