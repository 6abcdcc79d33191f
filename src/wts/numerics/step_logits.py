"""Step logits, rounding by rounding, one function for each format of the weights."""

from __future__ import annotations

from typing import Protocol

import torch

from wts.dtypes import NumberType
from wts.numerics.quantise import QuantisedLatents
from wts.numerics.torch_dtypes import DTYPE_OF

__all__ = ["Projecting", "bf16_logits", "int8_logits", "step_logits"]


class Projecting(Protocol):
    """What step logits need of a head."""

    @property
    def projection(self) -> torch.Tensor:
        """W, [V_rows, r]."""

    @property
    def vocab(self) -> int:
        """Rows of it that can win."""

    @property
    def rank(self) -> int:
        """r, the length of a latent."""

    @property
    def table_type(self) -> NumberType:
        """Number type of the latents."""


def step_logits(head: Projecting, base: torch.Tensor, latent: torch.Tensor | None) -> torch.Tensor:
    """Logits of one step.

    Args:
        head: the head.
        base: bf16 | fp16 | fp32 [B, V], base logits of the step.
        latent: [B, r]; None for a step that the head has no part in.

    Returns:
        [B, V] in the promoted dtype of base and table: R(base + R(W . latent)), sums in fp32.
    """
    dtype = torch.promote_types(base.dtype, DTYPE_OF[head.table_type])
    if latent is None:
        return base.to(dtype)
    bias = latent.float() @ head.projection[: head.vocab].float().T
    return (base.float() + bias.to(dtype).float()).to(dtype)


SLAB = 16  # bf16 elements of one matrix instruction


def int8_logits(
    levels: torch.Tensor,
    row_scale: torch.Tensor,
    base: torch.Tensor,
    latents: QuantisedLatents | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Step logits of the int8 head, rounding by rounding.

    Args:
        levels: fp32 [V, r], integers up to 127.
        row_scale: fp32 [V].
        base: fp32 [B, V], base logits.
        latents: quantised; None for a step that the head has no part in.
        dtype: of the step.

    Returns:
        [B, V] in `dtype`.
    """
    if latents is None:
        return base.to(dtype)
    high, low, latent_scale = latents
    # Each plane's dot is below 2^24, so fp32 sums it exactly in any order.
    dot = 256 * (high.float() @ levels.T).int() + (low.float() @ levels.T).int()
    scale = row_scale[None, :] * latent_scale[:, None]
    return (base + dot.float() * scale).to(dtype)


def slab_sums(weight: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """W . latent, fp32 [B, V]: 16 products at a time, ascending, each sum of them rounded once.

    The products of two bf16 numbers, and nearly always the sums of 16 of them, are exact in fp64.

    Args:
        weight: bf16 [V, r].
        latent: bf16 [B, r].
    """
    total = torch.zeros(len(latent), len(weight))
    for first in range(0, weight.shape[1], SLAB):
        slab = slice(first, first + SLAB)
        total = (total.double() + latent[:, slab].double() @ weight[:, slab].double().T).float()
    return total


def bf16_logits(
    weight: torch.Tensor,
    nonfinite: torch.Tensor,
    base: torch.Tensor,
    latent: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Step logits of the bf16 head, rounding by rounding.

    Args:
        weight: bf16 [V, r].
        nonfinite: bool [V], rows that are not finite: their logits are NaN.
        base: fp32 [B, V], base logits.
        latent: bf16 [B, r]; None for a step that the head has no part in.
        dtype: of the step.

    Returns:
        [B, V] in `dtype`.
    """
    if latent is None:
        return base.to(dtype)
    bias = torch.where(nonfinite, float("nan"), slab_sums(weight, latent)).to(dtype)
    return (base + bias.float()).to(dtype)
