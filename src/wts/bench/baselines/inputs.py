"""The inputs of one walk, checked, as every path takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from wts.errors import InputError, describe
from wts.heads.base import Head

__all__ = ["WalkInputs", "lm_head_product"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkInputs:
    """One walk of a head, on any device.

    Args:
        head: the head, of bf16 weights.
        base_logits: [B, K, V]; a last dimension without gaps.
        anchor: int64 [B], inside the table.
        hidden: bf16 [B, K, H], for a head that reads hidden states.
        lm_head: bf16 [V, H], of which base logits are the product with hidden states; for Domino.
        temperatures: fp32 [B], all above 0; None for a greedy walk.
        noise_key: 63-bit key of the sampled noise.
        noise_offset: int64 [1], a counter that each sampled walk advances by one.
        logits_out: [B, K, V], where step logits are written by the paths that keep them.

    Raises:
        InputError: shapes that do not fit each other, or an anchor outside the table.
    """

    head: Head
    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor | None = None
    lm_head: torch.Tensor | None = None
    temperatures: torch.Tensor | None = None
    noise_key: int = 0
    noise_offset: torch.Tensor | None = None
    logits_out: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.base_logits.ndim != 3 or self.base_logits.shape[2] != self.projection.shape[0]:
            raise InputError.mismatch(
                "base_logits",
                wanted=f"[B, K, {self.projection.shape[0]}], one column per row of projection",
                found=describe(self.base_logits),
                fix="draw them for this head",
            )
        if self.anchor.dtype != torch.int64 or self.anchor.shape != (self.batch,):
            raise InputError.mismatch(
                "anchor",
                wanted=f"int64[{self.batch}]",
                found=describe(self.anchor),
                fix="pass the token before the first step of each row",
            )
        size = getattr(self.head, "hidden_size", None)
        wanted = None if size is None else (self.batch, self.steps, size)
        if (None if self.hidden is None else tuple(self.hidden.shape)) != wanted:
            raise InputError.mismatch(
                "hidden",
                wanted="None" if wanted is None else list(wanted),
                found="None" if self.hidden is None else describe(self.hidden),
                fix="pass hidden states to the heads that read them, and to no other",
            )
        # The steps look rows up unchecked, as an engine does with tokens it has drawn itself.
        if bool(((self.anchor < 0) | (self.anchor >= self.table.shape[0])).any()):
            raise InputError.mismatch(
                "anchor",
                wanted=f"tokens in 0..{self.table.shape[0] - 1}",
                found=f"{int(self.anchor.min())}..{int(self.anchor.max())}",
                fix="pass tokens of this vocabulary",
            )
        if self.temperatures is not None and not bool((self.temperatures > 0).all()):
            raise InputError.mismatch(
                "temperatures",
                wanted="all above 0, or None for a greedy walk",
                found=f"a least of {float(self.temperatures.min())}",
                fix="time greedy and sampled walks apart",
            )

    @property
    def table(self) -> torch.Tensor:
        """E, [V_table, r]; of Domino [V_table, H]."""
        return self.head.table

    @property
    def projection(self) -> torch.Tensor:
        """W, [V, r]."""
        return self.head.projection

    @property
    def batch(self) -> int:
        """B, requests walked together."""
        return self.base_logits.shape[0]

    @property
    def steps(self) -> int:
        """K, steps of the walk."""
        return self.base_logits.shape[1]


def lm_head_product(hidden: torch.Tensor, lm_head: torch.Tensor) -> torch.Tensor:
    """Base logits [K, B, V] of hidden states [B, K, H], as SGLang's Domino rollout makes them."""
    batch, steps, size = hidden.shape
    rows = hidden.transpose(0, 1).contiguous().view(steps * batch, size)
    return functional.linear(rows, lm_head).view(steps, batch, len(lm_head))
