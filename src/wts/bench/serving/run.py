"""A run of `wts bench serving`: starts in turns, what they gave in a table, a figure and texts."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from wts.bench import record
from wts.bench.baselines.sglang_steps import SGLANG_VERSION
from wts.bench.clock import check_gpu
from wts.bench.record import Record
from wts.bench.serving import setting, table
from wts.bench.serving.session import ServingRun
from wts.bench.serving.setting import Wanted
from wts.bench.serving.starts import Point
from wts.errors import DeviceError

__all__ = ["Options", "draw", "measure", "turns_of"]

_DEVICE = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for.

    Args:
        wanted: what is served.
        out: root of the results.
        paths: whose heads, in the order of the table.
        starts: of every path.
        start_limit: seconds, of one start.
        time_limit: seconds, of all; no start begins that would not end in time. None: no limit.
        scratch: where random models are kept for later runs; the system's folder by default.
        commit: see `record.source_version`.
    """

    wanted: Wanted
    out: Path
    paths: tuple[str, ...]
    starts: int
    start_limit: int
    time_limit: int | None
    scratch: Path | None
    commit: str | None


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


def measure(options: Options, say: Callable[[str], None]) -> int:
    """Measure what is asked for and not measured yet, and show what there is.

    Args:
        options: what is asked for.
        say: told what is going on.

    Returns:
        0; 1 if a start failed, greedy texts differ or starts are left.

    Raises:
        WalkError: nothing can be run: no GPU, another SGLang, or options that do not fit.
    """
    started = time.monotonic()
    serving = _open(options, say)
    failed, left = _take_turns(serving, options, started, say)
    records = serving.records()
    verdicts = serving.texts()
    failed += [f"texts: {verdict}" for verdict in verdicts if verdict.is_fault]
    if records:
        print(table.table(records))
        print("\n".join(f"texts: {verdict}" for verdict in verdicts))
        _figure(records, serving.folder / "serving.svg", say)
    for text in failed:
        print(f"FAILED {text}")
    if left:
        say(f"{left} starts are left; the same command does them")
    say(f"done, {len(records)} measurements, {len(failed)} failures, logs in {serving.folder}")
    return 1 if failed or left else 0


def _open(options: Options, say: Callable[[str], None]) -> ServingRun:
    """Look at the machine, make what is served, and go on with its run or begin one."""
    check_gpu()
    if (version := record.installed_version("sglang")) != SGLANG_VERSION:
        raise DeviceError.mismatch(
            "sglang",
            wanted=f"SGLang {SGLANG_VERSION}",
            found="none installed" if version is None else f"SGLang {version}",
            fix="put that version on PYTHONPATH",
        )
    scratch = options.scratch or Path(tempfile.gettempdir()) / "wts-serving"
    say(f"models in {scratch}")
    served = setting.make(options.wanted, scratch, device=_DEVICE)
    torch.cuda.empty_cache()  # weights were drawn there; an engine sizes its cache by what is free
    serving = ServingRun.open(
        served,
        environment=record.capture_environment(described=options.commit),
        out=options.out,
        scratch=scratch,
        inherited=os.environ,
        needs_plugin="wts" in options.paths,
    )
    say(f"run {serving.run_id}: {served.model}; {served.draft}; acceptance {served.accept}")
    return serving


_Wanted = list[tuple[str, int, dict[Point, int]]]
"""Of a turn: paths, numbers of their starts, and how often each point is still to be measured."""


def _take_turns(
    serving: ServingRun, options: Options, started: float, say: Callable[[str], None]
) -> tuple[list[str], int]:
    """Start what is missing, as long as there is time; faults, and how many starts are left."""
    wanted = options.wanted
    points = [(c, t) for t in wanted.temperature for c in wanted.concurrency]
    failed: list[str] = []
    left = 0
    expected = 0.0  # how long a turn takes; the first one compiles kernels too
    for turn in turns_of(options.paths, options.starts, together=wanted.together):
        starts: _Wanted = [
            (path, number, missing)
            for number, path in turn
            if (missing := serving.missing(path, number, points))
        ]
        if not starts:
            continue
        limit = float(options.start_limit) * len(starts)
        if options.time_limit is not None:
            limit = min(limit, options.time_limit - (time.monotonic() - started))
        if limit <= expected:
            left += len(starts)
            continue
        begun = time.monotonic()
        failed += _take_turn(serving, starts, limit, say)
        expected = time.monotonic() - begun
    return failed, left


def _take_turn(
    serving: ServingRun, starts: _Wanted, limit_s: float, say: Callable[[str], None]
) -> list[str]:
    """Run the starts of one turn; their faults."""
    for path, number, missing in starts:
        times = sum(missing.values())
        say(f"start {number + 1} of {path}: {len(missing)} points, {times} measurements")
    failed = []
    outcomes = serving.turn(starts, limit_s=limit_s)
    for (path, number, _), outcome in zip(starts, outcomes, strict=True):
        name = f"start {number + 1} of {path}"
        proof = outcome.proof or "nothing proves its path"
        say(f"{name}: {outcome.num_recorded} measurements. {proof}")
        for fault in outcome.faults:
            failed.append(f"{name}: {fault}")
            say(f"FAILED {fault}")
    return failed


def draw(file: Path, say: Callable[[str], None]) -> int:
    """Print and draw every run of a results file.

    Args:
        file: a serving.jsonl; figures go beside it.
        say: told what is going on.

    Returns:
        0.

    Raises:
        InputError: it has no serving records.
    """
    for records in table.runs(record.read(file)):
        print(table.table(records))
        _figure(records, file.with_name(f"{file.stem}-{records[0]['run_id']}.svg"), say)
    return 0


def _figure(records: Sequence[Record], path: Path, say: Callable[[str], None]) -> None:
    try:
        say(f"figure {table.figure(records, path)}")
    except ImportError as error:
        say(f"no figure: {error}; `wts bench serving --draw FILE` draws it elsewhere")
