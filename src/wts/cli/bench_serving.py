"""`wts bench serving`: what a walk gains in a server, and the most that any head could gain there.

`sglang.Engine` is started with SGLang's own head, with this package's plugin and with a head that
proposes a fixed random draw, in turns, each start in a process of its own. A start measures every
concurrency and temperature some times; what is measured is the difference of a long and a short
generation, so prefill does not count. What its log does not prove is no record.

Without `--target` and `--draft` the models are random: real shapes, simulated acceptance, good for
throughput only. With them they are whatever the folders hold, and greedy texts are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from wts.bench.serving.models import DRAFTERS, GEOMETRIES
from wts.bench.serving.paths import PATHS
from wts.cli.options import names, numbers, size
from wts.errors import InputError, WalkError
from wts.progress import progress_printer

if TYPE_CHECKING:
    from wts.bench.serving.run import Options

__all__ = ["configure", "main", "options_of", "paths_of", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench serving` to a parser."""
    _add_served(parser)
    _add_measured(parser)
    _add_limits(parser)


def _add_served(parser: argparse.ArgumentParser) -> None:
    """Where results go, and models and prompts."""
    add = parser.add_argument
    add(
        "--out", type=Path, metavar="DIR", help="records go to DIR/<gpu>/serving.jsonl, logs beside"
    )
    add(
        "--draw",
        type=Path,
        metavar="FILE",
        help="measure nothing: print and draw every run of a results file",
    )
    add("--model", choices=tuple(GEOMETRIES), default="qwen3-4b", help="default qwen3-4b")
    add(
        "--drafter",
        choices=DRAFTERS,
        default="dspark",
        help="default dspark; domino: with --temperature 0 only where there is no flashinfer",
    )
    add("--block", type=size, default=16, metavar="N", help="tokens of a block, default 16")
    add("--rank", type=size, default=256, metavar="R", help="of the drafter's head, default 256")
    add(
        "--accept-length",
        type=float,
        default=6.0,
        metavar="N",
        help="simulated tokens a round of random models, default 6; 0: what the verifier accepts",
    )
    add("--target", type=Path, metavar="DIR", help="a target model, not a random one")
    add("--draft", type=Path, metavar="DIR", help="its drafter")
    add(
        "--accept",
        choices=("checkpoint", "trained"),
        default="checkpoint",
        help="what these are: published checkpoints (default), or trained for this benchmark",
    )
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSON lines: a list of tokens, or an object with tokens, text or prompt",
    )
    add("--prompt-tokens", type=size, default=64, metavar="N", help="of random prompts, default 64")


def _add_measured(parser: argparse.ArgumentParser) -> None:
    """Points, paths, starts and lengths."""
    add = parser.add_argument
    add("--concurrency", type=numbers(int, 1), default=(1, 2, 4, 8, 16, 32), metavar="C,..")
    add("--temperature", type=numbers(float, 0), default=(0.0, 1.0), metavar="T,..")
    add("--paths", type=names(PATHS), metavar="P,..", help="default sglang,wts")
    add("--null-head", action="store_true", help="also the path null_head: the most to be gained")
    add("--starts", type=size, default=3, metavar="N", help="of every path, default 3")
    add(
        "--together",
        action="store_true",
        help="one start of every path gets ready at the same time, and they take turns at every "
        "point: quicker and with less noise, but engines share the GPU's memory",
    )
    add("--repeats", type=size, default=4, metavar="N", help="of a point in a start, default 4")
    add(
        "--tokens",
        type=_lengths,
        default=(61, 577),  # a token of the prefill, then 10 and 96 rounds of 6
        metavar="SHORT,LONG",
        help="lengths of the generations whose difference is measured, default 61,577",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Seed, engine, time, and what is kept."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of weights, prompts and the engine")
    add(
        "--engine",
        type=_engine_argument,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="another argument of sglang.Engine, such as mem_fraction_static=0.6",
    )
    add("--start-limit", type=size, default=600, metavar="S", help="seconds, of one start")
    add(
        "--time-limit",
        type=size,
        metavar="S",
        help="seconds, of this command: no start begins that would not end in time; the same "
        "command again does the rest",
    )
    add("--scratch", type=Path, metavar="DIR", help="where random models are kept for later runs")
    add(
        "--commit",
        metavar="NAME",
        help="commit to record where the sources have no repository: the output of "
        "`git describe --always --dirty --abbrev=40`",
    )


def _lengths(text: str) -> tuple[int, ...]:
    """An argument type: a short and a long length."""
    values = numbers(int, 1)(text)
    if len(values) != 2 or values[0] >= values[1]:
        raise argparse.ArgumentTypeError(f"wanted a short and a long length, got {text!r}")
    return values


def _engine_argument(text: str) -> tuple[str, object]:
    """An argument type: NAME=JSON."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"wanted NAME=JSON, got {text!r}") from None


def paths_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The paths that the options ask for, in the order of the table."""
    wanted = set(args.paths or ("sglang", "wts")) | ({"null_head"} if args.null_head else set())
    return tuple(path for path in PATHS if path in wanted)


def options_of(args: argparse.Namespace) -> Options:
    """What the parsed options ask for.

    Raises:
        InputError: no folder for the results.
    """
    from wts.bench.serving.run import Options
    from wts.bench.serving.setting import Wanted

    if args.out is None:
        raise InputError.mismatch("out", wanted="a folder", found="none", fix="pass --out DIR")
    wanted = {field.name: getattr(args, field.name) for field in fields(Wanted)}
    return Options(
        wanted=Wanted(**wanted | {"engine": tuple(args.engine)}),
        out=args.out,
        paths=paths_of(args),
        starts=args.starts,
        start_limit=args.start_limit,
        time_limit=args.time_limit,
        scratch=args.scratch,
        commit=args.commit,
    )


def run(args: argparse.Namespace) -> int:
    """Measure, or draw, what the parsed options ask for.

    Returns:
        0; 1 if a start failed, greedy texts differ or starts are left; 2 if nothing can be run.
    """
    say = progress_printer()

    from wts.bench.serving.run import draw, measure

    try:
        return draw(args.draw, say) if args.draw is not None else measure(options_of(args), say)
    except WalkError as error:
        print(f"wts bench serving: {error}", file=sys.stderr)
        return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="wts bench serving", description=__doc__)
    configure(parser)
    return run(parser.parse_args(argv))
