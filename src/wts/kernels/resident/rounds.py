"""How many rounds are under way at once: a round is a step of one group of requests."""

from __future__ import annotations

from dataclasses import dataclass

from wts.dtypes import NUMBER_BYTES
from wts.kernels.resident.product import Product
from wts.kernels.resident.shard import Shard
from wts.selection.request import WalkRequest

__all__ = ["Rounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What is kept of rounds that are not yet done.

    Args:
        base_buffers: rounds whose base logits are staged in shared memory at once.
        exchange_lag: rounds between publishing a round's words and waiting for those of others.
    """

    request: WalkRequest
    shard: Shard
    product: Product
    base_buffers: int
    exchange_lag: int

    @property
    def base_line_bytes(self) -> int:
        """Bytes of a shard's staged base logits, wherever they start inside 16 bytes."""
        return self.shard.rows * NUMBER_BYTES[self.request.base_type] + 32

    @property
    def latent_buffers(self) -> int:
        """Rounds whose latents are in shared memory: where groups are many, not all groups'."""
        return min(self.product.groups, 3)

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        return {
            "LATENT_SLOTS": self.latent_buffers,
            "BASE_SLOTS": self.base_buffers,
            "BASE_LINE_BYTES": self.base_line_bytes,
            "EXCHANGE_LAG": self.exchange_lag,
        }
