"""Steps from the formula's state: errors of logits, and tokens that differ by their margin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wts.fidelity.weights import quantiles, quantise_e4m3
from wts.heads.base import Head, HeadState
from wts.numerics.intervals import decided, logit_bound
from wts.numerics.order import select_greedy
from wts.numerics.quantise import SMALLEST_SCALE, quantise_latents, quantise_rows
from wts.numerics.step_logits import int8_logits, step_logits
from wts.progress import Say
from wts.walk.recorded import Inputs

__all__ = ["examine_steps"]

_REQUESTS = 16  # at once: a step has some fp64 numbers for each token and request
_RATIO_BINS = 50
# Margins between the two best logits: ties, then each twice the one before.
_MARGINS = (0.0, *(2.0**exponent for exponent in range(-7, 6)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rounded:
    """The projection in both types.

    Args:
        levels: fp32 [V, r] of int8.
        scale: fp32 [V].
        e4m3: fp32 [V, r].
    """

    levels: torch.Tensor
    scale: torch.Tensor
    e4m3: torch.Tensor


def examine_steps(head: Head, inputs: Inputs, say: Say) -> dict[str, Any]:
    """What a report has of the steps that the head has a part in; `num_steps` 0 without any."""
    weight = head.projection[: head.vocab]
    levels, scale = quantise_rows(weight)
    rounded = _Rounded(levels=levels.float(), scale=scale, e4m3=quantise_e4m3(weight))
    rows: list[dict[str, torch.Tensor]] = []
    ratios = torch.zeros(_RATIO_BINS, dtype=torch.int64)
    for first in range(0, len(inputs.anchor), _REQUESTS):
        some = slice(first, first + _REQUESTS)
        for row, counted in _walk_formula(head, inputs, some, rounded):
            rows.append(row)
            ratios += counted
        say(f"{min(first + _REQUESTS, len(inputs.anchor))} of {len(inputs.anchor)} requests")
    if not rows:
        return {"num_steps": 0}
    table = {name: torch.cat([row[name] for row in rows]).cpu() for name in rows[0]}
    return _summary(table, ratios)


def _walk_formula(
    head: Head, inputs: Inputs, some: slice, rounded: _Rounded
) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Judge each step of some requests that the head has a part in."""
    previous = inputs.anchor[some]
    state: HeadState = head.initial_state(len(previous))
    for step in range(inputs.base_logits.shape[1]):
        base = inputs.base_logits[some, step, : head.vocab]
        hidden = None if inputs.hidden is None else inputs.hidden[some, step]
        state, latent = head.latent(state, previous, hidden)
        logits = step_logits(head, base, latent)
        best = select_greedy(logits)
        if latent is not None:
            yield _judge(head, base, latent, logits, best, rounded)
        if inputs.tokens is not None:
            previous = inputs.tokens[some, step]
        else:
            previous = best if head.draft_to_target is None else head.draft_to_target[best]


def _judge(
    head: Head,
    base: torch.Tensor,
    latent: torch.Tensor,
    logits: torch.Tensor,
    best: torch.Tensor,
    rounded: _Rounded,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What quantisation does to one step of some requests: a number for each, and a histogram."""
    quantised = quantise_latents(latent)
    int8 = int8_logits(rounded.levels, rounded.scale, base.float(), quantised, logits.dtype)
    bias = (latent.float() @ rounded.e4m3.T).to(logits.dtype)
    e4m3 = (base.float() + bias.float()).to(logits.dtype)
    bound = logit_bound(head, base, latent)
    finite = base != float("-inf")
    error = torch.where(finite, int8.double() - logits.double(), 0.0).abs()
    ratio = torch.where(bound > 0, error / bound, 0.0)
    top = logits.float().topk(min(2, logits.shape[1]), 1).values
    p = logits.float().softmax(1)
    # The errors of the biases alone, before any rounding of logits.
    exact = latent.double() @ head.projection[: head.vocab].double().T
    high, low, scale = quantised
    made = (256.0 * high.double() + low.double()) * scale.double()[:, None]
    int8_bias = made @ (rounded.levels.double() * rounded.scale.double()[:, None]).T
    e4m3_bias = latent.double() @ rounded.e4m3.double().T
    row = {
        "margin": top[:, 0] - top[:, -1],
        "int8_flips": select_greedy(int8) != best,
        "e4m3_flips": select_greedy(e4m3) != best,
        "decided": decided(logits, bound),
        "error_rms": error.square().mean(1).sqrt(),
        "error_largest": error.amax(1),
        "ratio_largest": ratio.amax(1),
        "int8_tv": (int8.float().softmax(1) - p).abs().sum(1) / 2,
        "e4m3_tv": (e4m3.float().softmax(1) - p).abs().sum(1) / 2,
        "bias_rms": exact.square().mean(1).sqrt(),
        "int8_bias_error": (int8_bias - exact).square().mean(1).sqrt(),
        "e4m3_bias_error": (e4m3_bias - exact).square().mean(1).sqrt(),
    }
    counted = torch.histc(ratio.float().clamp(0, 1), _RATIO_BINS, 0, 1).to(torch.int64).cpu()
    return row, counted


def _summary(table: Mapping[str, torch.Tensor], ratios: torch.Tensor) -> dict[str, Any]:
    flips = {name: table[f"{name}_flips"] for name in ("int8", "e4m3")}
    scale = table["bias_rms"].square().mean().sqrt().clamp_min(SMALLEST_SCALE)
    return {
        "num_steps": len(table["margin"]),
        "flip_rate": {name: float(found.float().mean()) for name, found in flips.items()},
        "decided": float(table["decided"].float().mean()),
        "flips_where_decided": int((table["int8_flips"] & table["decided"]).sum()),
        "by_margin": _by_margin(table["margin"], flips, table["decided"]),
        "margin": quantiles(table["margin"]),
        "total_variation": {name: quantiles(table[f"{name}_tv"]) for name in flips},
        "mean_total_variation": {name: float(table[f"{name}_tv"].mean()) for name in flips},
        "logit_error": {
            "rms": float(table["error_rms"].square().mean().sqrt()),
            "largest": float(table["error_largest"].max()),
            "largest_share_of_bound": float(table["ratio_largest"].max()),
            "share_of_bound": {
                "edges": torch.linspace(0, 1, _RATIO_BINS + 1).tolist(),
                "counts": ratios.tolist(),
            },
        },
        "bias_error": {
            name: float(table[f"{name}_bias_error"].square().mean().sqrt() / scale)
            for name in flips
        },
    }


def _by_margin(
    margin: torch.Tensor, flips: Mapping[str, torch.Tensor], certain: torch.Tensor
) -> list[dict[str, float | int]]:
    """Steps and flips by the margin of the best logit; the last row has no upper end.

    A margin that is no number, of a step without two logits to compare, is in the first row.
    """
    margin = margin.nan_to_num(nan=0.0, posinf=float("inf"))
    ends: Sequence[float] = (*_MARGINS[1:], float("inf"))
    rows: list[dict[str, float | int]] = []
    for low, high in zip(_MARGINS, ends, strict=True):
        here = (margin >= low) & ((margin < high) | (high == float("inf")))
        rows.append(
            {
                "from": low,
                "steps": int(here.sum()),
                "int8_flips": int((flips["int8"] & here).sum()),
                "e4m3_flips": int((flips["e4m3"] & here).sum()),
                "decided": int((certain & here).sum()),
            }
        )
    return rows
