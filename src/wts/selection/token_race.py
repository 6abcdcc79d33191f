"""The token race: every id has Gumbel noise of its own, as in SGLang's stream."""

from __future__ import annotations

import torch

from wts.numerics.gumbel import log_exponential
from wts.numerics.limits import LEAST_TEMPERATURE

__all__ = ["sampled_scores"]


def sampled_scores(
    logits: torch.Tensor, temperatures: torch.Tensor, words: torch.Tensor
) -> torch.Tensor:
    """Scores whose largest is the token: logits / T + Gumbel noise; greedy rows stay as they are.

    Args:
        logits: fp32 [B, V], step logits.
        temperatures: fp32 [B]; a row is greedy unless its temperature is above 0.
        words: int64 [B, V].

    Returns:
        fp32 [B, V].
    """
    clamped = temperatures.clamp_min(LEAST_TEMPERATURE)[:, None]
    noisy = logits / clamped - log_exponential(words)
    # A masked row stays masked: divided by an infinite temperature it would be NaN, and win.
    drawn = (temperatures > 0)[:, None] & (logits != -torch.inf)
    return torch.where(drawn, noisy, logits)
