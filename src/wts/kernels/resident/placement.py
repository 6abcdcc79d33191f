"""Which memory holds which fragments of the projection, and how the rest streams through."""

from __future__ import annotations

from dataclasses import dataclass

from wts.dtypes import WEIGHT_BYTES
from wts.hardware.tensor_memory import COLUMNS, OPERAND_COLUMNS
from wts.kernels.resident.product import Product
from wts.kernels.resident.shard import FRAGMENT_BYTES, Shard
from wts.kernels.resident.sweep_order import Memory, memories, stored_order, sweep_order
from wts.selection.request import WalkRequest

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the weights of a block lie during a walk.

    Args:
        register_fragments, shared_fragments, streamed_fragments: of each sweeping warp, of those
            that it multiplies itself: how many are in registers, in shared memory, and come from
            L2 in every sweep.
        ring_slots: chunks that the ring of a warp, or of a warpgroup, has room for; 0: nothing is
            streamed.
        copied_together: most fragments that pass through a single warp's ring by one bulk copy; 1:
            each lane copies its own bytes.
    """

    request: WalkRequest
    shard: Shard
    product: Product
    register_fragments: int
    shared_fragments: int
    streamed_fragments: int
    ring_slots: int
    copied_together: int

    # ---- shared memory -------------------------------------------------------------------------

    @property
    def fragment_storage(self) -> int:
        """Resident fragments of a block: warps' own ones, then tcgen05's tiles. At least 1."""
        of_a_warp = self.shared_fragments + self.product.matrix_tiles * self.shard.slabs
        return max(1, self.shard.sweep_warps * of_a_warp)

    @property
    def chunk_fragments(self) -> int:
        """Fragments of a warp that are streamed at once: half a tile where warpgroups multiply."""
        return self.shard.slabs // 2 if self.product.warpgroups else self.copied_together

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a slot of a ring; 1 where there is none."""
        if not self.ring_slots:
            return 1
        return self.chunk_fragments * self.product.operand_warps * FRAGMENT_BYTES

    @property
    def block_ring_slots(self) -> int:
        """Slots of all rings of a block. At least 1: C++ has no empty array."""
        return max(1, self.ring_slots * self.shard.sweep_warps // self.product.operand_warps)

    @property
    def ring_barriers(self) -> int:
        """Slots that have a barrier; a ring of lanes' copies needs none, one stands for all."""
        bulk = self.product.warpgroups or self.copied_together > 1
        return self.block_ring_slots if bulk else max(1, self.ring_slots)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of shared memory in which tcgen05 finds weights."""
        return self.product.matrix_tiles * self.shard.sweep_warps * self.shard.tile_bytes

    # ---- tensor memory -------------------------------------------------------------------------

    @property
    def tmem_limit(self) -> int:
        """Columns of tensor memory that may be used; 0: none, tcgen05 multiplies nothing."""
        return COLUMNS if self.request.tensor_memory else 0

    @property
    def tile_tmem_columns(self) -> int:
        """Columns of tensor memory that a tile takes."""
        return self.request.row_bytes // 4

    @property
    def sum_tmem_column(self) -> int:
        """Where the accumulators begin, behind the tiles."""
        return self.product.tensor_tiles * self.tile_tmem_columns

    @property
    def tmem_columns(self) -> int:
        """Columns of tensor memory that are used."""
        return self.sum_tmem_column + self.product.tcgen05_accumulators * OPERAND_COLUMNS

    # ---- what that comes to --------------------------------------------------------------------

    @property
    def resident_share(self) -> float:
        """Share of the projection that stays on chip for the whole walk."""
        fragments = self.shard.warp_fragments
        return (fragments - self.streamed_fragments) / fragments

    @property
    def reads_of_w_per_step(self) -> float:
        """How often a step reads a projection's worth of its weights from L2."""
        return self.product.groups * self.streamed_fragments / self.shard.warp_fragments

    @property
    def slower_than_stepwise(self) -> bool:
        """Whether step-wise execution was measured faster: it reads W once a step, in bf16.

        Measured with int8 weights; the same bytes read are taken to cost bf16 weights the same.
        """
        bytes_read = self.reads_of_w_per_step * WEIGHT_BYTES[self.request.weights]
        return self.request.sampled and bytes_read > 3.0

    # ---- the order of fragments ----------------------------------------------------------------

    def sweep_order(self) -> list[tuple[int, int]]:
        """(tile, slab) in the order in which a warp multiplies its own."""
        return sweep_order(self.product)

    def memories(self) -> list[tuple[Memory, int]]:
        """Memory of each fragment in the order of `sweep_order`, and its index in that memory."""
        return memories(
            self.product,
            shared=self.shared_fragments,
            streamed=self.streamed_fragments,
            at_once=self.chunk_fragments,
        )

    def stored_order(self) -> list[int]:
        """Number among a warp's packed fragments of each (tile, slab), tile after tile."""
        if not self.streamed_fragments:
            return list(range(self.shard.warp_fragments))
        return stored_order(self.product, self.memories())

    @property
    def tile_order(self) -> tuple[object, ...]:
        """Equal for plans whose packed projections have the same bytes: one serves both."""
        head, shard = self.request.shape, self.shard
        shape = (head.vocab, head.rank, shard.num_blocks, shard.sweep_warps, shard.warp_tiles)
        return (self.request.weights, self.product.warpgroups, *shape, *self.stored_order())

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        product = self.product
        return {
            "REGISTER_FRAGMENTS": max(1, self.register_fragments),
            "SHARED_FRAGMENTS": self.shared_fragments,
            "STREAMED_FRAGMENTS": self.streamed_fragments,
            "PHASES_APART": int(self.streamed_fragments > 0 or product.groups > 1),
            "FRAGMENT_STORAGE": self.fragment_storage,
            "RING_LENGTH": max(1, self.ring_slots),
            "COPIED_TOGETHER": self.copied_together,
            "RING_PLACES": self.block_ring_slots,
            "RING_UNIT_BYTES": self.chunk_bytes,
            "RINGS": self.ring_barriers // max(1, self.ring_slots),
            "MATRIX_BYTES": self.matrix_bytes,
            "TENSOR_COLUMNS": COLUMNS,
            "TILE_COLUMNS": self.tile_tmem_columns,
            "SUM_COLUMN": self.sum_tmem_column,
        }

    def lists(self) -> dict[str, list[int]]:
        """Where fragments are, in the order of the sweep, and where they come from.

        Registers count from 0 up, what is away from -1 down.
        """
        found, stored = self.memories(), self.stored_order()
        first = {"streamed": 0, "shared": self.streamed_fragments}
        away = [first[memory] + index for memory, index in found if memory != "register"]
        numbers = iter(range(len(away)))
        place_of = [
            index if memory == "register" else -1 - next(numbers) for memory, index in found
        ]
        fragment_bytes = FRAGMENT_BYTES * self.product.operand_warps
        sources = [
            stored[tile * self.shard.slabs + slab] * fragment_bytes
            for tile, slab in self.sweep_order()
        ]
        gone = [source for source, place in zip(sources, place_of, strict=True) if place < 0]
        by_place = [source for _, source in sorted(zip(away, gone, strict=True))]
        return {
            "WTS_FRAGMENT_PLACE": place_of,
            "WTS_FRAGMENT_SOURCE": sources,
            "WTS_AWAY_PLACE": away or [0],
            "WTS_AWAY_SOURCE": by_place or [0],
        }
