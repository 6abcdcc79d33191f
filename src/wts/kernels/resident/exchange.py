"""How blocks tell each other what they found: words in memory, one for each request and block."""

from __future__ import annotations

from dataclasses import dataclass

from wts.kernels.resident.product import Product
from wts.kernels.resident.shard import Shard
from wts.selection.base import Sizes

__all__ = ["Exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """All blocks read all words: the selection says how long one is."""

    shard: Shard
    product: Product
    selection: Sizes

    @property
    def word_bytes(self) -> int:
        """Bytes of one exchanged word."""
        return 8 if self.selection.long_words else 4

    @property
    def slot_line_words(self) -> int:
        """Words between the exchange slots of two requests: whole 128-byte lines."""
        words = 128 // self.word_bytes
        return -(-self.shard.num_blocks // words) * words

    @property
    def workspace_words(self) -> int:
        """Exchange words of a workspace: two parities, every request, every block."""
        return 2 * self.product.groups * self.product.columns * self.slot_line_words

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        return {"SLOT_LINE_WORDS": self.slot_line_words}
