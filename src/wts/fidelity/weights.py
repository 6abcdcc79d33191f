"""Weights: levels of int8 and of E4M3, errors of rows, and the rows that stand out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from wts.heads.base import Head
from wts.numerics.quantise import SMALLEST_SCALE, WEIGHT_LEVELS, quantise_rows

__all__ = ["CROSSOVER", "E4M3_LARGEST", "examine_weights", "quantiles", "quantise_e4m3"]

E4M3_LARGEST = 448.0
CROSSOVER = 32.0 / E4M3_LARGEST
"""Weights below this share of their row's largest have closer levels in E4M3 than in int8.

Between 2^e and 2^(e + 1) E4M3 has steps of 2^(e - 3); the even step of int8 is 448 / 127 = 3.53 in
the same unit, which lies between the steps of 2 below 2^5 = 32 and those of 4 above.
"""

_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_CHUNK_ROWS = 1 << 14
_MAGNITUDE_BINS = 56  # four below the crossover
_CRESTS = (6.0, 8.0, 12.0)
_OUTLIERS = 20


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


def _row_chunks(head: Head) -> Iterator[torch.Tensor]:
    for first in range(0, head.vocab, _CHUNK_ROWS):
        yield head.projection[first : min(first + _CHUNK_ROWS, head.vocab)].float()


def examine_weights(head: Head) -> dict[str, Any]:
    """What a report has of the projection: magnitudes, errors of rows, crests, outliers."""
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
        "row_error": {name: quantiles(part) for name, part in relative.items()},
        "error": {name: float(part.square().mean().sqrt() / whole) for name, part in own.items()},
        "share_of_rows_where_int8_is_closer": float((own["int8"] < own["e4m3"]).float().mean()),
        "crest": quantiles(crest),
        "share_of_rows_with_crest_above": {
            f"{bound:g}": float((crest > bound).float().mean()) for bound in _CRESTS
        },
        "outliers": _outliers(head, crest, relative["int8"]),
        "levels": {"int8": 2 * WEIGHT_LEVELS + 1, "e4m3": 253},
    }


def _outliers(head: Head, crest: torch.Tensor, error: torch.Tensor) -> list[dict[str, float | int]]:
    """The rows whose largest weight stands out most, by the ids of their tokens."""
    found = crest.topk(min(_OUTLIERS, len(crest))).indices
    ids = found if head.draft_to_target is None else head.draft_to_target[found]
    return [
        {"token": token, "crest": size, "int8_error": off}
        for token, size, off in zip(
            ids.tolist(), crest[found].tolist(), error[found].tolist(), strict=True
        )
    ]


def quantiles(values: torch.Tensor) -> dict[str, float]:
    """Quantiles by name; of the numbers in order, without interpolation."""
    ordered = values.double().sort().values
    last = len(ordered) - 1
    return {f"{q:g}": float(ordered[round(q * last)]) for q in _QUANTILES}
