"""Figures of a report. Nothing is computed here: every number is one of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wts.figure import new_figure

__all__ = ["draw_fidelity"]

_COLOURS = {"int8": "tab:blue", "e4m3": "tab:orange"}


def draw_fidelity(report: Mapping[str, Any], path: Path) -> Path:
    """Draw a report of `wts fidelity`: weights and levels, row errors, logit errors, flips.

    Args:
        report: what `wts.fidelity.examine` gave, or the same read from JSON.
        path: of the picture; its suffix says the format.

    Returns:
        The path.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure = new_figure(10.5, 7.5)
    panels = figure.subplots(2, 2)
    _draw_magnitudes(panels[0][0], report["weights"])
    _draw_row_errors(panels[0][1], report["weights"])
    if report["steps"]["num_steps"]:
        _draw_share_of_bound(panels[1][0], report["steps"])
        _draw_flips(panels[1][1], report["steps"])
    head, inputs = report["head"], report["inputs"]
    figure.suptitle(
        f"{head['kind']} head, V = {head['vocab']:,}, r = {head['rank']}; {inputs['kind']} inputs"
    )
    figure.savefig(path, dpi=150)
    return path


def _draw_magnitudes(panel: Any, weights: Mapping[str, Any]) -> None:
    edges, counts = weights["magnitudes"]["edges"], weights["magnitudes"]["counts"]
    total = max(sum(counts), 1)
    panel.stairs([count / total for count in counts], edges, fill=True, alpha=0.5, color="grey")
    panel.axvline(weights["crossover"], color="black", linestyle="--", linewidth=1)
    below = weights["share_below_crossover"]
    panel.set_title(f"{below:.0%} of weights have closer levels in E4M3 (left of the line)")
    panel.set_xlabel("magnitude, as a share of the row's largest")
    panel.set_ylabel("share of weights")


def _draw_row_errors(panel: Any, weights: Mapping[str, Any]) -> None:
    for name, quantiles in weights["row_error"].items():
        shares = [float(share) for share in quantiles]
        panel.plot(list(quantiles.values()), shares, "o-", label=name, color=_COLOURS[name])
    closer = weights["share_of_rows_where_int8_is_closer"]
    panel.set_title(f"int8 is the closer one in {closer:.0%} of rows")
    panel.set_xlabel("error of a row, as a share of its weights (rms)")
    panel.set_ylabel("share of rows with less")
    panel.legend()


def _draw_share_of_bound(panel: Any, steps: Mapping[str, Any]) -> None:
    found = steps["logit_error"]
    histogram = found["share_of_bound"]
    total = max(sum(histogram["counts"]), 1)
    shares = [count / total for count in histogram["counts"]]
    panel.stairs(shares, histogram["edges"], fill=True, color=_COLOURS["int8"])
    panel.set_yscale("log")
    panel.set_title(f"largest error of a logit: {found['largest_share_of_bound']:.2f} of its bound")
    panel.set_xlabel("error of a step logit, as a share of its bound")
    panel.set_ylabel("share of logits")


def _draw_flips(panel: Any, steps: Mapping[str, Any]) -> None:
    rows = steps["by_margin"]
    places = range(len(rows))
    total = steps["num_steps"]
    panel.bar(places, [row["steps"] / total for row in rows], color="lightgrey", label="steps")
    for name, colour in _COLOURS.items():
        rates = [row[f"{name}_flips"] / row["steps"] if row["steps"] else None for row in rows]
        known = [
            (place, rate) for place, rate in zip(places, rates, strict=True) if rate is not None
        ]
        panel.plot(*zip(*known, strict=True), "o-", label=f"{name} flips", color=colour)
    panel.set_xticks(list(places), [f"{row['from']:g}" for row in rows], rotation=60, fontsize=7)
    rate = steps["flip_rate"]
    panel.set_title(f"tokens that differ: int8 {rate['int8']:.2%}, E4M3 {rate['e4m3']:.2%}")
    panel.set_xlabel("margin of the best logit over the next, from")
    panel.set_ylabel("share")
    panel.legend()
