"""Records as figures want them: those of one run, as times over K."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wts.bench.clock import StepFit, fit_steps
from wts.bench.record import Record, quantised_runs, read
from wts.errors import InputError

__all__ = ["STEPWISE", "Case", "Results", "fits", "latest", "load", "number", "stepwise", "times"]

STEPWISE = ("sglang", "sglang_greedy", "step_torch")
"""Paths that launch kernels for every step."""

_FILES = ("head", "placement", "serving", "acceptance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All records of one GPU.

    Args:
        gpu: folder name, such as h200.
        digest: of the files, so that a figure can say which records it shows.
        records: by name of the benchmark; of one without a file there are none.
    """

    gpu: str
    digest: str
    records: Mapping[str, Sequence[Record]]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """What walks of several lengths have in common."""

    head: str
    vocab: int
    batch: int
    temperature: float


def load(folder: Path) -> Results:
    """Read the results of one GPU.

    Args:
        folder: with head.jsonl and others, such as benchmarks/results/h200.

    Raises:
        InputError: there are none, or a line is no record.
    """
    paths = [folder / f"{name}.jsonl" for name in _FILES]
    found = [path for path in paths if path.exists()]
    if not found:
        raise InputError.mismatch(
            "results",
            wanted=f"a folder with {' or '.join(path.name for path in paths)}",
            found=folder,
            fix="measure with wts bench all --out DIR, then pass --results DIR/<gpu>",
        )
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in found)).hexdigest()[:12]
    return Results(
        gpu=folder.resolve().name,
        digest=digest,
        records={path.stem: quantised_runs(read(path)) if path in found else [] for path in paths},
    )


def number(record: Record, name: str) -> float:
    """A field that holds a number."""
    return float(str(record[name]))


def latest(records: Sequence[Record], wanted: Callable[[Record], bool]) -> list[Record]:
    """Wanted records of the latest run that has any: ratios are taken within one run only."""
    found = [record for record in records if wanted(record)]
    if not found:
        return []
    run = max(found, key=lambda record: str(record["time"]))["run_id"]
    return [record for record in found if record["run_id"] == run]


def times(records: Sequence[Record]) -> dict[Case, dict[str, dict[int, float]]]:
    """Medians in us by case, path and K.

    Args:
        records: of one run, one cache policy and one rank.
    """
    found: dict[Case, dict[str, dict[int, float]]] = {}
    for record in records:
        case = Case(
            head=str(record["head"]),
            vocab=int(number(record, "V")),
            batch=int(number(record, "B")),
            temperature=number(record, "T"),
        )
        path = found.setdefault(case, {}).setdefault(str(record["path"]), {})
        path[int(number(record, "K"))] = number(record, "p50_us")
    return dict(sorted(found.items()))


def fits(paths: Mapping[str, Mapping[int, float]]) -> dict[str, StepFit]:
    """Lines over K for every path with two lengths or more."""
    fitted = {path: fit_steps(dict(by_steps)) for path, by_steps in paths.items()}
    return {path: fit for path, fit in fitted.items() if fit is not None}


def stepwise(paths: Mapping[str, Mapping[int, float]], steps: int) -> float | None:
    """The fastest step-wise path at a length, in us; None where none was measured."""
    found = [paths[path][steps] for path in STEPWISE if steps in paths.get(path, {})]
    return min(found, default=None)
