"""Which points of the head benchmark exist. Pure data: nothing here needs torch or a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["GOALS", "HeadCase", "Point", "grid_cases", "product_cases"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Point:
    """One cell of the published table: a walk of K steps."""

    vocab: int
    batch: int
    steps: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCase:
    """What is built and timed together: walks of several lengths over one batch."""

    vocab: int
    rank: int
    batch: int
    temperature: float
    steps: tuple[int, ...]

    @property
    def max_steps(self) -> int:
        """The longest walk, which the plan is made for."""
        return max(self.steps)

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn rather than the largest taken."""
        return self.temperature > 0

    def point(self, steps: int) -> Point:
        """The cell of one length."""
        return Point(vocab=self.vocab, batch=self.batch, steps=steps, temperature=self.temperature)

    def __str__(self) -> str:
        steps = ",".join(map(str, self.steps))
        return f"V={self.vocab} r={self.rank} B={self.batch} K={steps} T={self.temperature:g}"


# V, B, K, then how many times faster than SGLang's default steps a walk is to be when L2 is cold,
# at T = 0 and at T = 1.
_GOAL_ROWS = (
    (151_936, 1, 16, 11.5, 10.5),
    (151_936, 1, 7, 8.0, 7.5),
    (151_936, 2, 16, 10.5, 9.5),
    (151_936, 4, 16, 10.5, 9.0),
    (151_936, 8, 16, 9.5, 7.5),
    (151_936, 16, 16, 8.0, 6.5),
    (151_936, 64, 16, 5.0, 4.5),
    (248_320, 1, 7, 6.5, 5.5),
    (248_320, 8, 7, 5.5, 5.0),
    (248_320, 64, 7, 4.2, 4.0),
)

GOALS: Mapping[Point, float] = MappingProxyType(
    {
        Point(vocab=vocab, batch=batch, steps=steps, temperature=temperature): ratio
        for vocab, batch, steps, greedy, sampled in _GOAL_ROWS
        for temperature, ratio in ((0.0, greedy), (1.0, sampled))
    }
)
"""Goals of the grid on an H200 with r = 256, as ratios to SGLang's default step functions."""

_GRID_RANK = 256


def _in_order(cases: Sequence[HeadCase]) -> tuple[HeadCase, ...]:
    # One head is drawn per (V, r), and one emulator of the largest batch serves the smaller ones.
    return tuple(
        sorted(cases, key=lambda case: (case.vocab, case.rank, case.temperature, -case.batch))
    )


def product_cases(
    *,
    vocabs: Sequence[int],
    ranks: Sequence[int],
    batches: Sequence[int],
    temperatures: Sequence[float],
    steps: Sequence[int],
) -> tuple[HeadCase, ...]:
    """Every combination of the given values."""
    lengths = tuple(sorted(set(steps)))
    return _in_order(
        [
            HeadCase(vocab=vocab, rank=rank, batch=batch, temperature=temperature, steps=lengths)
            for vocab in dict.fromkeys(vocabs)
            for rank in dict.fromkeys(ranks)
            for batch in dict.fromkeys(batches)
            for temperature in dict.fromkeys(temperatures)
        ]
    )


def grid_cases(
    *,
    vocabs: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    temperatures: Sequence[float] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[HeadCase, ...]:
    """The points that have a goal, and the shorter walks beside them that give the slope per step.

    Args:
        vocabs, batches, temperatures, steps: keep only these; everything when None.
    """
    longest: dict[tuple[int, int, float], int] = {}
    for point in GOALS:
        key = (point.vocab, point.batch, point.temperature)
        longest[key] = max(point.steps, longest.get(key, 0))
    cases = []
    for (vocab, batch, temperature), most in longest.items():
        lengths = tuple(
            length for length in (1, 7, 16) if length <= most and (steps is None or length in steps)
        )
        if (
            lengths
            and (vocabs is None or vocab in vocabs)
            and (batches is None or batch in batches)
            and (temperatures is None or temperature in temperatures)
        ):
            cases.append(
                HeadCase(
                    vocab=vocab,
                    rank=_GRID_RANK,
                    batch=batch,
                    temperature=temperature,
                    steps=lengths,
                )
            )
    return _in_order(cases)
