"""`wts fidelity`: what int8 does to a head, its logits and its tokens, and what E4M3 would do.

int8 places 255 levels evenly over a row's range. E4M3, scaled so that a row's largest weight is its
largest number, places levels ever closer towards zero: they are closer than those of int8 for
weights below a fourteenth of the largest, further apart above. Where a row's weights lie decides
which is better. Then steps are taken from the formula's state: the int8 step logits against those
of the unquantised head and the derived bound, and how often the token differs, by the margin of the
best logit over the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wts.heads.base import HeadState
from wts.heads.cells import AnyHead
from wts.numerics.intervals import decided, logit_bound
from wts.numerics.order import select_greedy
from wts.numerics.quantise import SMALLEST_SCALE, WEIGHT_LEVELS, quantise_latents, quantise_rows
from wts.numerics.step_logits import int8_logits, step_logits
from wts.progress import Say
from wts.walk.recorded import Inputs

__all__ = ["CROSSOVER", "examine", "quantise_e4m3", "summary"]

E4M3_LARGEST = 448.0
CROSSOVER = 32.0 / E4M3_LARGEST
"""Weights below this share of their row's largest have closer levels in E4M3 than in int8.

Between 2^e and 2^(e + 1) E4M3 has steps of 2^(e - 3); the even step of int8 is 448 / 127 = 3.53 in
the same unit, which lies between the steps of 2 below 2^5 = 32 and those of 4 above.
"""

_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_CHUNK_ROWS = 1 << 14
_REQUESTS = 16  # at once: a step has some fp64 numbers for each token and request
_MAGNITUDE_BINS = 56  # four below the crossover
_RATIO_BINS = 50
_CRESTS = (6.0, 8.0, 12.0)
_OUTLIERS = 20
# Margins between the two best logits: ties, then each twice the one before.
_MARGINS = (0.0, *(2.0**exponent for exponent in range(-7, 6)))


def examine(head: AnyHead, inputs: Inputs, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Everything that the report has, as numbers and lists for JSON.

    Args:
        head: the head; work is done where it is.
        inputs: where steps are taken from, on the same device.
        say: told what is going on.
    """
    say("quantising the projection")
    weights = _examine_weights(head)
    say("taking steps")
    return {
        "head": {
            "kind": head.kind,
            "vocab": head.vocab,
            "rank": head.rank,
            "table_type": head.table_type,
        },
        "inputs": {
            "kind": "recorded" if inputs.recorded else "random",
            "requests": len(inputs.anchor),
            "steps": inputs.base_logits.shape[1],
            "previous_tokens": "recorded" if inputs.tokens is not None else "best",
        },
        "weights": weights,
        "steps": _examine_steps(head, inputs, say),
    }


# ---- weights -----------------------------------------------------------------------------------


def quantise_e4m3(weight: torch.Tensor) -> torch.Tensor:
    """Rows rounded to E4M3 with one scale each, their largest weight being the largest number.

    Args:
        weight: bf16 | fp16 | fp32 [n, r].

    Returns:
        fp32 [n, r], what the numbers stand for.
    """
    values = weight.float()
    scale = (values.abs().amax(1, keepdim=True) / E4M3_LARGEST).clamp_min(SMALLEST_SCALE)
    return (values / scale).to(torch.float8_e4m3fn).float() * scale


def _row_chunks(head: AnyHead) -> Iterator[torch.Tensor]:
    for first in range(0, head.vocab, _CHUNK_ROWS):
        yield head.projection[first : min(first + _CHUNK_ROWS, head.vocab)].float()


def _examine_weights(head: AnyHead) -> dict[str, Any]:
    edges = torch.linspace(0, 1, _MAGNITUDE_BINS + 1, device=head.projection.device)
    counts = torch.zeros(_MAGNITUDE_BINS, dtype=torch.int64, device=edges.device)
    num_below, size = 0, 0
    crests: list[torch.Tensor] = []
    rms: list[torch.Tensor] = []
    errors: dict[str, list[torch.Tensor]] = {"int8": [], "e4m3": []}
    for values in _row_chunks(head):
        largest = values.abs().amax(1, keepdim=True)
        share = (values.abs() / largest.clamp_min(SMALLEST_SCALE)).flatten()
        places = (torch.bucketize(share, edges, right=True) - 1).clamp(0, _MAGNITUDE_BINS - 1)
        counts += torch.bincount(places, minlength=_MAGNITUDE_BINS)
        num_below += int((share < CROSSOVER).sum())
        size += share.numel()
        deviation = values.square().mean(1).sqrt()
        levels, scale = quantise_rows(values)
        rounded = {"int8": levels.float() * scale[:, None], "e4m3": quantise_e4m3(values)}
        for name, known in rounded.items():
            errors[name].append((known - values).square().mean(1).sqrt())
        rms.append(deviation)
        crests.append(largest[:, 0] / deviation.clamp_min(SMALLEST_SCALE))
    deviation, crest = torch.cat(rms), torch.cat(crests)
    own = {name: torch.cat(parts) for name, parts in errors.items()}
    relative = {name: part / deviation.clamp_min(SMALLEST_SCALE) for name, part in own.items()}
    whole = deviation.square().mean().sqrt().clamp_min(SMALLEST_SCALE)
    return {
        "magnitudes": {"edges": edges.tolist(), "counts": counts.tolist()},
        "crossover": CROSSOVER,
        "share_below_crossover": num_below / max(size, 1),
        "row_error": {name: _quantiles(part) for name, part in relative.items()},
        "error": {name: float(part.square().mean().sqrt() / whole) for name, part in own.items()},
        "share_of_rows_where_int8_is_closer": float((own["int8"] < own["e4m3"]).float().mean()),
        "crest": _quantiles(crest),
        "share_of_rows_with_crest_above": {
            f"{bound:g}": float((crest > bound).float().mean()) for bound in _CRESTS
        },
        "outliers": _outliers(head, crest, relative["int8"]),
        "levels": {"int8": 2 * WEIGHT_LEVELS + 1, "e4m3": 253},
    }


def _outliers(
    head: AnyHead, crest: torch.Tensor, error: torch.Tensor
) -> list[dict[str, float | int]]:
    """The rows whose largest weight stands out most, by the ids of their tokens."""
    found = crest.topk(min(_OUTLIERS, len(crest))).indices
    ids = found if head.draft_to_target is None else head.draft_to_target[found]
    return [
        {"token": token, "crest": size, "int8_error": off}
        for token, size, off in zip(
            ids.tolist(), crest[found].tolist(), error[found].tolist(), strict=True
        )
    ]


def _quantiles(values: torch.Tensor) -> dict[str, float]:
    """Quantiles by name; of the numbers in order, without interpolation."""
    ordered = values.double().sort().values
    last = len(ordered) - 1
    return {f"{q:g}": float(ordered[round(q * last)]) for q in _QUANTILES}


# ---- steps -------------------------------------------------------------------------------------


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


def summary(report: Mapping[str, Any]) -> tuple[str, ...]:
    """What matters most of a report, in two lines of text.

    Args:
        report: of `examine`.
    """
    error, steps = report["weights"]["error"], report["steps"]
    rows = (
        f"error of weights by their size: {error['int8']:.2%} in int8, {error['e4m3']:.2%} in E4M3"
    )
    if not steps["num_steps"]:
        return rows, "no step that the head has a part in"
    rate = steps["flip_rate"]
    return rows, (
        f"tokens turned, of {steps['num_steps']} steps: {rate['int8']:.2%} by int8, "
        f"{rate['e4m3']:.2%} by E4M3; {steps['flips_where_decided']} by int8 beyond its bound"
    )


def _examine_steps(head: AnyHead, inputs: Inputs, say: Say) -> dict[str, Any]:
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
    head: AnyHead, inputs: Inputs, some: slice, rounded: _Rounded
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
    head: AnyHead,
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
        "margin": _quantiles(table["margin"]),
        "total_variation": {name: _quantiles(table[f"{name}_tv"]) for name in flips},
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
