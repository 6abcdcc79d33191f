"""Exact walks: the logits they decide by, and how far int8 sums may be from them.

An exact walk screens rows by upper bounds of their exact logits, made of the int8 sums that it has
anyway, and computes exact logits only of the few rows whose bound is not below what the best row
has for certain (docs/exact.md). Here are the exact logits, and the numbers that bounds are made of.

**The bound.** Symbols: row w of W, its scale s and levels q, latent u, its scale t and levels U,
R() one rounding to bf16, |.| the Euclidean norm. The kernel raises each int8 dot product by a slack
C of the latent, so that the raised product is not below R(w . u). What it has to cover:

1. w.u - (s q).(t U) = (w - s q).u + (s q).(u - t U), at most |w - s q| |u| + s |q| |u - t U|.
2. R() of the bias, at most (2^-8 + 2^-18) |w| |u|, with what the order of the fp32 sum changes
   (eleven operations behind one another) and the roundings of the raised product to fp32 (four).
3. Near 0, where a rounding is absolute: 2^-133, which is less than s t while s t >= 2^-120.

With `spread`, the largest (|w - s q| + (2^-8 + 2^-17) |w|) / s of all rows, and `growth`, the
largest |q|, C = (spread |u| + growth |u - t U|) / t (1 + 2^-16) + 1. Where s t may be below
2^-120, or |w| |u| so large (2^126) that the exact sum may not be finite, the slack is infinite, and
every row's exact logit decides; a latent of zeros has bias 0.

The sum with the base logit and its rounding are monotone, so they need no slack. Downwards, the
product is less than s M below the raised one, with the margin of its latent M = 2 t C (1 + 2^-14):
of a row whose raised sum is z, the exact logit is between the roundings of z - s M, and a place of
fp32 less, and of z. A block says its best row's rounded z, and how many places of bf16 below it the
other end is. So a row of a large scale makes no other row's bound wider.

Markov latents have C and M in their table rows. The kernel makes those of other latents itself, a
little larger: `bound_latent` of csrc/roles/latents.cuh.

**Measured.** A Markov latent is a table row, known when weights are packed; so where there is time
for the products of all rows with all latents (`Residuals`), the errors themselves take the place of
products of lengths, which they can reach only where row and latent point the same way: how far R()
of the exact bias is above the int8 product, and how far below it, of each latent the largest of all
rows. C is then an eighth of what it was, and M the sum of both. Every number is a bound either way:
tokens are the same, only how many rows have to be computed is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from wts.numerics.lane_sums import lane_product
from wts.numerics.limits import LARGEST_EXACT_PRODUCT, LEAST_EXACT_PRODUCT

__all__ = ["Residuals", "Screen", "exact_logits", "latent_bounds", "residuals_of", "screen_of"]

_ROWS_AT_ONCE = 1 << 13  # their products are made in fp64
_PRODUCTS_AT_ONCE = 1 << 25  # of rows and latents, in a handful of fp64 copies
_MOST_CPU_PRODUCTS = 1 << 25  # a second on two cores
Screen: TypeAlias = torch.Tensor
"""fp32 [5]: the largest scale; spread, growth; of rows that are not zero the smallest scale; the
largest |w|."""


def exact_logits(
    projection: torch.Tensor, base: torch.Tensor, latent: torch.Tensor | None
) -> torch.Tensor:
    """Step logits of the unquantised head, every sum in a fixed order.

    Args:
        projection: bf16 [V, r].
        base: bf16 [B, V], base logits.
        latent: bf16 [B, r]; None for a step that the head has no part in.

    Returns:
        bf16 [B, V]: R(base + R(W . latent)), W . latent the lane product of docs/numerics.md.
    """
    if latent is None:
        return base
    parts = [
        lane_product(projection[first : first + _ROWS_AT_ONCE], latent)
        for first in range(0, len(projection), _ROWS_AT_ONCE)
    ]
    bias = torch.cat(parts, 1).to(torch.bfloat16)
    return (base.float() + bias.float()).to(torch.bfloat16)


def screen_of(weight: torch.Tensor, row_scale: torch.Tensor, levels: torch.Tensor) -> Screen:
    """What a head's rows give to bounds.

    Args:
        weight: bf16 [V, r], W.
        row_scale: fp32 [V]; NaN where a row is not finite.
        levels: int8 [V, r].
    """
    spread = growth = longest = 0.0
    smallest = float("inf")
    for first in range(0, len(weight), _ROWS_AT_ONCE):
        rows = weight[first : first + _ROWS_AT_ONCE].double()
        scale = row_scale[first : first + len(rows)].double()
        level = levels[first : first + len(rows)].double()
        finite = scale.isfinite()
        away = (rows - scale[:, None] * level).norm(dim=1) + (2.0**-8 + 2.0**-17) * rows.norm(dim=1)
        spread = max(spread, _largest((away / scale)[finite]))
        growth = max(growth, _largest(level.norm(dim=1)[finite]))
        longest = max(longest, _largest(rows.norm(dim=1)[finite]))
        some = finite & (rows != 0).any(1)
        smallest = min(smallest, -_largest(-scale[some], float("-inf")))
    largest = _largest(row_scale[row_scale.isfinite()])
    numbers = torch.tensor([largest, spread, growth, smallest, longest], dtype=torch.float64)
    return _upwards(numbers).to(row_scale.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residuals:
    """Rows of W and of its levels, to be multiplied by latents; those that are not finite are 0.

    In fp64, which no setting of a library's makes less: neither TF32 nor autocast.

    Args:
        rows: fp64 [V, r], w.
        levels: fp64 [V, r], q.
        scale: fp64 [V], s.
        length: fp64 [V], |w|.
        longest: the largest |w| / s.
    """

    rows: torch.Tensor
    levels: torch.Tensor
    scale: torch.Tensor
    length: torch.Tensor
    longest: float

    def slacks(
        self, latent: torch.Tensor, quantised: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How far above its int8 product a row's rounded bias may be, in s t, and how far below.

        The sums of exact logits are off by less than 2^-20 |w| |u|: no more than 16 operations
        behind one another. What the kernel rounds of its products is less than 2^-19 |w| |u|.

        Args:
            latent: fp64 [n, r], u.
            quantised: fp64 [n, r], its levels.
            scale: fp64 [n], t.

        Returns:
            fp64 [n] each: the largest of all rows.
        """
        above: list[torch.Tensor] = []
        below: list[torch.Tensor] = []
        length = latent.norm(dim=1)
        at_once = max(1, _PRODUCTS_AT_ONCE // max(1, len(self.rows)))
        for first in range(0, len(latent), at_once):
            here = slice(first, first + at_once)
            dot = quantised[here] @ self.levels.T
            bias = latent[here] @ self.rows.T
            unit = torch.outer(scale[here], self.scale)
            order = torch.outer(length[here] * 2.0**-20, self.length)
            for found, sign in ((above, 1.0), (below, -1.0)):
                rounded = torch.add(bias, order, alpha=sign).float().bfloat16().double()
                found.append(rounded.div_(unit).sub_(dot).mul_(sign).amax(1))
        rounding = length / scale * (2.0**-19 * self.longest)
        return torch.cat(above) + rounding, torch.cat(below) + rounding


def residuals_of(
    weight: torch.Tensor, row_scale: torch.Tensor, levels: torch.Tensor, latents: int
) -> Residuals | None:
    """The residuals of a head's rows; None where all products would take long (on a CPU).

    Args:
        weight: bf16 [V, r], W.
        row_scale: fp32 [V]; NaN where a row is not finite.
        levels: int8 [V, r].
        latents: how many will be multiplied.
    """
    if not weight.is_cuda and len(weight) * latents > _MOST_CPU_PRODUCTS:
        return None
    finite = row_scale.isfinite()
    rows = torch.where(finite[:, None], weight.double(), 0.0)
    scale = torch.where(finite, row_scale.double(), 1.0)
    length = rows.norm(dim=1)
    return Residuals(
        rows=rows,
        levels=torch.where(finite[:, None], levels.double(), 0.0),
        scale=scale,
        length=length,
        longest=_largest(length / scale),
    )


def latent_bounds(
    latent: torch.Tensor,
    quantised: torch.Tensor,
    scale: torch.Tensor,
    screen: Screen,
    residuals: Residuals | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The slack C and the margin M of latents.

    Args:
        latent: bf16 [n, r].
        quantised: [n, r], their levels 256 hi + lo.
        scale: fp32 [n].
        screen: of the head.
        residuals: of the head, to measure errors instead of bounding them by lengths.

    Returns:
        fp32 [n] each, rounded up; NaN or infinite where a latent is not finite.
    """
    spread, growth, smallest, longest = screen[1:].double()
    u, t, levels = latent.double(), scale.double(), quantised.double()
    norm, away = u.norm(dim=1), (u - t[:, None] * levels).norm(dim=1)
    above = below = (spread * norm + growth * away) / t
    if residuals is not None:
        measured = residuals.slacks(u, levels, t)
        # What is measured may be NaN where numbers are not finite: lengths say so, too.
        above, below = (torch.fmin(above, found).clamp_min(0) for found in measured)
    outside = (t * smallest < LEAST_EXACT_PRODUCT) | (longest * norm > LARGEST_EXACT_PRODUCT)

    def widened(slack: torch.Tensor) -> torch.Tensor:
        slack = slack * (1 + 2.0**-16) + 1
        return torch.where(outside & (norm != 0), float("inf"), slack)

    slack = _upwards(widened(above))
    margin = _upwards(t * (slack.double() + widened(below)) * (1 + 2.0**-14))
    return slack, margin


def _largest(values: torch.Tensor, least: float = 0.0) -> float:
    return float(values.max()) if values.numel() else least


def _upwards(values: torch.Tensor) -> torch.Tensor:
    """fp64 to fp32, never below."""
    nearest = values.float()
    above = torch.nextafter(nearest, torch.full_like(nearest, float("inf")))
    return torch.where(nearest.double() < values, above, nearest)
