"""Quantised latents as rows of the table that a token fetches."""

from __future__ import annotations

import torch

from wts.numerics.limits import SLAB_BYTES
from wts.numerics.quantise import QuantisedLatents

__all__ = ["pack_latents", "unpack_latents"]


def pack_latents(high: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Put quantised latents into table rows, slab by slab both planes: uint8 [n, 2 r + 32]."""
    rows, rank = high.shape
    planes = torch.stack([high, low], 1).view(rows, 2, rank // SLAB_BYTES, SLAB_BYTES)
    words = planes.permute(0, 2, 1, 3).reshape(rows, 2 * rank).view(torch.uint8)
    table = torch.zeros(rows, 2 * rank + 32, dtype=torch.uint8, device=high.device)
    table[:, : 2 * rank] = words
    table[:, 2 * rank : 2 * rank + 4] = scale[:, None].contiguous().view(torch.uint8)
    return table


def unpack_latents(table: torch.Tensor) -> QuantisedLatents:
    """Undo `pack_latents`: uint8 [n, 2 r + 32] to hi and lo int8 [n, r], scale fp32 [n]."""
    rows, size = table.shape
    rank = (size - 32) // 2
    words = table[:, : 2 * rank].contiguous().view(torch.int8)
    planes = words.view(rows, rank // SLAB_BYTES, 2, SLAB_BYTES).permute(0, 2, 1, 3)
    planes = planes.reshape(rows, 2, rank)
    scale = table[:, 2 * rank : 2 * rank + 4].contiguous().view(torch.float32)[:, 0]
    return planes[:, 0], planes[:, 1], scale
