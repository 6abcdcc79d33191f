"""Which points of the head benchmark exist. Pure data: nothing here needs torch or a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from wts.heads.kinds import HEAD_KINDS, KINDS

__all__ = [
    "DEFAULT_HIDDEN_SIZE",
    "DEFAULT_STATE_SIZE",
    "GOALS",
    "OURS",
    "PATHS",
    "HeadCase",
    "Point",
    "applies",
    "default_paths",
    "grid_cases",
    "product_cases",
]

DEFAULT_HIDDEN_SIZE = 2560
DEFAULT_STATE_SIZE = 1024

PATHS = ("wts", "wts_exact", "probe", "wts_streaming", "step_torch", "sglang", "sglang_greedy")
"""Who can be timed, in the order of the table."""

OURS = ("wts", "wts_exact", "probe", "wts_streaming")
"""Walks of our own."""

# Timed only where they are named: nobody would walk like the first, and the second is another walk.
_ASKED_FOR = ("wts_streaming", "wts_exact")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Point:
    """One cell of the published table: a walk of K steps."""

    head: str = "markov"
    vocab: int
    batch: int
    steps: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCase:
    """What is built and timed together: walks of several lengths over one batch.

    Args:
        head: kind of the head.
        hidden_size: H, elements of a hidden state; not used by a Markov head.
        state_size: G, elements of a Domino head's state; not used by others.
        vocab, rank, batch, temperature, steps: V, r, B, T and the lengths K.
    """

    head: str = "markov"
    hidden_size: int = DEFAULT_HIDDEN_SIZE
    state_size: int = DEFAULT_STATE_SIZE
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

    @property
    def reads_hidden(self) -> bool:
        """Whether its head reads hidden states."""
        return KINDS[self.head].reads_hidden

    @property
    def owns_state_size(self) -> bool:
        """Whether the size of its head's state is a number of its own."""
        return KINDS[self.head].state == "own"

    @property
    def has_state(self) -> bool:
        """Whether its head carries a state from step to step."""
        return KINDS[self.head].state != "none"

    def point(self, steps: int) -> Point:
        """The cell of one length."""
        return Point(
            head=self.head,
            vocab=self.vocab,
            batch=self.batch,
            steps=steps,
            temperature=self.temperature,
        )

    def __str__(self) -> str:
        steps = ",".join(map(str, self.steps))
        sizes = f"V={self.vocab} r={self.rank} B={self.batch} K={steps} T={self.temperature:g}"
        if not self.reads_hidden:
            return sizes
        state = f" G={self.state_size}" if self.owns_state_size else ""
        return f"{self.head} H={self.hidden_size}{state} {sizes}"


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

# Of heads that read hidden states: V = 151,936, B = 1, K = 15, T = 0; of Domino without the product
# of hidden states and lm_head.
_RECURRENT_GOALS: tuple[tuple[str, float], ...] = (
    ("gated", 12.0),
    ("rnn", 13.0),
    ("domino", 11.0),
)

GOALS: Mapping[Point, float] = MappingProxyType(
    {
        Point(vocab=vocab, batch=batch, steps=steps, temperature=temperature): ratio
        for vocab, batch, steps, greedy, sampled in _GOAL_ROWS
        for temperature, ratio in ((0.0, greedy), (1.0, sampled))
    }
    | {
        Point(head=head, vocab=151_936, batch=1, steps=15, temperature=0.0): ratio
        for head, ratio in _RECURRENT_GOALS
    }
)
"""Goals of the grid on an H200 with r = 256, as ratios to SGLang's default step functions."""

_GRID_RANK = 256


def _in_order(cases: Sequence[HeadCase]) -> tuple[HeadCase, ...]:
    # One head is drawn per (kind, V, r), and one emulator of the largest batch serves the smaller.
    def key(case: HeadCase) -> tuple[float, ...]:
        kind = HEAD_KINDS.index(case.head)
        return (kind, case.vocab, case.rank, case.temperature, -case.batch)

    return tuple(sorted(cases, key=key))


def product_cases(
    *,
    heads: Sequence[str] = ("markov",),
    hidden_size: int = DEFAULT_HIDDEN_SIZE,
    state_size: int = DEFAULT_STATE_SIZE,
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
            HeadCase(
                head=head,
                hidden_size=hidden_size,
                state_size=state_size,
                vocab=vocab,
                rank=rank,
                batch=batch,
                temperature=temperature,
                steps=lengths,
            )
            for head in dict.fromkeys(heads)
            for vocab in dict.fromkeys(vocabs)
            for rank in dict.fromkeys(ranks)
            for batch in dict.fromkeys(batches)
            for temperature in dict.fromkeys(temperatures)
        ]
    )


def grid_cases(
    *,
    heads: Sequence[str] | None = None,
    hidden_size: int = DEFAULT_HIDDEN_SIZE,
    state_size: int = DEFAULT_STATE_SIZE,
    vocabs: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    temperatures: Sequence[float] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[HeadCase, ...]:
    """The points that have a goal, and the shorter walks beside them that give the slope per step.

    Args:
        heads, vocabs, batches, temperatures, steps: keep only these; everything when None.
        hidden_size: H of heads that read hidden states.
        state_size: G of Domino heads.
    """
    longest: dict[tuple[str, int, int, float], int] = {}
    for point in GOALS:
        key = (point.head, point.vocab, point.batch, point.temperature)
        longest[key] = max(point.steps, longest.get(key, 0))
    cases = []
    for (head, vocab, batch, temperature), most in longest.items():
        lengths = tuple(
            length for length in sorted({1, 7, most}) if steps is None or length in steps
        )
        if (
            lengths
            and (heads is None or head in heads)
            and (vocabs is None or vocab in vocabs)
            and (batches is None or batch in batches)
            and (temperatures is None or temperature in temperatures)
        ):
            cases.append(
                HeadCase(
                    head=head,
                    hidden_size=hidden_size,
                    state_size=state_size,
                    vocab=vocab,
                    rank=_GRID_RANK,
                    batch=batch,
                    temperature=temperature,
                    steps=lengths,
                )
            )
    return _in_order(cases)


def default_paths() -> tuple[str, ...]:
    """Those that are timed where none is named."""
    return tuple(path for path in PATHS if path not in _ASKED_FOR)


def applies(path: str, case: HeadCase) -> bool:
    """Whether a path exists for a case.

    A Markov head is its own probe, and the only one that is streamed; no sampled walk is exact.
    SGLang samples no Domino head, and fuses its greedy step for one row of a Markov head only.
    """
    if path == "probe":
        return case.head != "markov"
    if path == "wts_streaming":
        return case.head == "markov"
    if path == "wts_exact":
        return not case.sampled
    if path == "sglang":
        return case.head != "domino" or not case.sampled
    return path != "sglang_greedy" or (
        case.head == "markov" and case.batch == 1 and not case.sampled
    )
