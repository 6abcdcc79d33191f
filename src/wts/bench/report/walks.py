"""Complete calls of Markov heads: timelines, slopes over K, and everything beside the step-wise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wts.bench.record import Record
from wts.bench.report.points import Case, Results, fits, latest, stepwise, times
from wts.bench.report.rival import RIVAL, RIVAL_TITLE
from wts.bench.report.style import COLOURS, ORDER, TITLES, source_line, title_figure
from wts.figure import new_figure

__all__ = ["grid", "slopes", "timeline"]

_RANK = 256
_VOCAB = 151_936


def _cold(results: Results) -> list[Record]:
    return latest(
        results.records["head"],
        lambda r: r["head"] == "markov" and r["cache"] == "cold" and r["r"] == _RANK,
    )


def _without(path: str, records: Sequence[Record]) -> str:
    """What a figure lacks that it could show, for its foot."""
    if any(record["path"] == path for record in records):
        return ""
    return f"; no record of {TITLES[path]!r} yet"


def timeline(results: Results) -> Any | None:
    """A walk from launch to the last token: entry, then a segment for each step.

    Returns:
        The figure; None without a step-wise path and a walk of two lengths or more.
    """
    cold = _cold(results)
    paths = times(cold).get(Case(head="markov", vocab=_VOCAB, batch=1, temperature=0.0), {})
    lines = fits(paths)
    if "wts" not in lines or len(lines) < 2:
        return None
    shown = [path for path in ORDER if path in lines]
    steps = max(paths["wts"])
    figure = new_figure(10, 1.6 + 0.55 * len(shown))
    panel = figure.subplots()
    for place, path in enumerate(shown):
        fit = lines[path]
        entry = max(0.0, fit.entry_us)
        panel.barh(place, entry, color="lightgrey", edgecolor="black", linewidth=0.5)
        for step in range(steps):
            panel.barh(
                place, fit.step_us, left=entry + step * fit.step_us, color=COLOURS[path],
                alpha=1.0 if step % 2 else 0.6, edgecolor="white", linewidth=0.3,
            )  # fmt: skip
        panel.text(
            entry + steps * fit.step_us,
            place,
            f"  entry {fit.entry_us:.1f} us, {fit.step_us:.2f} us a step",
            va="center",
            fontsize=8,
        )
    panel.set_yticks(range(len(shown)), [TITLES[path] for path in shown], fontsize=8)
    panel.set_xlim(0, 1.35 * max(max(by_steps.values()) for by_steps in paths.values()))
    panel.set_xlabel(f"us; grey: entry, then {steps} steps; lines fitted to complete calls over K")
    title = f"Timeline of a walk: V = {_VOCAB:,}, B = 1, T = 0"
    return title_figure(figure, title, source_line(cold) + _without("wts_streaming", cold))


def slopes(results: Results) -> Any | None:
    """Fusion versus residency: complete calls over K, with their least-squares slopes.

    Returns:
        The figure; None without walks of two lengths or more.
    """
    cold = _cold(results)
    cases = [
        (case, paths)
        for case, paths in times(cold).items()
        if case.vocab == _VOCAB and case.batch in (1, 8) and "wts" in fits(paths)
    ]
    if not cases:
        return None
    figure = new_figure(4.2 * len(cases), 4.6)
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for panel, (case, paths) in zip(panels, cases, strict=True):
        lines = fits(paths)
        for path in (path for path in ORDER if path in lines):
            fit, by_steps = lines[path], paths[path]
            ends = [0, max(by_steps)]
            panel.plot(list(by_steps), list(by_steps.values()), "o", color=COLOURS[path])
            panel.plot(
                ends,
                [fit.entry_us + fit.step_us * end for end in ends],
                color=COLOURS[path],
                label=f"{TITLES[path]}: {fit.step_us:.2f} us a step",
            )
        panel.set_title(f"B = {case.batch}, T = {case.temperature:g}", fontsize=9)
        panel.set_xlabel("K, steps")
        panel.set_xticks(sorted(paths["wts"]))
        panel.set_ylim(bottom=0)
        panel.set_xlim(left=0)
        panel.legend(fontsize=7, loc="upper left")
    panels[0].set_ylabel("complete call, us")
    title = f"Fusion versus residency: V = {_VOCAB:,}"
    return title_figure(figure, title, source_line(cold) + _without("wts_streaming", cold))


def grid(results: Results) -> Any | None:
    """Calls over batch, K and vocabulary, and how much faster than the fastest step-wise path.

    Returns:
        The figure; None without walks and step-wise calls of the same points.
    """
    cold = _cold(results)
    every = {
        case: paths
        for case, paths in times(cold).items()
        if any(stepwise(paths, steps) is not None for steps in paths.get("wts", {}))
    }
    if not every:
        return None
    columns = sorted({(case.vocab, case.temperature) for case in every})
    batches = sorted({case.batch for case in every})
    lengths = sorted({steps for paths in every.values() for steps in paths["wts"]})
    figure = new_figure(3.5 * len(columns) + 0.5, 6.6)
    rows = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    rivals = False
    for place, (vocab, temperature) in enumerate(columns):
        above, below = rows[0][place], rows[1][place]
        column = [
            (case.batch, paths)
            for case, paths in every.items()
            if (case.vocab, case.temperature) == (vocab, temperature)
        ]
        for order, steps in enumerate(lengths):
            drawn = _draw_length(above, below, column, batches, steps, colour=f"C{order}")
            if drawn and (rival := _rival(results.gpu, vocab, temperature, steps, batches)):
                rivals = True
                above.plot(*zip(*rival, strict=True), "x:", color=f"C{order}", linewidth=0.8)
        above.set_title(f"V = {vocab:,}, T = {temperature:g}", fontsize=9)
        above.set_yscale("log")
        below.set_yscale("log")
        below.axhline(1, color="black", linewidth=0.8)
        ticks = (0.5, 1, 2, 4, 8)
        below.set_yticks(ticks, [f"{tick:g} x" for tick in ticks])
        below.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        below.set_xlabel("B, requests")
    rows[0][0].set_ylabel("complete call, us")
    rows[1][0].set_ylabel("over the fastest step-wise path")
    if rivals:
        rows[0][0].plot([], [], "x:", color="grey", label=RIVAL_TITLE)
    rows[0][0].set_ylim(top=8 * rows[0][0].get_ylim()[1])
    rows[0][0].legend(fontsize=5.5, ncols=2, loc="upper left")
    rows[1][0].legend(fontsize=7)
    title = "Complete calls across batch, K, vocabulary and temperature; below 1 x a walk loses"
    return title_figure(figure, title, source_line(cold))


def _draw_length(
    above: Any,
    below: Any,
    column: Sequence[tuple[int, Mapping[str, Mapping[int, float]]]],
    batches: Sequence[int],
    steps: int,
    *,
    colour: str,
) -> bool:
    """Walks of one length over the batch, and how much faster they are than the step-wise ones.

    Args:
        above: panel of times.
        below: panel of ratios.
        column: batch, and times by path and K.
        batches: of the whole figure, in their order.
        steps: K.
        colour: of this length.

    Returns:
        Whether there are any.
    """
    found = [
        (batches.index(batch), paths["wts"][steps], base)
        for batch, paths in column
        if steps in paths["wts"] and (base := stepwise(paths, steps)) is not None
    ]
    if not found:
        return False
    at, ours, base_us = zip(*found, strict=True)
    above.plot(at, ours, "o-", color=colour, label=f"one walk, K = {steps}", markersize=4)
    above.plot(at, base_us, "--", color=colour, label=f"step-wise, K = {steps}")
    ratios = [base / us for _, us, base in found]
    below.plot(at, ratios, "o-", color=colour, label=f"K = {steps}", markersize=4)
    return True


def _rival(
    gpu: str, vocab: int, temperature: float, steps: int, batches: Sequence[int]
) -> list[tuple[int, float]]:
    """Place of the batch and us of the other kernel's calls of one length."""
    return [
        (batches.index(point.batch), point.us)
        for point in RIVAL
        if (point.vocab, point.temperature, point.steps) == (vocab, temperature, steps)
        and point.batch in batches
        and gpu == point.gpu
    ]
