"""The cost model's constants from recorded walks: `python -m wts.bench.report.cost_fit FILE`.

Least squares of the logarithm of predicted over measured, so that every point counts by its
relative error. Beside the fit stands what a fit to each vocabulary alone says about the others,
which is nearer to what a reader may expect of a new point.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wts.bench.record import read
from wts.bench.report.predicted import Predicted, mean_error, predictions
from wts.errors import InputError
from wts.kernels.resident.cost import Constants

__all__ = ["errors", "fit", "main"]

_TRIES = 40
_LARGEST_STEP = 0.3  # of a constant's logarithm
_NUDGE = 1e-4
_STEADY = 1e-6  # keeps a constant in its place that the points say nothing about


def fit(points: Sequence[Predicted], start: Constants | None = None) -> Constants:
    """Fit the constants that are marked as fitted; the others stay as they were measured.

    Args:
        points: what was measured.
        start: where to begin; the committed ones by default.
    """
    begin = Constants() if start is None else start
    names = list(begin.fitted())

    def constants(logs: np.ndarray) -> Constants:
        return begin.with_fitted(dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def misses(logs: np.ndarray) -> np.ndarray:
        return np.log1p([point.error(constants(logs)) for point in points])

    logs, damping = np.log(list(begin.fitted().values())), 1e-2
    missed = misses(logs)
    for _ in range(_TRIES):
        slopes = np.stack(
            [(misses(logs + _NUDGE * unit) - missed) / _NUDGE for unit in np.eye(len(names))],
            axis=1,
        )
        system = slopes.T @ slopes + (damping + _STEADY) * np.eye(len(names))
        change = np.linalg.solve(system, -slopes.T @ missed)
        tried = logs + np.clip(change, -_LARGEST_STEP, _LARGEST_STEP)
        tried_misses = misses(tried)
        if (tried_misses**2).sum() < (missed**2).sum():
            logs, missed, damping = tried, tried_misses, damping / 2
        else:
            damping *= 4
    return constants(logs)


def errors(points: Sequence[Predicted], constants: Constants) -> str:
    """The errors of constants in one line, and what each vocabulary says about the others."""
    worst = max(abs(point.error(constants)) for point in points)
    text = (
        f"{len(points)} complete calls: mean error {100 * mean_error(points, constants):.1f} %, "
        f"largest {100 * worst:.1f} %"
    )
    crossed = []
    for vocab in sorted({point.vocab for point in points}):
        others = [point for point in points if point.vocab != vocab]
        left = [point for point in points if point.vocab == vocab]
        if others:
            crossed.append(f"{100 * mean_error(left, fit(others)):.1f} %")
    if crossed:
        text += f"; {' and '.join(crossed)} where only the other vocabulary was fitted"
    return f"{text}."


def main(argv: Sequence[str]) -> int:
    """Print the fitted constants of a results file, and their errors; then the committed ones'."""
    points = predictions(read(Path(argv[0])))
    if not points:
        raise InputError("file: wanted cold walks of Markov heads, found none; pass head.jsonl")
    found = fit(points)
    for name, value in found.fitted().items():
        print(f"{name} = {value:.4g}")
    print(f"these constants, {errors(points, found)}")
    print(f"committed ones, {errors(points, Constants())}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
