"""All serial heads: complete calls, and what of a step the projection and the latent take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wts.bench.report.points import Results, fits, latest, times
from wts.bench.report.style import COLOURS, TITLES, source_line, title_figure
from wts.figure import new_figure
from wts.heads.kinds import HEAD_KINDS

__all__ = ["heads"]

_PATHS = ("step_torch", "sglang", "wts", "probe")

_Found = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Medians in us by kind of head, path and K."""


def heads(results: Results) -> Any | None:
    """Calls of every kind of head, and a step's parts beside a walk whose latent never changes.

    Returns:
        The figure; None without walks of heads that read hidden states.
    """
    cold = latest(
        results.records["head"],
        lambda r: r["head"] != "markov" and r["cache"] == "cold" and r["r"] == 256 and r["T"] == 0,
    )
    cases = {case: paths for case, paths in times(cold).items() if "wts" in paths}
    if not cases:
        return None
    vocab = max(case.vocab for case in cases)
    batches = sorted({case.batch for case in cases if case.vocab == vocab})
    figure = new_figure(max(9.0, 1.5 + 4.2 * len(batches)), 7.2)
    rows = figure.subplots(2, len(batches), sharey="row", squeeze=False)
    for place, batch in enumerate(batches):
        found = {
            case.head: paths
            for case, paths in cases.items()
            if (case.vocab, case.batch) == (vocab, batch)
        }
        kinds = [kind for kind in HEAD_KINDS if kind in found]
        _draw_calls(rows[0][place], found, kinds)
        rows[0][place].set_title(f"B = {batch}", fontsize=9)
        _draw_steps(rows[1][place], found, kinds)
    rows[0][0].set_ylabel("complete call, us")
    rows[0][0].set_ylim(top=3 * rows[0][0].get_ylim()[1])  # room for the legend
    rows[0][0].legend(fontsize=7, loc="upper left", ncols=2)
    rows[1][0].set_ylabel("us a step, least squares over K")
    title = f"Serial heads that read hidden states: V = {vocab:,}, T = 0"
    return title_figure(figure, title, source_line(cold))


def _draw_calls(panel: Any, found: _Found, kinds: Sequence[str]) -> None:
    """The longest call of each path, a bar each."""
    for order, path in enumerate(_PATHS):
        bars = [
            (kinds.index(kind) + 0.2 * (order - 1.5), by_steps[max(by_steps)])
            for kind in kinds
            if (by_steps := found[kind].get(path))
        ]
        if bars:
            drawn = panel.bar(
                *zip(*bars, strict=True), 0.19, color=COLOURS[path], label=TITLES[path]
            )
            panel.bar_label(drawn, fmt="%.0f", fontsize=7)
    panel.set_yscale("log")
    names = [f"{kind}, K = {max(found[kind]['wts'])}" for kind in kinds]
    panel.set_xticks(range(len(kinds)), names, fontsize=8)


def _draw_steps(panel: Any, found: _Found, kinds: Sequence[str]) -> None:
    """A step of each head: what a latent that never changes leaves, and what the real one adds."""
    labelled = False
    for at, kind in enumerate(kinds):
        lines = fits(found[kind])
        if "wts" not in lines or "probe" not in lines:
            continue
        probe, whole = lines["probe"].step_us, lines["wts"].step_us
        first = (None, None) if labelled else ("projection, judging, exchange", "latent, state")
        labelled = True
        panel.bar(at, probe, 0.6, color=COLOURS["probe"], label=first[0])
        panel.bar(at, whole - probe, 0.6, bottom=probe, color=COLOURS["wts"], label=first[1])
        panel.text(at, whole, f"{whole:.2f} us, {whole / probe:.2f} x", ha="center", va="bottom")
    panel.set_xticks(range(len(kinds)), kinds)
    panel.margins(y=0.1)
    if labelled:
        panel.legend(fontsize=7, loc="upper left")
