"""`wts bench all`: everything that figures need of one GPU, in stages that can be resumed.

DIR/<gpu>/all.json says what a run has finished. Started again with the same commit, versions and
options, the run goes on where it stopped, under the same run_id; a finished or another one begins
anew. A case that fails is named and tried again the next time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from wts.errors import WalkError
from wts.progress import progress_printer

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench all` to a parser."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/bench"),
        metavar="DIR",
        help="append records to DIR/<gpu>, default build/bench",
    )
    parser.add_argument("--quick", action="store_true", help="a few cases, few samples")
    parser.add_argument("--commit", metavar="NAME", help="as of wts bench head")
    parser.add_argument("--run-id", metavar="NAME", help="name of a new run, default by the time")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is not finished yet.

    Returns:
        0; 1 if a case or a path failed; 2 if nothing can be measured.
    """
    parser = argparse.ArgumentParser(prog="wts bench all", description=__doc__)
    configure(parser)
    args = parser.parse_args(argv)
    say = progress_printer()

    from wts.bench.head.every import Options, Run

    options = Options(out=args.out, quick=args.quick, commit=args.commit, run_id=args.run_id)
    try:
        run = Run(options, say)
    except WalkError as error:
        print(f"wts bench all: {error}", file=sys.stderr)
        return 2
    return run.measure()
