"""Figures of reports: `python -m lab.draw FOLDER`, for every report below it.

Trainings may run where there is no matplotlib; the reports are JSON, and this draws them later.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wts.errors import InputError
from wts.fidelity.draw import draw_fidelity
from wts.figure import new_figure

__all__ = ["draw_acceptance", "draw_below"]


def draw_acceptance(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw differences of accepted lengths with their intervals, a panel for each drafter.

    Args:
        results: comparisons of each drafter, as `lab.acceptance.compare` gives them.
        path: of the picture.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure = new_figure(3.2 * len(results) + 1, 3.6)
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for panel, (name, runs) in zip(panels, results.items(), strict=True):
        labels = list(runs[0]["domains"])
        for number, run in enumerate(runs):
            found = [run["domains"][label] for label in labels]
            middle = np.array([one["difference"] for one in found])
            # A percentile interval may leave the estimate out; a bar cannot be negative.
            below = np.maximum(middle - [one["low"] for one in found], 0)
            above = np.maximum([one["high"] for one in found] - middle, 0)
            place = np.arange(len(labels)) + 0.2 * (number - (len(runs) - 1) / 2)
            kind = "greedy" if run["temperature"] == 0 else f"T = {run['temperature']:g}"
            panel.errorbar(middle, place, xerr=[below, above], fmt="o", capsize=3, label=kind)
        panel.axvline(0, color="grey", linewidth=0.8)
        panel.set_yticks(range(len(labels)), labels)
        lengths = runs[0]["domains"]["all"]
        panel.set_title(f"{name} ({lengths['first']:.2f} tokens a round)", fontsize=9)
        panel.set_xlabel("int8 less bf16, tokens a round")
    panels[0].legend()
    figure.savefig(path, dpi=150)


def draw_below(folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Draw every report below a folder, beside it; says so where matplotlib is not installed.

    Returns:
        The figures.
    """
    drawn = []
    for path in sorted(folder.rglob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        picture = path.with_suffix(".png")
        try:
            if isinstance(report, dict) and "drafters" in report:
                draw_acceptance(report["drafters"], picture)
            elif isinstance(report, dict) and {"weights", "steps", "head"} <= report.keys():
                draw_fidelity(report, picture)
            else:
                continue
        except InputError as error:
            say(f"no figures: {error}")
            break
        drawn.append(picture)
    return drawn


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.draw", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    for path in draw_below(args.folder, lambda text: print(text, file=sys.stderr)):
        print(path)


if __name__ == "__main__":
    main()
