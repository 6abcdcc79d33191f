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
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wts.bench.arguments import names, numbers, size
from wts.bench.geometry import DRAFTERS, GEOMETRIES
from wts.bench.serving_paths import PATHS
from wts.errors import DeviceError, InputError, WalkError
from wts.progress import sayer

__all__ = ["configure", "main", "run"]

_DEVICE = "cuda"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench serving` to a parser."""
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


def turns_of(
    paths: Sequence[str], starts: int, *, together: bool = False
) -> list[list[tuple[int, str]]]:
    """Who is started when: every other turn backwards, so that a drift favours nobody.

    Args:
        paths: in their order.
        starts: of each.
        together: whether one start of every path gets ready at the same time.

    Returns:
        Turns, each the number of a start and its path: (0, off), (0, on), (1, on), (1, off), ...,
        one each, or all of a number together.
    """
    turns = [
        [(number, path) for path in (paths if number % 2 == 0 else reversed(paths))]
        for number in range(starts)
    ]
    return turns if together else [[start] for turn in turns for start in turn]


def run(args: argparse.Namespace) -> int:
    """Measure what the parsed options ask for.

    Returns:
        0; 1 if a start failed, greedy texts differ or starts are left; 2 if nothing can be run.
    """
    started = time.monotonic()
    say = sayer()

    try:
        return _draw(args.draw, say) if args.draw is not None else _measure(args, started, say)
    except WalkError as error:
        print(f"wts bench serving: {error}", file=sys.stderr)
        return 2


def _measure(args: argparse.Namespace, started: float, say: Callable[[str], None]) -> int:
    import torch

    from wts.bench import record, serving_run, serving_setting, serving_table
    from wts.bench.baselines import SGLANG_VERSION

    if args.out is None:
        raise InputError.mismatch("out", wanted="a folder", found="none", fix="pass --out DIR")
    if not torch.cuda.is_available():
        raise DeviceError.mismatch(
            "gpu",
            wanted="an NVIDIA GPU that torch can use",
            found=f"none (torch {torch.__version__})",
            fix="run the benchmark on a machine with one; `wts doctor` says what is missing",
        )
    if (version := record.installed_version("sglang")) != SGLANG_VERSION:
        raise DeviceError.mismatch(
            "sglang",
            wanted=f"SGLang {SGLANG_VERSION}",
            found="none installed" if version is None else f"SGLang {version}",
            fix="put that version on PYTHONPATH",
        )
    scratch = args.scratch or Path(tempfile.gettempdir()) / "wts-serving"
    say(f"models in {scratch}")
    setting = serving_setting.make(args, scratch, device=_DEVICE)
    torch.cuda.empty_cache()  # weights were drawn there; an engine sizes its cache by what is free
    serving = serving_run.ServingRun.open(
        setting,
        environment=record.capture_environment(described=args.commit),
        out=args.out,
        scratch=scratch,
        inherited=os.environ,
        needs_plugin="wts" in paths_of(args),
    )
    say(f"run {serving.run_id}: {setting.model}; {setting.draft}; acceptance {setting.accept}")
    points = [(c, t) for t in args.temperature for c in args.concurrency]
    failed: list[str] = []
    left = 0
    expected = 0.0  # how long a turn takes; the first one compiles kernels too
    for turn in turns_of(paths_of(args), args.starts, together=args.together):
        wanted = [
            (path, number, missing)
            for number, path in turn
            if (missing := serving.missing(path, number, points))
        ]
        if not wanted:
            continue
        limit = float(args.start_limit) * len(wanted)
        if args.time_limit is not None:
            limit = min(limit, args.time_limit - (time.monotonic() - started))
        if limit <= expected:
            left += len(wanted)
            continue
        for path, number, missing in wanted:
            times = sum(missing.values())
            say(f"start {number + 1} of {path}: {len(missing)} points, {times} measurements")
        begun = time.monotonic()
        outcomes = serving.turn(wanted, limit_s=limit)
        expected = time.monotonic() - begun
        for (path, number, _), outcome in zip(wanted, outcomes, strict=True):
            name = f"start {number + 1} of {path}"
            proof = outcome.proof or "nothing proves its path"
            say(f"{name}: {outcome.num_recorded} measurements. {proof}")
            for fault in outcome.faults:
                failed.append(f"{name}: {fault}")
                say(f"FAILED {fault}")
    records = serving.records()
    verdicts = serving.texts()
    failed += [f"texts: {verdict}" for verdict in verdicts if verdict.is_fault]
    if records:
        print(serving_table.table(records))
        print("\n".join(f"texts: {verdict}" for verdict in verdicts))
        _figure(records, serving.folder / "serving.svg", say)
    for text in failed:
        print(f"FAILED {text}")
    if left:
        say(f"{left} starts are left; the same command does them")
    say(f"done, {len(records)} measurements, {len(failed)} failures, logs in {serving.folder}")
    return 1 if failed or left else 0


def _draw(file: Path, say: Callable[[str], None]) -> int:
    from wts.bench import record, serving_table

    for records in serving_table.runs(record.read(file)):
        print(serving_table.table(records))
        _figure(records, file.with_name(f"{file.stem}-{records[0]['run_id']}.svg"), say)
    return 0


def _figure(records: Sequence[dict[str, object]], path: Path, say: Callable[[str], None]) -> None:
    from wts.bench import serving_table

    try:
        say(f"figure {serving_table.figure(records, path)}")
    except ImportError as error:
        say(f"no figure: {error}; `wts bench serving --draw FILE` draws it elsewhere")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="wts bench serving", description=__doc__)
    configure(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
