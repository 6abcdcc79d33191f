"""The walk as numerics.md writes it: the formula, no plan, no quantisation.

This is the bf16 head that SGLang computes: the bias is rounded to the step's dtype, added to the
base logit and rounded again. Works on any device, one step after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wts.numerics.exact_bounds import exact_logits
from wts.numerics.gumbel import Noise, philox_words
from wts.numerics.order import select_greedy
from wts.numerics.step_logits import step_logits
from wts.selection.token_race import sampled_scores

if TYPE_CHECKING:
    from wts.heads.base import Head

__all__ = ["exact_walk", "reference_walk"]


def reference_walk(
    head: Head,
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    *,
    hidden: torch.Tensor | None = None,
    temperatures: torch.Tensor | None = None,
    noise: Noise | None = None,
    logits_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draft a block.

    Args:
        head: the head.
        base_logits: bf16 | fp16 | fp32 [B, K, V].
        anchor: int64 [B], the token before the first step.
        hidden: bf16 [B, K, H] for heads that read it.
        temperatures: fp32 [B]; rows above 0 are sampled. None: all greedy.
        noise: where the noise of sampled rows comes from; the offset is advanced by one.
        logits_out: [B, K, V]: the step logits of sampled rows go there.

    Returns:
        int64 [B, K], target ids.
    """
    batch, steps, _ = base_logits.shape
    state = head.initial_state(batch)
    prev = anchor
    tokens = []
    for step in range(steps):
        hidden_step = None if hidden is None else hidden[:, step]
        state, latent = head.latent(state, prev, hidden_step)
        logits = step_logits(head, base_logits[:, step, : head.vocab], latent)
        if temperatures is not None and noise is not None:
            if logits_out is not None:
                sampled = temperatures > 0
                exported = logits[sampled].to(logits_out)
                logits_out[sampled.to(logits_out.device), step, : head.vocab] = exported
            words = philox_words(head.vocab, batch, step, noise.key, int(noise.offset.item()))
            scores = sampled_scores(logits.float(), temperatures, words.to(logits.device))
            chosen = select_greedy(scores)
        else:
            chosen = select_greedy(logits)
        prev = chosen if head.draft_to_target is None else head.draft_to_target[chosen]
        tokens.append(prev)
    if noise is not None:
        noise.offset.add_(1)
    return torch.stack(tokens, 1)


def exact_walk(head: Head, base_logits: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    """Draft a block greedily with every sum in its fixed order: what an exact walk computes.

    The formula of `reference_walk` for a head in bf16, but for the order of the fp32 sums, so that
    tokens are the same everywhere.

    Args:
        head: one in bf16 whose latents are rows of its table (those of others are made by their
            device steps).
        base_logits: bf16 [B, K, V].
        anchor: int64 [B], the token before the first step.

    Returns:
        int64 [B, K], target ids.
    """
    tokens, prev = [], anchor
    for step in range(base_logits.shape[1]):
        _, latent = head.latent(None, prev, None)
        base = base_logits[:, step, : head.vocab]
        chosen = select_greedy(exact_logits(head.projection[: head.vocab], base, latent))
        prev = chosen if head.draft_to_target is None else head.draft_to_target[chosen]
        tokens.append(prev)
    return torch.stack(tokens, 1)
