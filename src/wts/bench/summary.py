"""The README's table of measured numbers, rendered from committed result records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wts.bench.record import Record, read

__all__ = ["render", "render_file"]

_PATHS = ("wts", "sglang", "step_torch")
_TITLES = {"wts": "one walk", "sglang": "SGLang, step by step", "step_torch": "torch, step by step"}


def render(records: Sequence[Record], *, source: str) -> str:
    """Render the latest run of the head benchmark: L2 cold, in microseconds, with ratios.

    Args:
        records: of bench "head"; ratios are taken within one run only, so only the latest counts.
        source: where the records are, named under the table.

    Returns:
        Markdown: a row for each (V, B, T, K) that has all of wts, sglang and step_torch.
    """
    last = max(records, key=lambda record: str(record["time"]))
    run = [r for r in records if r["run_id"] == last["run_id"] and r["cache"] == "cold"]
    times = {(r["V"], r["B"], r["T"], r["K"], r["path"]): float(str(r["p50_us"])) for r in run}
    points = sorted(
        {key[:4] for key in times if all((*key[:4], path) in times for path in _PATHS)},
        key=lambda point: tuple(float(str(part)) for part in point),
    )
    lines = [
        "| V | B | T | K | " + " | ".join(f"{_TITLES[path]}, us" for path in _PATHS) + " | over "
        "SGLang |",
        "|" + "---|" * (len(_PATHS) + 5),
    ]
    for vocab, batch, temperature, steps in points:
        row = [times[vocab, batch, temperature, steps, path] for path in _PATHS]
        cells = [f"{vocab:,}", str(batch), f"{float(str(temperature)):g}", str(steps)]
        cells += [f"{time:.1f}" for time in row]
        lines.append("| " + " | ".join([*cells, f"{row[1] / row[0]:.1f} x"]) + " |")
    lines.append("")
    lines.append(
        "Medians of complete calls replayed from CUDA graphs, L2 flushed before each, all paths in "
        f"turns in one run: one {str(last['gpu']).upper()}, torch {last['torch']}, CUDA "
        f"{last['cuda']}, SGLang {last['sglang']}, commit {last['commit']} ({source})."
    )
    return "\n".join(lines)


def render_file(path: Path) -> str:
    """Render the table of a results file."""
    return render(read(path), source="/".join(path.parts[-4:]))
