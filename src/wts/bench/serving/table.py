"""Gains in a server, from records: as a table and as a figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wts.bench.record import Record
from wts.bench.serving.paths import PATHS
from wts.errors import InputError

__all__ = ["TITLES", "Row", "figure", "headline", "rows", "runs", "table"]

TITLES = {"wts": "one walk", "null_head": "no head at all (bound)"}
"""Of the paths that figures compare with SGLang's own head."""

_COLOURS = {"wts": "#1f77b4", "null_head": "#999999"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A path at a concurrency and a temperature, over all its starts.

    Args:
        path: whose head.
        temperature: T.
        concurrency: requests at a time.
        num_starts: starts that measured it.
        num_times: how often they did, all together.
        round_us: time of a round, median over all times.
        tokens_per_s: of all requests, median over all times.
        accepted_length: tokens a round and request, median over all times.
        gain: rounds that SGLang's own head needs the time of one more for, 0.07 for 7 %; None
            where SGLang's own was not measured. The median over pairs: what two starts of the same
            number measured side by side.
        gain_low: the least of them.
        gain_high: the largest.
    """

    path: str
    temperature: float
    concurrency: int
    num_starts: int
    num_times: int
    round_us: float
    tokens_per_s: float
    accepted_length: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None


def runs(records: Sequence[Record]) -> list[list[Record]]:
    """The records of every run by itself, in the order in which runs began.

    Raises:
        InputError: no serving record.
    """
    found: dict[str, list[Record]] = {}
    for line in records:
        if line["bench"] == "serving":
            found.setdefault(str(line["run_id"]), []).append(line)
    if not found:
        raise InputError("file: wanted records of bench serving, found none; pass serving.jsonl")
    return list(found.values())


def rows(records: Sequence[Record]) -> list[Row]:
    """Summarise the records of one run, by temperature, concurrency and path."""
    groups: dict[tuple[float, int, str], dict[int, list[Record]]] = {}
    for line in records:
        key = (_number(line, "T"), int(_number(line, "concurrency")), str(line["path"]))
        start = int(_number(line, "repeat"))
        groups.setdefault(key, {}).setdefault(start, []).append(line)
    found = []
    for (temperature, concurrency, path), starts in sorted(
        groups.items(), key=lambda item: (*item[0][:2], PATHS.index(item[0][2]))
    ):
        base = groups.get((temperature, concurrency, "sglang"), {})
        gains = [] if path == "sglang" else _gains(base, starts)
        times = [line for lines in starts.values() for line in lines]
        found.append(
            Row(
                path=path,
                temperature=temperature,
                concurrency=concurrency,
                num_starts=len(starts),
                num_times=len(times),
                round_us=_median(times, "round_us"),
                tokens_per_s=_median(times, "tokens_per_s"),
                accepted_length=_median(times, "accepted_length"),
                gain=_gain(base, starts, gains) if path != "sglang" and base else None,
                gain_low=min(gains, default=None),
                gain_high=max(gains, default=None),
            )
        )
    return found


_Starts = dict[int, list[Record]]
"""By the number of the start, in the order in which it measured."""


def _gains(base: _Starts, starts: _Starts) -> list[float]:
    """Of what starts of the same number measured at the same time."""
    return [
        _number(theirs, "round_us") / _number(ours, "round_us") - 1
        for number, lines in starts.items()
        for theirs, ours in zip(base.get(number, []), lines, strict=False)
    ]


def _gain(base: _Starts, starts: _Starts, gains: Sequence[float]) -> float:
    lines, others = ([x for y in of.values() for x in y] for of in (base, starts))
    if gains and all(line.get("n") == 1 for line in [*lines, *others]):
        return statistics.median(gains)
    # Records of before have a start's median each, of times that no two starts shared.
    return _median(lines, "round_us") / _median(others, "round_us") - 1


def _number(line: Record, field: str) -> float:
    return float(str(line[field]))


def _median(lines: Sequence[Record], field: str) -> float:
    return statistics.median(_number(line, field) for line in lines)


def headline(records: Sequence[Record]) -> str:
    """What was served, in one line."""
    line = records[-1]
    return (
        f"{line['model']}; {line['draft']}; acceptance {line['accept']}; one "
        f"{str(line['gpu']).upper()}, SGLang {line['sglang']}, torch {line['torch']}, commit "
        f"{str(line['commit'])[:8]}, run {line['run_id']}"
    )


def table(records: Sequence[Record]) -> str:
    """The records of one run as text.

    Gains are of the time of a round, so they hold for any accepted length; beside them is the range
    over pairs, and the share of what a head that costs nothing would gain.
    """
    lines = [
        headline(records),
        f"{'T':>3} {'requests':>8} {'path':<9} {'starts':>6} {'times':>5} "
        f"{'round ms':>9} {'tokens/s':>9} {'accepted':>8} {'gain':>7} {'range over pairs':>18} "
        f"{'of bound':>8}",
    ]
    found = rows(records)
    bounds = {
        (row.temperature, row.concurrency): row.gain for row in found if row.path == "null_head"
    }
    for row in found:
        bound = bounds.get((row.temperature, row.concurrency))
        share = gain = between = ""
        if row.gain is not None:
            gain = f"{row.gain:+.1%}"
            if row.path == "wts" and bound is not None and bound > 0:
                share = f"{row.gain / bound:.0%}"
        if row.gain_low is not None and row.gain_high is not None:
            between = f"{row.gain_low:+.1%}..{row.gain_high:+.1%}"
        lines.append(
            f"{row.temperature:>3g} {row.concurrency:>8} {row.path:<9} {row.num_starts:>6} "
            f"{row.num_times:>5} {row.round_us / 1e3:>9.3f} {row.tokens_per_s:>9.0f} "
            f"{row.accepted_length:>8.2f} {gain:>7} {between:>18} {share:>8}".rstrip()
        )
    if records[-1]["accept"] == "simulated":
        lines.append("simulated acceptance: for throughput only; texts are not compared")
    return "\n".join(lines)


def figure(records: Sequence[Record], path: Path) -> Path:
    """Draw gains over concurrency, a panel for every temperature, losses too.

    Args:
        records: of one run.
        path: of the figure; its suffix says the format.

    Returns:
        The path.

    Raises:
        ImportError: there is no matplotlib.
    """
    from matplotlib.figure import Figure

    found = rows(records)
    temperatures = sorted({row.temperature for row in found})
    ticks = sorted({row.concurrency for row in found})
    drawing = Figure(figsize=(4.4 * len(temperatures) + 0.6, 3.8), layout="constrained")
    panels = drawing.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    for panel, temperature in zip(panels, temperatures, strict=True):
        for name, title in TITLES.items():
            line = [
                (ticks.index(row.concurrency), row.gain, row.gain_low, row.gain_high)
                for row in found
                if row.path == name and row.temperature == temperature and row.gain is not None
            ]
            if not line:
                continue
            places = [place for place, *_ in line]
            gains = [100 * gain for _, gain, _, _ in line]
            below = [
                max(0.0, 100 * (gain - (gain if low is None else low))) for _, gain, low, _ in line
            ]
            above = [
                max(0.0, 100 * ((gain if up is None else up) - gain)) for _, gain, _, up in line
            ]
            panel.errorbar(
                places,
                gains,
                yerr=[below, above],
                label=title,
                color=_COLOURS[name],
                marker="o",
                capsize=3,
                linestyle="-" if name == "wts" else "--",
            )
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
        panel.set_xlabel("concurrent requests")
        panel.set_title("greedy" if temperature == 0 else f"T = {temperature:g}")
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    panels[0].set_ylabel("gain over SGLang's own head, % more rounds a second")
    drawing.suptitle(headline(records).replace("; one ", "\none "), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
