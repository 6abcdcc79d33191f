"""Times of another public walk kernel, as a reference beside ours. No record of this software.

An int8 kernel of one cooperative launch for each walk, built from its published code and timed on
one H200 with L2 flushed before every replay, in another run than ours: absolute times of two runs
differ by some per cent, so no ratio is taken to it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RIVAL", "RIVAL_TITLE", "RivalPoint"]

RIVAL_TITLE = "another public walk kernel (another run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalPoint:
    """A complete call of that kernel, in us."""

    gpu: str = "h200"
    vocab: int
    batch: int
    steps: int
    temperature: float
    us: float


# V, B, K, then us at T = 0 and at T = 1.
_ROWS = (
    (151_936, 1, 1, 18.0, 18.2),
    (151_936, 1, 7, 34.7, 35.4),
    (151_936, 1, 16, 59.8, 61.0),
    (151_936, 2, 16, 74.8, 88.0),
    (151_936, 4, 16, 82.4, 103.0),
    (151_936, 8, 16, 138.0, 179.0),
    (151_936, 16, 16, 144.0, 184.0),
    (151_936, 32, 16, 158.0, 203.0),
    (151_936, 64, 16, 248.0, 344.0),
    (248_320, 1, 7, 104.0, 125.0),
    (248_320, 64, 7, 174.0, 255.0),
)

RIVAL = tuple(
    RivalPoint(vocab=vocab, batch=batch, steps=steps, temperature=temperature, us=us)
    for vocab, batch, steps, *both in _ROWS
    for temperature, us in zip((0.0, 1.0), both, strict=True)
)
"""Every published-code point that was timed."""
