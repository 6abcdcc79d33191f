"""Exact walks: what they read of the unquantised head, and which heads they can be of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wts.errors import HeadError, describe
from wts.heads.base import Head
from wts.numerics.exact_bounds import Screen, screen_of
from wts.selection.exact_source import EXACT_SOURCE

__all__ = ["ExactHead", "check_exact_weights", "exact_head"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactHead:
    """What an exact walk reads of the unquantised head; its own tensors where they can be read.

    Args:
        projection: bf16 [vocab or more, r], W.
        table: bf16 [table_rows, r], the latents of a head whose rows they are; None for others.
        screen: the numbers that bounds are made of.
        copies: those of the two that had to be copied, since the head's cannot be read where they
            lie.
    """

    projection: torch.Tensor
    table: torch.Tensor | None
    screen: Screen
    copies: tuple[torch.Tensor, ...] = ()

    def source(self) -> torch.Tensor:
        """`EXACT_SOURCE` as the kernel reads it, int64 [words]."""
        scale, spread, growth, smallest, longest = self.screen.tolist()
        data = EXACT_SOURCE.pack(
            weight=self.projection.data_ptr(),
            table=None if self.table is None else self.table.data_ptr(),
            largest_scale=scale,
            spread=spread,
            growth=growth,
            smallest=smallest,
            longest=longest,
        )
        return torch.frombuffer(bytearray(data), dtype=torch.int64)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is held beyond the head's own."""
        return [self.screen, *self.copies]

    @property
    def memory_bytes(self) -> int:
        """Bytes beyond the head's own."""
        return sum(tensor.nbytes for tensor in self.tensors)


def check_exact_weights(head: Head) -> None:
    """Refuse what exact logits cannot be computed of.

    Raises:
        HeadError: a projection that is not bf16.
    """
    if head.projection.dtype != torch.bfloat16:
        raise HeadError.mismatch(
            "head.projection",
            wanted="bfloat16 for an exact walk",
            found=describe(head.projection),
            fix="convert it, or plan without exact",
        )


def exact_head(head: Head, row_scale: torch.Tensor, levels: torch.Tensor) -> ExactHead:
    """Take the unquantised weights where they are, or a copy where they cannot be read there.

    Args:
        head: the head.
        row_scale: fp32 [V], of its packed rows.
        levels: int8 [V, r], the rows themselves.

    Raises:
        HeadError: a projection that is not bf16.
    """
    check_exact_weights(head)
    device = row_scale.device
    own = [head.projection] + ([head.table] if head.latents_are_rows else [])
    there = [readable(weight, device) for weight in own]
    return ExactHead(
        projection=there[0],
        table=there[1] if len(there) > 1 else None,
        screen=screen_of(there[0][: len(levels)], row_scale, levels),
        copies=tuple(one for one, other in zip(there, own, strict=True) if one is not other),
    )


def readable(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The weight itself where the kernel can read it in 16-byte pieces, else a copy."""
    fits = weight.device == device and weight.is_contiguous() and weight.data_ptr() % 16 == 0
    return weight if fits else weight.to(device, copy=True).contiguous()
