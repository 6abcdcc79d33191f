"""`wts bench head`: how long a head takes to walk a block, beside the step-wise paths.

For every case (head, V, r, B, T) the device's tokens are first compared with the emulator's. Then
all paths and lengths are captured in CUDA graphs and replayed in turns, once per cache policy.

Beside a head that reads hidden states stands its probe: the walk of a Markov head of the same
projection whose latent never changes, so the difference is what latents and states cost. SGLang's
Domino rollout begins with the product of hidden states and lm_head, which our walk is given: it
is timed alone in the same run and subtracted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wts.bench.head.cases import (
    DEFAULT_HIDDEN_SIZE,
    DEFAULT_STATE_SIZE,
    PATHS,
    HeadCase,
    grid_cases,
    product_cases,
)
from wts.cli.options import names, numbers, size
from wts.dtypes import WEIGHT_TYPES
from wts.errors import WalkError
from wts.heads.kinds import HEAD_KINDS
from wts.progress import progress_printer

if TYPE_CHECKING:
    from wts.bench.clock import Cache
    from wts.bench.head.run import Options

__all__ = ["caches_of", "cases_of", "configure", "main", "options_of", "rounds_of", "run"]

_CACHES = ("cold", "cold_read", "warm")
_ROUNDS = 60
_QUICK_ROUNDS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench head` to a parser."""
    _add_points(parser)
    _add_measuring(parser)


def _add_points(parser: argparse.ArgumentParser) -> None:
    """What is measured: heads, sizes, lengths, paths."""
    integers = numbers(int, 1)
    add = parser.add_argument
    add("--grid", action="store_true", help="all points that have a goal; other options filter")
    add(
        "--head",
        type=names(HEAD_KINDS),
        default=("markov",),
        metavar="HEAD,..",
        help=f"some of {', '.join(HEAD_KINDS)}; default markov",
    )
    add(
        "--hidden-size",
        type=size,
        default=DEFAULT_HIDDEN_SIZE,
        metavar="H",
        help=f"of heads that read hidden states, default {DEFAULT_HIDDEN_SIZE}",
    )
    add(
        "--state-size",
        type=size,
        default=DEFAULT_STATE_SIZE,
        metavar="G",
        help=f"of Domino heads, a multiple of 32, default {DEFAULT_STATE_SIZE}",
    )
    add("--vocab", type=integers, metavar="V,..", help="default 151936")
    add("--rank", type=integers, metavar="R,..", help="default 256")
    add("--batch", type=integers, metavar="B,..", help="default 1,4")
    add("--steps", type=integers, metavar="K,..", help="default 1,7,16")
    add("--temperature", type=numbers(float, 0), metavar="T,..", help="default 0")
    add("--cache", type=names(_CACHES), metavar="C,..", help="default cold,warm; grid: cold")
    add(
        "--paths",
        type=names(PATHS),
        metavar="P,..",
        help="default: all that this machine has, without wts_streaming, a walk with nothing "
        "resident, and wts_exact, whose tokens are the unquantised head's",
    )
    add(
        "--weights",
        choices=WEIGHT_TYPES,
        default="int8",
        help="what our walks keep of the projection, default int8; those of bf16 are compared "
        "wherever sums in any order give one token",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    """How it is measured, and what is kept."""
    add = parser.add_argument
    add("--rounds", type=int, metavar="N", help=f"samples per point, default {_ROUNDS}")
    add("--quick", action="store_true", help=f"{_QUICK_ROUNDS} samples, L2 cold only")
    add(
        "--gate",
        choices=("short", "whole"),
        default="short",
        help="steps compared with the emulator before timing: the first few and some whole rows of "
        "large batches (short), or all of all rows (whole, slow); there is no way to compare none",
    )
    add("--seed", type=int, default=0, help="of weights and inputs")
    add(
        "--parts",
        action="store_true",
        help="also say where a step's time goes, from a traced build of the kernel (not recorded)",
    )
    add("--out", type=Path, metavar="DIR", help="append records to DIR/<gpu>/head.jsonl")
    add(
        "--commit",
        metavar="NAME",
        help="commit to record where the sources have no repository: the output of "
        "`git describe --always --dirty --abbrev=40`",
    )


def cases_of(args: argparse.Namespace) -> tuple[HeadCase, ...]:
    """The cases that the options ask for."""
    if args.grid:
        return grid_cases(
            heads=args.head,
            hidden_size=args.hidden_size,
            state_size=args.state_size,
            vocabs=args.vocab,
            batches=args.batch,
            temperatures=args.temperature,
            steps=args.steps,
        )
    return product_cases(
        heads=args.head,
        hidden_size=args.hidden_size,
        state_size=args.state_size,
        vocabs=args.vocab or (151_936,),
        ranks=args.rank or (256,),
        batches=args.batch or (1, 4),
        temperatures=args.temperature or (0.0,),
        steps=args.steps or (1, 7, 16),
    )


def caches_of(args: argparse.Namespace) -> tuple[Cache, ...]:
    """The cache policies that the options ask for."""
    if args.cache is not None:
        chosen: tuple[Cache, ...] = args.cache
        return chosen
    return ("cold",) if args.grid or args.quick else ("cold", "warm")


def rounds_of(args: argparse.Namespace) -> int:
    """Samples per point."""
    if args.rounds is not None:
        return int(args.rounds)
    return _QUICK_ROUNDS if args.quick else _ROUNDS


def options_of(args: argparse.Namespace) -> Options:
    """What the parsed options ask for."""
    from wts.bench.head.run import Options

    return Options(
        cases=cases_of(args),
        paths=args.paths,
        caches=caches_of(args),
        rounds=rounds_of(args),
        whole=args.gate == "whole",
        trace=args.parts,
        weights=args.weights,
        seed=args.seed,
        out=args.out,
        commit=args.commit,
    )


def run(args: argparse.Namespace) -> int:
    """Measure what the parsed options ask for.

    Returns:
        0; 1 if a case or a baseline failed its comparison or could not run; 2 if nothing can be
        measured.
    """
    say = progress_printer()
    if not cases_of(args):
        print("wts bench head: no point of the grid is left by these options", file=sys.stderr)
        return 2

    from wts.bench.head.run import Run

    try:
        measuring = Run(options_of(args), say)
    except WalkError as error:
        print(f"wts bench head: {error}", file=sys.stderr)
        return 2
    return measuring.measure()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="wts bench head", description=__doc__)
    configure(parser)
    return run(parser.parse_args(argv))
