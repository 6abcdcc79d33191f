"""`wts bench table`: the tables of documents, of a results file."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench table` to a parser."""
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a head.jsonl")
    add("--every-point", action="store_true", help="the table of docs/benchmarks.md")


def run(args: argparse.Namespace) -> int:
    """Print the table of each file."""
    from wts.bench.report.summary import render_file

    for path in args.files:
        print(render_file(path, every_point=args.every_point))
    return 0
