"""The order of scores: largest first, lowest id among equals, NaN above all."""

from __future__ import annotations

import torch

__all__ = ["ordered_key", "select_greedy"]


def select_greedy(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit of each row; the lowest id among equals; the lowest NaN id if any is NaN.

    Args:
        logits: [B, V].

    Returns:
        int64 [B].
    """
    values = logits.float()
    values = torch.where(values.isnan(), torch.full_like(values, float("inf")), values)
    nan = logits.isnan()
    any_nan = nan.any(1, keepdim=True)
    winners = torch.where(any_nan, nan, values == values.amax(1, keepdim=True))
    return winners.to(torch.uint8).argmax(1)  # the first of equals


def ordered_key(score: torch.Tensor) -> torch.Tensor:
    """Integers in the order of fp32 scores: -0 equals +0, NaN is above everything.

    Args:
        score: fp32, any shape.

    Returns:
        int32 of the same shape.
    """
    bits = (score + 0.0).view(torch.int32)
    bits = torch.where(score.isnan(), torch.full_like(bits, 0x7FFFFFFF), bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
