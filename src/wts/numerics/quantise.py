"""Levels and scales: int8 rows, latents of 16 bits in two planes."""

from __future__ import annotations

from typing import TypeAlias

import torch

__all__ = [
    "Latents",
    "QuantisedLatents",
    "pack_bits",
    "quantise_latents",
    "quantise_rows",
    "split_rows",
]

WEIGHT_LEVELS = 127
LATENT_LEVELS = 127 * 256 + 127  # the largest 256 hi + lo with both planes in int8
SMALLEST_SCALE = 1e-30
QuantisedLatents: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""hi int8 [n, r], lo int8 [n, r], scale fp32 [n]: latents are close to scale (256 hi + lo)."""

Latents: TypeAlias = QuantisedLatents | torch.Tensor
"""What is multiplied with int8 weights, or, bf16 [n, r], with bf16 ones."""


def _scale(largest: torch.Tensor, levels: int) -> torch.Tensor:
    """largest / levels in fp32, correctly rounded on every device, at least SMALLEST_SCALE.

    The divisor is a tensor: torch multiplies by the reciprocal of a Python number on a GPU.
    A row that is not finite gets a NaN scale, so every logit it takes part in is NaN.
    """
    scale = largest / torch.full_like(largest, levels)
    scale = torch.where(scale < SMALLEST_SCALE, torch.full_like(scale, SMALLEST_SCALE), scale)
    return torch.where(torch.isfinite(scale), scale, torch.full_like(scale, float("nan")))


def _levels(values: torch.Tensor, scale: torch.Tensor, levels: int) -> torch.Tensor:
    """values / scale to the nearest integer (ties to even), within +-levels; 0 where not finite."""
    return (values / scale[:, None]).nan_to_num(0.0, 0.0, 0.0).round().clamp(-levels, levels)


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows of W to int8.

    Args:
        weight: bf16 | fp16 | fp32 [n, r].

    Returns:
        int8 [n, r] and fp32 [n]: weight is close to the first times the second.
    """
    values = weight.float()
    scale = _scale(values.abs().amax(1), WEIGHT_LEVELS)
    return _levels(values, scale, WEIGHT_LEVELS).to(torch.int8), scale


def split_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of W as they are multiplied in bf16.

    A row that is not finite is put aside, with zeros in its place: where tiles share an accumulator
    its product with the zeros of their latents would be NaN.

    Args:
        weight: bf16 [n, r].

    Returns:
        int8 [n, 2 r], the bytes of the rows; bool [n], those that are not finite.
    """
    nonfinite = ~torch.isfinite(weight).all(1)
    return torch.where(nonfinite[:, None], 0.0, weight).to(weight).view(torch.int8), nonfinite


def pack_bits(flags: torch.Tensor) -> torch.Tensor:
    """Bool [32 n] as int32 [n], lowest bit first."""
    places = 1 << torch.arange(32, device=flags.device)
    return (flags.view(-1, 32) * places).sum(1).to(torch.int32)


def quantise_latents(latent: torch.Tensor) -> QuantisedLatents:
    """Quantise latents to 16 bits in two int8 planes.

    Args:
        latent: bf16 | fp16 | fp32 [n, r].

    Returns:
        hi int8 [n, r], lo int8 [n, r], scale fp32 [n]: latent is close to scale (256 hi + lo).
    """
    values = latent.float()
    scale = _scale(values.abs().amax(1), LATENT_LEVELS)
    whole = _levels(values, scale, LATENT_LEVELS).to(torch.int32)
    low = ((whole + 128) & 255) - 128
    return ((whole - low) >> 8).to(torch.int8), low.to(torch.int8), scale
