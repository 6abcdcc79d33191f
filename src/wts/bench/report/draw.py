"""`wts plot`: draw every figure that the records allow, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wts.bench.report.chip import footprint, placement
from wts.bench.report.engine import gains
from wts.bench.report.heads import heads
from wts.bench.report.model import model
from wts.bench.report.points import Results
from wts.bench.report.walks import grid, slopes, timeline
from wts.errors import InputError
from wts.figure import new_figure

__all__ = ["FIGURES", "Drawing", "draw_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure: who draws it, and what it takes."""

    name: str
    draw: Callable[[Results], Any | None]
    needs: str


FIGURES = (
    Drawing(
        name="footprint",
        draw=footprint,
        needs="cold step-wise calls of a Markov head at B = 1, T = 0, of two lengths: head.jsonl",
    ),
    Drawing(
        name="timeline",
        draw=timeline,
        needs="cold calls of V = 151936, B = 1, T = 0, step-wise and walked: head.jsonl",
    ),
    Drawing(
        name="slopes",
        draw=slopes,
        needs="cold walks of V = 151936, B = 1 or 8, of two lengths: head.jsonl",
    ),
    Drawing(
        name="placement",
        draw=placement,
        needs="a placement sweep: wts bench all, placement.jsonl",
    ),
    Drawing(
        name="grid",
        draw=grid,
        needs="cold walks and step-wise calls of the same points: head.jsonl",
    ),
    Drawing(
        name="heads",
        draw=heads,
        needs="cold greedy walks of gated, RNN or Domino heads: wts bench all, head.jsonl",
    ),
    Drawing(
        name="gains",
        draw=gains,
        needs="rounds of a server or accepted lengths: serving.jsonl, acceptance.jsonl",
    ),
    Drawing(
        name="model",
        draw=model,
        needs="cold walks of Markov heads: head.jsonl",
    ),
)
"""All figures, in the order in which documents show them."""


def draw_all(
    results: Results, folder: Path, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> list[Path]:
    """Draw figures, each as SVG and PNG; one whose records are missing is named and left out.

    Args:
        results: what was measured.
        folder: where figures go.
        only: names of figures; all by default.
        say: told what was left out and why.

    Returns:
        The files.

    Raises:
        InputError: an unknown figure, or matplotlib is not installed.
    """
    for name in only:
        if name not in [drawing.name for drawing in FIGURES]:
            raise InputError.mismatch(
                "figures",
                wanted=f"some of {', '.join(drawing.name for drawing in FIGURES)}",
                found=name,
                fix="leave the option out to draw all",
            )
    new_figure(1, 1)  # says what is missing where there is no matplotlib
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    # The same records give the same bytes, so that figures can be committed.
    with matplotlib.rc_context({"svg.hashsalt": "wts", "svg.fonttype": "none"}):
        for drawing in FIGURES:
            if only and drawing.name not in only:
                continue
            figure = drawing.draw(results)
            if figure is None:
                say(f"{drawing.name}: left out, it needs {drawing.needs}")
                continue
            said = f"{drawing.name}, records {results.digest}"
            for suffix, more in (
                ("svg", {"metadata": {"Date": None, "Description": said}}),
                ("png", {"metadata": {"Description": said}, "dpi": 130}),
            ):
                path = folder / f"{drawing.name}.{suffix}"
                figure.savefig(path, **more)
                written.append(path)
    return written
