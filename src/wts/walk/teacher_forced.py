"""A walk with bf16 weights, checked: sums are the hardware's, tokens must be what any sums allow.

The walk is followed with its own tokens, so that each step is judged alone: where the interval of
step logits leaves one winner, that must be the token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wts.errors import InputError
from wts.kernels.packed import nonfinite_rows
from wts.kernels.resident.tiles import load_rows
from wts.numerics.gumbel import philox_words
from wts.numerics.intervals import bf16_interval, decided_between
from wts.numerics.torch_dtypes import DTYPE_OF
from wts.selection.token_race import sampled_scores
from wts.walk.emulator import Emulator

__all__ = ["Judgement", "teacher_forced"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """What each step of a walk allows.

    Args:
        decided: bool [B, K]: whether one token only is possible.
        wanted: int64 [B, K], that token (a target id) where it is decided.
        wrong: bool [B, K]: decided, and another token was drawn.
        strayed: step logits of sampled rows outside their interval, of those that were given.
    """

    decided: torch.Tensor
    wanted: torch.Tensor
    wrong: torch.Tensor
    strayed: int


def teacher_forced(
    emulator: Emulator,
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    tokens: torch.Tensor,
    *,
    hidden_term: torch.Tensor | None = None,
    temperatures: torch.Tensor | None = None,
    noise_key: int = 0,
    noise_offset: int = 0,
    logits: torch.Tensor | None = None,
) -> Judgement:
    """Judge each token of a walk after those before it. All tensors are on the CPU.

    Args:
        emulator: of what was walked, with bf16 weights.
        base_logits: [B, K, V'], as walked.
        anchor: int64 [B], as walked.
        tokens: int64 [B, K], what the walk gave.
        hidden_term: fp32 [B, K, P], what the walk was given or made of its hidden states.
        temperatures: fp32 [B], of a sampled walk.
        noise_key, noise_offset: of a sampled walk; the offset before it.
        logits: [B, K, V'], step logits that a sampled walk left.

    Raises:
        InputError: an emulator of int8 weights, which are compared bit for bit.
    """
    plan, packed = emulator.plan, emulator.packed
    if plan.request.quantised:
        raise InputError.mismatch(
            "emulator",
            wanted="one of bf16 weights",
            found="int8 weights",
            fix="compare the tokens with the emulator's",
        )
    batch, steps = tokens.shape
    weight = load_rows(packed.tiles, plan)[: plan.request.shape.vocab]
    nonfinite = nonfinite_rows(packed)[: plan.request.shape.vocab]
    previous = anchor.clamp(0, plan.request.table_rows - 1)
    state = packed.initial_state(batch)
    decided = torch.zeros(batch, steps, dtype=torch.bool)
    wanted = torch.zeros_like(tokens)
    strayed = 0
    for step in range(steps):
        base = base_logits[:, step, : plan.request.shape.vocab]
        part = None if hidden_term is None else hidden_term[:, step]
        state, latent = packed.latent(state, previous, part)
        if latent is None:
            least = most = base.to(DTYPE_OF[plan.request.step_type]).float()
        else:
            assert isinstance(latent, torch.Tensor)
            least, most = bf16_interval(weight, base, latent)
        if logits is not None and temperatures is not None:
            left = logits[:, step, : plan.request.shape.vocab].float()
            outside = (left < least) | (left > most)
            strayed += int((outside & ~nonfinite & (temperatures > 0)[:, None]).sum())
        # A NaN wins, and the lowest of them: above all that is not.
        least, most = (torch.where(nonfinite, float("inf"), bound) for bound in (least, most))
        if temperatures is not None:
            words = philox_words(plan.request.shape.vocab, batch, step, noise_key, noise_offset)
            least, most = (sampled_scores(b, temperatures, words) for b in (least, most))
        decided[:, step], winner = decided_between(least, most)
        mapping = packed.draft_to_target
        wanted[:, step] = winner if mapping is None else mapping[winner].long()
        previous = tokens[:, step]
    return Judgement(
        decided=decided, wanted=wanted, wrong=decided & (wanted != tokens), strayed=strayed
    )
