"""Between which numbers every latent of a head lies, whatever the order of its sums.

Interval arithmetic over the formula of the contract, in fp64. Only three things are not exact: an
fp32 sum of n products is off by at most n 2^-24 / (1 - n 2^-24) of the sum of their sizes, in any
order, with or without fused multiply-adds; a single fp32 operation by 2^-24 of its result; an
activation by what `numerics.activations` states (torch's own are nearer). R() is monotone: it is
applied to both ends. Near a boundary of bf16 an interval gets as wide as one bf16 step, elsewhere
it has no width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bounds import U32, logit_bound
from strategies import RecurrentHead
from wts.heads.base import Head, HeadState
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead

_ACTIVATION = 3 * 2.0**-23  # the largest of them, of tanh
_TINY = 2e-33  # absolute: of results that are tiny, but not as tiny as they should be


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interval:
    """Elements between two ends, fp64."""

    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def exactly(cls, values: torch.Tensor) -> Interval:
        return cls(low=values.double(), high=values.double())

    def __add__(self, other: Interval) -> Interval:
        return Interval(low=self.low + other.low, high=self.high + other.high).widened(U32)

    def __neg__(self) -> Interval:
        return Interval(low=-self.high, high=-self.low)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = torch.stack(
            [one * two for one in (self.low, self.high) for two in (other.low, other.high)]
        )
        return Interval(low=ends.amin(0), high=ends.amax(0)).widened(U32)

    def widened(self, relative: float, absolute: float = 2.0**-149) -> Interval:
        return Interval(
            low=self.low - self.low.abs() * relative - absolute,
            high=self.high + self.high.abs() * relative + absolute,
        )

    def applied(self, rising: Callable[[torch.Tensor], torch.Tensor]) -> Interval:
        """A rising function of it."""
        return Interval(low=rising(self.low), high=rising(self.high))

    def rounded(self) -> Interval:
        return self.applied(lambda end: end.float().bfloat16().double())

    def activated(self, rising: Callable[[torch.Tensor], torch.Tensor]) -> Interval:
        return self.applied(rising).widened(_ACTIVATION, _TINY)

    def chunk(self, parts: int) -> list[Interval]:
        ends = zip(self.low.chunk(parts, 1), self.high.chunk(parts, 1), strict=True)
        return [Interval(low=low, high=high) for low, high in ends]

    def holds(self, values: torch.Tensor) -> bool:
        return bool(((self.low <= values.double()) & (values.double() <= self.high)).all())

    @property
    def width(self) -> torch.Tensor:
        return self.high - self.low


def product(weight: torch.Tensor, vector: Interval, bias: torch.Tensor | None = None) -> Interval:
    """weight . vector + bias, summed in fp32 in any order."""
    matrix = weight.double().T
    middle = (vector.low + vector.high) / 2
    size = torch.maximum(vector.low.abs(), vector.high.abs()) @ matrix.abs()
    total = middle @ matrix
    terms = len(matrix) + 3  # the products, a bias, and what parts of a split sum are added to
    if bias is not None:
        total, size = total + bias.double(), size + bias.double().abs()
    off = terms * U32 / (1 - terms * U32) * size + terms * 2.0**-149
    off = off + (vector.width / 2) @ matrix.abs()
    return Interval(low=total - off, high=total + off)


def _silu(projected: Interval) -> Interval:
    """SiLU is no rising function: it falls up to -1.278, where it is -0.2785."""
    lowest = -1.2784645427610738
    ends = [torch.nn.functional.silu(end) for end in (projected.low, projected.high)]
    around = (projected.low < lowest) & (projected.high > lowest)
    least = torch.nn.functional.silu(torch.tensor(lowest, dtype=torch.float64))
    low = torch.where(around, least, torch.minimum(*ends))
    return Interval(low=low, high=torch.maximum(*ends)).widened(_ACTIVATION, _TINY)


def latent_interval(
    head: RecurrentHead, state: HeadState, previous: torch.Tensor, hidden: torch.Tensor
) -> tuple[Interval | None, Interval | None]:
    """The next state and the latent, from one state that is known exactly."""
    row = head.rows_of(previous)
    one = Interval.exactly(torch.ones(1, 1))
    if isinstance(head, GatedHead):
        joined = Interval.exactly(torch.cat([hidden, row], 1))
        inner = product(head.gate_weight, joined, head.gate_bias).rounded()
        gate = inner.activated(torch.sigmoid).rounded()
        return None, (gate * Interval.exactly(row)).rounded()
    if isinstance(head, DominoHead):
        return _domino(head, state, row, hidden)
    assert isinstance(state, torch.Tensor)
    joined = Interval.exactly(torch.cat([state, row, hidden], 1))
    gate, candidate, output = product(head.joint_weight, joined, head.joint_bias).rounded().chunk(3)
    gate = gate.activated(torch.sigmoid).rounded()
    candidate = candidate.activated(torch.tanh).rounded()
    kept = (gate * Interval.exactly(state)).rounded()
    taken = ((one - gate).rounded() * candidate).rounded()
    return (kept + taken).rounded(), output.activated(torch.tanh).rounded()


def _domino(
    head: DominoHead, state: HeadState, row: torch.Tensor, hidden: torch.Tensor
) -> tuple[Interval, Interval | None]:
    known = row.new_zeros(len(row), head.state_size) if state is None else state
    assert isinstance(known, torch.Tensor)
    old = Interval.exactly(known)
    inputs = product(head.gru_input_weight, Interval.exactly(row)).rounded().chunk(3)
    states = product(head.gru_state_weight, old).rounded().chunk(3)
    reset = (inputs[0] + states[0]).activated(torch.sigmoid)
    update = (inputs[1] + states[1]).activated(torch.sigmoid)
    new = (inputs[2] + reset * states[2]).activated(torch.tanh)
    h = (new + update * (old - new)).rounded()
    if state is None:
        return h, None
    still = Interval.exactly(hidden)
    joined = Interval(low=torch.cat([still.low, h.low], 1), high=torch.cat([still.high, h.high], 1))
    return h, _silu(product(head.projector_weight, joined).rounded()).rounded()


def walk_bound(head: Head, base: torch.Tensor, latent: Interval | None) -> torch.Tensor:
    """The largest |int8 step logit - reference step logit| over latents of an interval, [B, V].

    |int8(u) - reference(u')| <= |int8(u) - W u| + |W (u - u')| + |W u' - reference(u')|. All terms
    of `logit_bound` grow with the sizes of a latent's elements, so the largest of them serve both.
    Without a latent both logits are the base logit.
    """
    if latent is None:
        return torch.zeros(base.shape, dtype=torch.float64)
    largest = torch.maximum(latent.low.abs(), latent.high.abs()).bfloat16()
    apart = latent.width @ head.projection[: head.vocab].double().abs().T
    return logit_bound(head, base, largest) + torch.where(base == float("-inf"), 0.0, apart)
