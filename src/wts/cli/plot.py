"""`wts plot`: draw what was measured, as SVG and PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

from wts.progress import progress_printer

__all__ = ["configure", "run"]

_RESULTS = Path("benchmarks/results/h200")
_FIGURES = Path("benchmarks/figures")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts plot` to a parser."""
    add = parser.add_argument
    add(
        "--results",
        type=Path,
        default=_RESULTS,
        metavar="DIR",
        help=f"records of one GPU, default {_RESULTS} of this project's clone",
    )
    add("--out", type=Path, metavar="DIR", help=f"default {_FIGURES}/<name of the results folder>")
    add("--figures", metavar="NAME,..", help="some only; a wrong name lists them")


def run(args: argparse.Namespace) -> int:
    """Draw, and print the files that were written."""
    from wts.bench.report.draw import draw_all
    from wts.bench.report.points import load

    results = load(args.results)
    folder = _FIGURES / results.gpu if args.out is None else args.out
    only = () if args.figures is None else tuple(args.figures.split(","))
    say = progress_printer()
    for path in draw_all(results, folder, only=only, say=say):
        print(path)
    return 0
