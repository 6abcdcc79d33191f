"""How a block multiplies its rows with latents: by which instruction, for how many requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from wts.hardware.tensor_memory import (
    CHUNK_BYTES,
    CORE_BYTES,
    LANES,
    OPERAND_COLUMNS,
    instruction_descriptor,
    matrix_descriptor,
)
from wts.kernels.resident.shard import Shard
from wts.numerics.limits import SLAB_BYTES
from wts.selection.request import WalkRequest

__all__ = ["TILES_JUDGED", "WARPGROUP", "Instruction", "Product"]

Instruction: TypeAlias = Literal["mma", "wgmma"]
"""The matrix instruction of a warp's own tiles.

"mma": each warp multiplies for up to four requests, latents in registers (mma.sync). "wgmma":
four warps together multiply for eight requests, latents in shared memory (wgmma.mma_async).
"""

WARPGROUP = 4  # warps that issue a warpgroup's matrix instruction together
TILES_JUDGED = 2  # of a warp of a warpgroup, at once: a pair, whose noise comes together
SUMS_JUDGED = 2  # accumulators of tcgen05 that a warp reads and judges at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The sweep of a block's rows in a round.

    Args:
        instruction: matrix instruction of what warps multiply themselves.
        columns, groups: requests that are swept side by side, and how often all weights are swept
            for a step of all requests; a round is a step of one group.
        tiles_per_accumulator: tiles whose sums share registers, each in columns of its own.
        sweep_passes: parts of a warp's sweep, each with its own accumulators, so that there are
            fewer at once.
        operand_slabs: slabs of a latent that a lane of a single warp holds at once.
        queue_depth: fragments that a single warp loads ahead of their product.
        tiles_in_flight: tiles of a warpgroup whose products are under way at once.
        tensor_tiles, matrix_tiles: of each sweeping warp's tiles, how many tcgen05 multiplies with
            the weights in tensor memory, and how many with them in shared memory; its last ones.
    """

    request: WalkRequest
    shard: Shard
    instruction: Instruction
    columns: int
    groups: int
    tiles_per_accumulator: int
    sweep_passes: int
    operand_slabs: int
    queue_depth: int
    tiles_in_flight: int
    tensor_tiles: int = 0
    matrix_tiles: int = 0

    @property
    def warpgroups(self) -> bool:
        """Whether whole warpgroups multiply together."""
        return self.instruction == "wgmma"

    @property
    def operand_warps(self) -> int:
        """Warps whose fragments of one (tile, slab) lie together in memory."""
        return WARPGROUP if self.warpgroups else 1

    # ---- tiles ---------------------------------------------------------------------------------

    @property
    def tcgen05_tiles(self) -> int:
        """Tiles of a warp that tcgen05 multiplies, with those of the block's other warps."""
        return self.tensor_tiles + self.matrix_tiles

    @property
    def own_tiles(self) -> int:
        """Tiles that a warp multiplies itself, or its warpgroup: all others, its first ones."""
        return self.shard.warp_tiles - self.tcgen05_tiles

    @property
    def fragments(self) -> int:
        """Fragments of these, of which places are in registers, shared memory or L2."""
        return self.own_tiles * self.shard.slabs

    @property
    def matrix_instructions(self) -> int:
        """Matrix instructions of single warps or warpgroups in a sweep.

        Each (tile, slab) of a warp once.
        """
        return self.fragments

    @property
    def tensor_instructions(self) -> int:
        """Products of tcgen05 in the kernel's code: each slab of a tile of all warps once."""
        return self.tcgen05_tiles * self.shard.slabs

    # ---- accumulators --------------------------------------------------------------------------

    @property
    def accumulators(self) -> int:
        """Accumulators of a warp's tiles."""
        return -(-self.shard.warp_tiles // self.tiles_per_accumulator)

    @property
    def own_accumulators(self) -> int:
        """Accumulators of a warp's own sweep."""
        return -(-self.own_tiles // self.tiles_per_accumulator)

    @property
    def accumulators_at_once(self) -> int:
        """Of a warp's own sweep, at once."""
        return -(-self.own_accumulators // self.sweep_passes)

    @property
    def tcgen05_accumulators(self) -> int:
        """Accumulators that tcgen05 leaves in tensor memory."""
        return self.accumulators - self.own_accumulators

    @property
    def accumulators_judged(self) -> int:
        """Accumulators whose sums a thread judges at once."""
        own = TILES_JUDGED if self.warpgroups else self.accumulators_at_once
        return max(own, min(self.tcgen05_accumulators, SUMS_JUDGED)) if self.tcgen05_tiles else own

    # ---- latents, the other operand ------------------------------------------------------------

    @property
    def requests_per_lane(self) -> int:
        """Requests for which a lane has results, four of other requests each.

        An int8 latent has two operand columns, one for each plane, so that these are blocks of
        eight columns; with bf16 weights the second block has the odd columns of the same eight.
        """
        return -(-self.columns // 4)

    @property
    def operand_columns(self) -> int:
        """Operand columns of one of up to four requests: its two planes; of bf16, its pair's."""
        return 2

    @property
    def operand_lead(self) -> int:
        """Rows of zeros before a latent's, where tcgen05 reads it.

        Tiles that share an accumulator see the latents in different columns, so each reads them
        from a start of its own, with zeros on both sides.
        """
        return self.operand_columns * min(4, self.columns) * (self.tiles_per_accumulator - 1)

    @property
    def operand_rows(self) -> int:
        """Rows of 16 bytes in which tcgen05 finds the latents of a group, for 16 bytes of k."""
        return self.operand_lead + OPERAND_COLUMNS

    @property
    def latent_line_bytes(self) -> int:
        """Bytes between the latents of two requests in shared memory: half of the banks apart.

        For warpgroups the latents of a group lie together as their instruction wants them.
        """
        return 2 * self.request.shape.rank + (0 if self.warpgroups else 64)

    @property
    def latent_buffer_bytes(self) -> int:
        """Bytes of shared memory for the latents of a group."""
        if self.tcgen05_tiles:
            return self.shard.slabs * SLAB_BYTES * self.operand_rows
        return self.columns * self.latent_line_bytes

    # ---- what the kernel is told ---------------------------------------------------------------

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it.

        Descriptors are of tcgen05's operands in shared memory, all but where they start. Weights:
        core matrices of all 128 rows, then those of the next 16 bytes. Latents: the rows of 16
        bytes of `operand_rows`, of which any 16 that follow each other are two core matrices.
        """
        weights_of_all_rows, latents_of_all_rows = (
            LANES * CHUNK_BYTES,
            self.operand_rows * CHUNK_BYTES,
        )
        return {
            "WARPGROUPS": self.warpgroups,
            "OPERAND_SLABS": self.operand_slabs,
            "LATENT_LINE_BYTES": self.latent_line_bytes,
            "LATENT_SLOT_BYTES": self.latent_buffer_bytes,
            "TENSOR_TILES": self.tensor_tiles,
            "MATRIX_TILES": self.matrix_tiles,
            "SUM_COLUMNS": OPERAND_COLUMNS,
            "SUMS_JUDGED": SUMS_JUDGED,
            "TILES_JUDGED": TILES_JUDGED,
            "ASYNC_ACCUMULATORS": self.tcgen05_accumulators,
            "REQUEST_COLUMNS": self.operand_columns,
            "OPERAND_LEAD": self.operand_lead,
            "OPERAND_ROWS": self.operand_rows,
            "INSTRUCTION_DESCRIPTOR": instruction_descriptor(self.request.weights),
            "COLUMNS": self.columns,
            "COLUMN_BLOCKS": self.requests_per_lane,
            "OPERAND_WARPS": self.operand_warps,
            "GROUPS": self.groups,
            "TILES_PER_ACCUMULATOR": self.tiles_per_accumulator,
            "PHASES": self.sweep_passes,
            "TILES_IN_FLIGHT": self.tiles_in_flight,
            "QUEUE_DEPTH": self.queue_depth,
            "MATRIX_DESCRIPTOR": matrix_descriptor(
                0, along_k=weights_of_all_rows, along_rows=CORE_BYTES
            ),
            "LATENT_DESCRIPTOR": matrix_descriptor(
                0, along_k=latents_of_all_rows, along_rows=CORE_BYTES
            ),
        }

    def switches(self) -> dict[str, bool]:
        """What the preprocessor is told of it."""
        return {"WTS_WARPGROUPS": self.warpgroups, "WTS_TENSOR": self.tcgen05_tiles > 0}
