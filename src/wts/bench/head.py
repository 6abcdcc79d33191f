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
import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wts.bench.arguments import names, numbers, size
from wts.bench.cases import (
    DEFAULT_HIDDEN_SIZE,
    DEFAULT_STATE_SIZE,
    HeadCase,
    grid_cases,
    product_cases,
)
from wts.bench.head_run import HeadBench
from wts.bench.head_table import PATHS, Measured, record_of, table
from wts.dtypes import WEIGHT_TYPES
from wts.errors import DeviceError, WalkError
from wts.heads.kinds import HEAD_KINDS
from wts.progress import sayer

if TYPE_CHECKING:
    from wts.bench.baselines import Sglang
    from wts.bench.clock import Cache

__all__ = ["configure", "main", "run"]

# Timed only where they are named: nobody would walk like the first, and the second is another walk.
_ASKED_FOR = ("wts_streaming", "wts_exact")
_DEVICE = "cuda"
_CACHES = ("cold", "cold_read", "warm")
_ROUNDS = 60
_QUICK_ROUNDS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench head` to a parser."""
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


def _choose_paths(
    wanted: tuple[str, ...] | None, say: Callable[[str], None]
) -> tuple[tuple[str, ...], Sglang | None]:
    """The paths to time, and SGLang if one of them needs it.

    Raises:
        DeviceError: SGLang was asked for by name and cannot be had.
    """
    from wts.bench.baselines import load_sglang

    paths = tuple(path for path in PATHS if path not in _ASKED_FOR) if wanted is None else wanted
    if not any(path.startswith("sglang") for path in paths):
        return paths, None
    say("importing SGLang")
    try:
        return paths, load_sglang()
    except DeviceError as error:
        if wanted is not None:
            raise
        say(f"paths sglang and sglang_greedy are left out. {error}")
        return tuple(path for path in paths if not path.startswith("sglang")), None


def run(args: argparse.Namespace) -> int:
    """Measure what the parsed options ask for.

    Returns:
        0; 1 if a case or a baseline failed its gate or could not run; 2 if nothing can be measured.
    """
    say = sayer()

    cases = cases_of(args)
    if not cases:
        print("wts bench head: no point of the grid is left by these options", file=sys.stderr)
        return 2
    try:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError.mismatch(
                "gpu",
                wanted="an NVIDIA GPU that torch can use",
                found=f"none (torch {torch.__version__})",
                fix="run the benchmark on a machine with one; `wts doctor` says what is missing",
            )
        paths, library = _choose_paths(args.paths, say)
        # Each capture collects garbage; what the imports above left need not be searched each time.
        gc.freeze()
        from wts.bench import record
        from wts.bench.gate import WalkFault

        environment = record.capture_environment(described=args.commit)
        bench = HeadBench(
            paths=paths,
            caches=caches_of(args),
            rounds=rounds_of(args),
            whole_gate=args.gate == "whole",
            seed=args.seed,
            library=library,
            device=_DEVICE,
            trace_parts=args.parts,
            weights=args.weights,
        )
    except WalkError as error:
        print(f"wts bench head: {error}", file=sys.stderr)
        return 2
    run_id = record.new_run_id()
    say(f"run {run_id} on {environment.gpu}: {len(cases)} cases, paths {', '.join(paths)}")
    rows: list[Measured] = []
    failed: list[str] = []
    for number, case in enumerate(cases, start=1):
        name = f"{number}/{len(cases)} {case}"
        say(name)
        try:
            measured, faults = bench.measure(case, say)
        except Exception as error:
            # The cases measured so far are kept, whatever happens to this one.
            if not isinstance(error, (WalkError, WalkFault)):
                traceback.print_exc()
            measured, faults = [], [f"not timed: {type(error).__name__}: {error}"]
        for fault in faults:
            failed.append(f"{case}, {fault}")
            say(f"FAILED {fault}")
        for row in measured:
            if args.out is not None:
                record.append(args.out, record_of(row, run_id=run_id, environment=environment))
        rows += measured
    if rows:
        print(table(rows, gpu=environment.gpu))
    if bench.parts:
        from wts.bench.parts import parts_text

        print(f"\n{parts_text(bench.parts)}")
    for text in failed:
        print(f"FAILED {text}")
    if args.out is None:
        say("no record was written; pass --out DIR to keep this run")
    say(f"done, {len(rows)} points, {len(failed)} failures")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="wts bench head", description=__doc__)
    configure(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
