"""The README's table of measured numbers, rendered from committed result records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wts.bench.record import Record, read
from wts.numbers import HEAD_KINDS

__all__ = ["render", "render_file"]

_PATHS = ("wts", "sglang", "step_torch")
_TITLES = {"wts": "one walk", "sglang": "SGLang, step by step", "step_torch": "torch, step by step"}
_PROBE = "fixed latent, one walk, us"


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
    last = max(records, key=lambda record: str(record["time"]))
    run = [r for r in records if r["run_id"] == last["run_id"] and r["cache"] == "cold"]
    times = {
        (str(r["head"]), r["V"], r["B"], r["T"], r["K"], r["path"]): float(str(r["p50_us"]))
        for r in run
    }
    points = sorted(
        {
            key[:5]
            for key in times
            if all((*key[:5], path) in times for path in _needed(key[0], float(str(key[3]))))
        },
        key=lambda point: (
            list[str](HEAD_KINDS).index(point[0]),
            *(float(str(part)) for part in point[1:]),
        ),
    )
    mixed = any(point[0] != "markov" for point in points)
    titles = ["V", "B", "T", "K", *(f"{_TITLES[path]}, us" for path in _PATHS), "over SGLang"]
    if mixed:
        titles = ["head", *titles, _PROBE]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for point in points:
        head, vocab, batch, temperature, steps = point
        row = {path: times.get((*point, path)) for path in (*_PATHS, "probe")}
        cells = [f"{vocab:,}", str(batch), f"{float(str(temperature)):g}", str(steps)]
        cells += [_cell(row[path]) for path in _PATHS]
        ours, theirs = row["wts"], row["sglang"]
        cells.append("" if theirs is None or not ours else f"{theirs / ours:.1f} x")
        if mixed:
            cells = [head, *cells, _cell(row["probe"])]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        "Medians of complete calls replayed from CUDA graphs, L2 flushed before each, all paths in "
        f"turns in one run: one {str(last['gpu']).upper()}, torch {last['torch']}, CUDA "
        f"{last['cuda']}, SGLang {last['sglang']}, commit {last['commit']} ({source})."
    )
    if any(point[0] == "domino" for point in points):
        lines[-1] += (
            " Domino without the product of hidden states and lm_head, timed alone in the same run."
        )
    return "\n".join(lines)


def _needed(head: str, temperature: float) -> tuple[str, ...]:
    """The paths that a row is not shown without."""
    return ("wts", "step_torch") if head == "domino" and temperature > 0 else _PATHS


def _cell(time_us: float | None) -> str:
    return "" if time_us is None else f"{time_us:.1f}"


def render_file(path: Path) -> str:
    """Render the table of a results file."""
    return render(read(path), source="/".join(path.parts[-4:]))
