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
"""

from __future__ import annotations

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
    "Screen",
    "check_exact_weights",
    "code_scales",
    "exact_head",
    "exact_logits",
    "latent_bounds",
    "screen_of",
]

_ROWS_AT_ONCE = 1 << 13  # their products are made in fp64
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


def latent_bounds(
    latent: torch.Tensor, quantised: torch.Tensor, scale: torch.Tensor, screen: Screen
) -> tuple[torch.Tensor, torch.Tensor]:
    """The slack C and the margin M of latents.

    Args:
        latent: bf16 [n, r].
        quantised: [n, r], their levels 256 hi + lo.
        scale: fp32 [n].
        screen: of the head.

    Returns:
        fp32 [n] each, rounded up; NaN where a latent is not finite.
    """
    spread, growth, smallest, longest = screen[-4:].double()
    u, t = latent.double(), scale.double()
    norm, away = u.norm(dim=1), (u - t[:, None] * quantised.double()).norm(dim=1)
    slack = (spread * norm + growth * away) / t * (1 + 2.0**-16) + 1
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
