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
product is less than 2 s t C below the raised one, and z = base + product at most half a place of
bf16 from its key. So a row lies at most s M and that half place below its key, with the margin of
its latent M = 2 t C (1 + 2^-14). A block says its best row's s as one of seven limits, drawn from
the scales of all rows, the last the largest: the code of a row is in the low bits of its scale,
whose levels stay what they are. So a row of a large scale makes no other row's bound wider.

Markov latents have C and M in their table rows. The kernel makes those of other latents itself, a
little larger: `bound_latent` of csrc/latents.cuh.

**Measured.** A Markov latent is a table row, known when weights are packed; so where there is time
for the products of all rows with all latents (`Residuals`), the errors themselves take the place of
products of lengths, which they can reach only where row and latent point the same way. C is then a
fifth of what it was. Every number is a bound either way: tokens are the same, only how many rows
have to be computed is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch

from wts.cells import AnyHead, lane_product
from wts.errors import HeadError, describe
from wts.heads import MarkovHead
from wts.plan import (
    EXACT_SOURCE_WORDS,
    LARGEST_EXACT_PRODUCT,
    LEAST_EXACT_PRODUCT,
    SCALE_LIMITS,
)

__all__ = [
    "ExactHead",
    "Residuals",
    "Screen",
    "check_exact_weights",
    "code_scales",
    "exact_head",
    "exact_logits",
    "latent_bounds",
    "residuals_of",
    "screen_of",
]

_ROWS_AT_ONCE = 1 << 13  # their products are made in fp64
_PRODUCTS_AT_ONCE = 1 << 26  # of rows and latents; two of each are held
_MOST_CPU_PRODUCTS = 1 << 25  # a second on two cores
_LIMITED = (0.5, 0.8, 0.95, 0.99, 0.999, 0.9999, 1.0)  # shares of rows up to each of SCALE_LIMITS
_CODE_BITS = SCALE_LIMITS.bit_length()  # one code more: of an undecided block

Screen: TypeAlias = torch.Tensor
"""fp32 [11]: seven limits of scales; spread, growth; of rows that are not zero the smallest scale;
the largest |w|."""


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactHead:
    """What an exact walk reads of the unquantised head; its own tensors where they can be read.

    Args:
        projection: bf16 [vocab or more, r], W.
        table: bf16 [table_rows, r], the latents of a Markov head; None for others.
        screen: the numbers that bounds are made of.
        copies: those of the two that had to be copied, since the head's cannot be read where they
            lie.
    """

    projection: torch.Tensor
    table: torch.Tensor | None
    screen: Screen
    copies: tuple[torch.Tensor, ...] = ()

    def source(self) -> torch.Tensor:
        """`struct ExactSource` of csrc/rounds.cuh, int64 [EXACT_SOURCE_WORDS].

        It lies in memory, not among the kernel's arguments, so that captured graphs read new ones.
        """
        table = 0 if self.table is None else self.table.data_ptr()
        numbers = torch.zeros(2 * (EXACT_SOURCE_WORDS - 2))
        numbers[: len(self.screen)] = self.screen.cpu()
        return torch.tensor(
            [self.projection.data_ptr(), table, *numbers.view(torch.int64).tolist()]
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is held beyond the head's own."""
        return [self.screen, *self.copies]

    @property
    def memory_bytes(self) -> int:
        """Bytes beyond the head's own."""
        return sum(tensor.nbytes for tensor in self.tensors)


def check_exact_weights(head: AnyHead) -> None:
    """Refuse what exact logits cannot be computed of.

    Raises:
        HeadError: a projection that is not bf16.
    """
    if head.projection.dtype != torch.bfloat16:
        raise HeadError.mismatch(
            "head.projection",
            wanted="bfloat16 for an exact walk",
            found=describe(head.projection),
            fix="convert it, or plan without exact",
        )


def exact_head(head: AnyHead, row_scale: torch.Tensor, levels: torch.Tensor) -> ExactHead:
    """Take the unquantised weights where they are, or a copy where they cannot be read there.

    Args:
        head: the head.
        row_scale: fp32 [V], of its packed rows.
        levels: int8 [V, r], the rows themselves.

    Raises:
        HeadError: a projection that is not bf16.
    """
    check_exact_weights(head)
    device = row_scale.device
    own = [head.projection] + ([head.table] if isinstance(head, MarkovHead) else [])
    there = [readable(weight, device) for weight in own]
    return ExactHead(
        projection=there[0],
        table=there[1] if len(there) > 1 else None,
        screen=screen_of(there[0][: len(levels)], row_scale, levels),
        copies=tuple(one for one, other in zip(there, own, strict=True) if one is not other),
    )


def readable(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The weight itself where the kernel can read it in 16-byte pieces, else a copy."""
    fits = weight.device == device and weight.is_contiguous() and weight.data_ptr() % 16 == 0
    return weight if fits else weight.to(device, copy=True).contiguous()


def screen_of(weight: torch.Tensor, row_scale: torch.Tensor, levels: torch.Tensor) -> Screen:
    """What a head's rows give to bounds.

    Args:
        weight: bf16 [V, r], W.
        row_scale: fp32 [V], coded; NaN where a row is not finite.
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
    numbers = torch.tensor([spread, growth, smallest, longest], dtype=torch.float64)
    return torch.cat([scale_limits(row_scale), _upwards(numbers).to(row_scale.device)])


def scale_limits(row_scale: torch.Tensor) -> torch.Tensor:
    """Seven limits of scales, fp32 [7], ascending, that no code changes; the last is above all."""
    scales = row_scale[row_scale.isfinite()].sort().values
    if not len(scales):
        return torch.zeros(len(_LIMITED), device=row_scale.device)
    last = len(scales) - 1
    at = torch.tensor([min(int(share * len(scales)), last) for share in _LIMITED])
    bits = scales[at.to(scales.device)].view(torch.int32)
    return (bits | ((1 << _CODE_BITS) - 1)).view(torch.float32)


def code_scales(row_scale: torch.Tensor) -> None:
    """Put the code of each row, fp32 [V], into the low bits of its scale: in place.

    It is the number of the first limit that is not below the scale. A row that is not finite stays.
    """
    code = torch.searchsorted(scale_limits(row_scale), row_scale).to(torch.int32)
    bits = (row_scale.view(torch.int32) & -(1 << _CODE_BITS)) | code
    row_scale.copy_(torch.where(row_scale.isfinite(), bits.view(torch.float32), row_scale))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residuals:
    """Rows of W and of what int8 leaves of them, to be multiplied by latents.

    Args:
        rows: [V, r], w / s.
        away: [V, 2 r], (w - s q) / s beside q.
        row_norm, away_norm, level_norm: the largest lengths of w / s and of both halves of `away`.
    """

    rows: torch.Tensor
    away: torch.Tensor
    row_norm: float
    away_norm: float
    level_norm: float

    def slack(self, latent: torch.Tensor, quantised: torch.Tensor) -> torch.Tensor:
        """How far above its int8 product a row's rounded bias may be, of s t, and that far below.

        Products are made in the number type of the rows. With u the unit of bf16 (fp32 ones may be
        made of it, too), each is off by less than 4 u |a| |b| for its factors' roundings and its
        sum's, which is kept in fp32, and by 2 u of itself for its own.

        Args:
            latent: fp64 [n, r], u / t.
            quantised: [n, r], their levels.

        Returns:
            fp64 [n]: the largest of all rows.
        """
        left = latent - quantised.double()
        beside = torch.cat([latent, left], 1)
        unit = 2.0**-8
        rounding = 2.0**-8 + 2.0**-17
        found = []
        at_once = max(1, _PRODUCTS_AT_ONCE // max(1, len(self.rows)))
        with _sums_in_fp32():
            for first in range(0, len(latent), at_once):
                one = latent[first : first + at_once].to(self.rows.dtype) @ self.rows.T
                two = beside[first : first + at_once].to(self.rows.dtype) @ self.away.T
                # Their sum is rounded once more, which is one unit of it.
                found.append(two.abs_().add_(one.abs_(), alpha=rounding).amax(1).double())
        length = latent.norm(dim=1)
        lengths = (self.away_norm + rounding * self.row_norm) * length
        lengths += self.level_norm * left.norm(dim=1)
        largest = torch.cat(found).mul(1 + 4 * unit).add(lengths, alpha=4 * unit)
        return largest.add(length, alpha=2.0**-20 * self.row_norm)  # the order of the exact sum


@contextmanager
def _sums_in_fp32() -> Iterator[None]:
    """Have a library keep the parts of bf16 products' sums in fp32."""
    kept = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = kept


def residuals_of(
    weight: torch.Tensor, row_scale: torch.Tensor, levels: torch.Tensor, latents: int
) -> Residuals | None:
    """The residuals of a head's rows; None where all products would take long (on a CPU).

    Args:
        weight: bf16 [V, r], W.
        row_scale: fp32 [V], coded; NaN where a row is not finite.
        levels: int8 [V, r].
        latents: how many will be multiplied.
    """
    if not weight.is_cuda and len(weight) * latents > _MOST_CPU_PRODUCTS:
        return None
    dtype = torch.bfloat16 if weight.is_cuda else torch.float32
    rank = weight.shape[1]
    rows = weight.new_zeros(len(weight), rank, dtype=dtype)
    away = weight.new_zeros(len(weight), 2 * rank, dtype=dtype)
    row_norm = away_norm = level_norm = 0.0
    for first in range(0, len(weight), _ROWS_AT_ONCE):
        last = first + _ROWS_AT_ONCE
        scale = row_scale[first:last, None].double()
        finite = scale.isfinite()
        level = torch.where(finite, levels[first:last].double(), 0)
        row = torch.where(finite, weight[first:last].double() / scale, 0)
        row_norm = max(row_norm, _largest(row.norm(dim=1)))
        away_norm = max(away_norm, _largest((row - level).norm(dim=1)))
        level_norm = max(level_norm, _largest(level.norm(dim=1)))
        rows[first:last], away[first:last] = row, torch.cat([row - level, level], 1)
    return Residuals(
        rows=rows, away=away, row_norm=row_norm, away_norm=away_norm, level_norm=level_norm
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
    spread, growth, smallest, longest = screen[-4:].double()
    u, t = latent.double(), scale.double()
    norm, away = u.norm(dim=1), (u - t[:, None] * quantised.double()).norm(dim=1)
    slack = (spread * norm + growth * away) / t
    if residuals is not None:
        slack = torch.minimum(slack, residuals.slack(u / t[:, None], quantised))
    slack = slack * (1 + 2.0**-16) + 1
    outside = (t * smallest < LEAST_EXACT_PRODUCT) | (longest * norm > LARGEST_EXACT_PRODUCT)
    slack = torch.where(outside & (norm != 0), float("inf"), slack)
    slack = _upwards(slack)
    margin = _upwards(2 * t * slack.double() * (1 + 2.0**-14))
    return slack, margin


def _largest(values: torch.Tensor, least: float = 0.0) -> float:
    return float(values.max()) if values.numel() else least


def _upwards(values: torch.Tensor) -> torch.Tensor:
    """fp64 to fp32, never below."""
    nearest = values.float()
    above = torch.nextafter(nearest, torch.full_like(nearest, float("inf")))
    return torch.where(nearest.double() < values, above, nearest)
