"""The tables of measured numbers in README.md (short) and docs/benchmarks.md (every point)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wts.bench.record import Record, quantised_runs, read
from wts.errors import InputError
from wts.heads.kinds import HEAD_KINDS

__all__ = ["render", "render_file", "render_short"]

_PATHS = ("wts", "sglang", "step_torch")
_TITLES = {"wts": "one walk", "sglang": "SGLang, step by step", "step_torch": "torch, step by step"}
_PROBE = "fixed latent, one walk, us"
_SHORT_STEPS = (
    7  # of the short table: the middle one of those that `wts bench head` measures by default
)

_Point = tuple[Any, ...]  # head, V, B, T, K


class _Run:
    """The cold points of the latest run: ratios are taken within one run only.

    Of int8 walks; of those with Markov heads in it, if there are any.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        quantised = quantised_runs(records)
        markov = [record for record in quantised if record["head"] == "markov"]
        self.last = max(markov or quantised, key=lambda record: str(record["time"]))
        run = [r for r in records if r["run_id"] == self.last["run_id"] and r["cache"] == "cold"]
        self.times: dict[_Point, float] = {
            (str(r["head"]), r["V"], r["B"], r["T"], r["K"], r["path"]): float(str(r["p50_us"]))
            for r in run
        }
        self.points = sorted(
            {
                key[:5]
                for key in self.times
                if all(
                    (*key[:5], path) in self.times for path in _needed(key[0], float(str(key[3])))
                )
            },
            key=lambda point: (
                HEAD_KINDS.index(point[0]),
                *(float(str(part)) for part in point[1:]),
            ),
        )
        self.mixed = any(point[0] != "markov" for point in self.points)

    def ratio(self, point: _Point) -> str:
        ours, theirs = self.times.get((*point, "wts")), self.times.get((*point, "sglang"))
        return "" if theirs is None or not ours else f"{theirs / ours:.1f} x"

    def time(self, point: _Point, path: str) -> str:
        time_us = self.times.get((*point, path))
        return "" if time_us is None else f"{time_us:.1f}"

    def note(self, source: str) -> str:
        """Say how and on what the numbers were measured, and where they are."""
        last = self.last
        text = (
            "Medians of complete calls replayed from CUDA graphs, L2 flushed before each, all "
            f"paths in turns in one run: one {str(last['gpu']).upper()}, torch {last['torch']}, "
            f"CUDA {last['cuda']}, SGLang {last['sglang']}, commit {last['commit']} ({source})."
        )
        if any(point[0] == "domino" for point in self.points):
            text += (
                " Domino without the product of hidden states and lm_head, timed alone in the "
                "same run."
            )
        return text


def render(records: Sequence[Record], *, source: str) -> str:
    """Render the latest run of the head benchmark: L2 cold, in microseconds, with ratios.

    Where the run has other heads than Markov ones, the table says which, and shows their probes.

    Args:
        records: of bench "head"; ratios are taken within one run only, so only the latest counts.
        source: where the records are, named under the table.

    Returns:
        Markdown: a row for each (head, V, B, T, K) that has all of wts, sglang and step_torch;
        sampled Domino heads, which SGLang has not, need no sglang.
    """
    run = _Run(records)
    titles = ["V", "B", "T", "K", *(f"{_TITLES[path]}, us" for path in _PATHS), "over SGLang"]
    rows = []
    for point in run.points:
        head, vocab, batch, temperature, steps = point
        cells = [f"{vocab:,}", str(batch), f"{float(temperature):g}", str(steps)]
        cells += [run.time(point, path) for path in _PATHS] + [run.ratio(point)]
        rows.append([head, *cells, run.time(point, "probe")] if run.mixed else cells)
    if run.mixed:
        titles = ["head", *titles, _PROBE]
    return "\n".join([*_table(titles, rows), "", run.note(source)])


def render_short(records: Sequence[Record], *, source: str, steps: int = _SHORT_STEPS) -> str:
    """Render the same run for one length, a row for each (head, V, B), temperatures side by side.

    Args:
        records: as for `render`.
        source: where the records are, named under the table.
        steps: K of all rows.

    Returns:
        Markdown: of each temperature the walk, SGLang's steps and their ratio. Every batch of the
        run is there, also those where a walk loses.

    Raises:
        InputError: a run without a walk of so many steps.
    """
    run = _Run(records)
    points = [point for point in run.points if point[4] == steps]
    if not points:
        raise InputError.mismatch(
            "steps",
            wanted="a length that the latest run has",
            found=steps,
            fix="name one of " + ", ".join(map(str, sorted({point[4] for point in run.points}))),
        )
    temperatures = sorted({point[3] for point in points}, key=float)
    titles = ["head", "V", "B"] if run.mixed else ["V", "B"]
    for temperature in temperatures:
        titles += [f"T = {float(temperature):g}: one walk, us", "SGLang, us", "ratio"]
    rows = []
    for head, vocab, batch in dict.fromkeys(point[:3] for point in points):
        row = [f"{vocab:,}", str(batch)]
        for temperature in temperatures:
            point = (head, vocab, batch, temperature, steps)
            shown = point in points
            row += [run.time(point, path) if shown else "" for path in ("wts", "sglang")]
            row.append(run.ratio(point) if shown else "")
        rows.append([head, *row] if run.mixed else row)
    return "\n".join([*_table(titles, rows), "", f"K = {steps} steps. {run.note(source)}"])


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [titles, *rows]
    marked = ["| " + " | ".join(line) + " |" for line in lines]
    return [marked[0], "|" + "---|" * len(titles), *marked[1:]]


def _needed(head: str, temperature: float) -> tuple[str, ...]:
    """The paths that a row is not shown without."""
    return ("wts", "step_torch") if head == "domino" and temperature > 0 else _PATHS


def render_file(path: Path, *, every_point: bool = False) -> str:
    """Render the table of a results file.

    Args:
        path: a head.jsonl.
        every_point: the whole table (docs/benchmarks.md), not the short one (README.md).
    """
    source = "/".join(path.parts[-4:])
    records = read(path)
    return (render if every_point else render_short)(records, source=source)
