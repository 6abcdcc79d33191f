"""Starts of engines, each in a process group of its own; those of a turn run side by side.

Most of a start is not measuring: imports, weights, captured graphs. Starts of a turn do that at the
same time. Then one at a time measures, while the others wait for an order: their engines are idle
and launch nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Order", "Point", "Start", "orders_of", "run_turn"]

Point = tuple[int, float]
"""Concurrency and temperature."""

Order = tuple[int, dict[str, object]]
"""Which start of a turn measures, and what: `worker.measure` has the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start that is to be run.

    Args:
        job: its file, which `worker` reads.
        results: the file that it writes.
        log: of everything that it prints.
        environment: of its processes.
        worker: arguments of Python that run it; the two files follow them.
    """

    job: Path
    results: Path
    log: Path
    environment: Mapping[str, str]
    worker: tuple[str, ...] = ("-m", "wts.bench.serving.worker")


def orders_of(wanted: Sequence[Mapping[Point, int]], *, repeats: int) -> list[Order]:
    """Who measures what when: starts alternate within a point, each time another one first.

    So a drift meets all of them alike, and what they measured side by side can be compared.

    Args:
        wanted: how often every start measures every point.
        repeats: how often it is measured in the end; what is not wanted was measured before.
    """
    orders: list[Order] = []
    num_rounds = 0
    for point in dict.fromkeys(point for start in wanted for point in start):
        concurrency, temperature = point
        places = [place for place, start in enumerate(wanted) if start.get(point)]
        for nth in range(max(wanted[place][point] for place in places)):
            first = num_rounds % len(places)
            num_rounds += 1
            for place in places[first:] + places[:first]:
                if nth < wanted[place][point]:
                    order: dict[str, object] = {
                        "concurrency": concurrency,
                        "temperature": temperature,
                        "repeat": repeats - wanted[place][point] + nth,
                    }
                    orders.append((place, order))
    return orders


def run_turn(
    starts: Sequence[Start], orders: Sequence[Order], *, limit_s: float
) -> list[int | None]:
    """Run starts: all get ready, then one at a time measures; end whatever they started.

    Args:
        starts: of one turn.
        orders: for these starts, in this order; those of one that fell out are left out.
        limit_s: after which all of them are ended.

    Returns:
        The exit status of each; None where time ran out.
    """
    deadline = time.monotonic() + limit_s
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for start in starts:
            start.results.unlink(missing_ok=True)
            processes.append(_begin(start))
        serving = [_has_answered(process, deadline) for process in processes]
        for place, order in orders:
            if serving[place] and time.monotonic() < deadline:
                serving[place] = _carries_out(processes[place], order, deadline)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        statuses: list[int | None] = []
        while processes:
            try:
                statuses.append(processes[0].wait(timeout=max(deadline - time.monotonic(), 0)))
            except subprocess.TimeoutExpired:
                statuses.append(None)
            _end(processes.pop(0))  # once: its number may be another's afterwards
        return statuses
    finally:
        for process in processes:
            _end(process)


def _begin(start: Start) -> subprocess.Popen[bytes]:
    with start.log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *start.worker, str(start.job), str(start.results)],
            env=dict(start.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            bufsize=0,
            start_new_session=True,
        )


def _carries_out(process: subprocess.Popen[bytes], order: object, deadline: float) -> bool:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order).encode() + b"\n")
    return _has_answered(process, deadline)


def _has_answered(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for the answer of a start; there is none if it ends, or time does."""
    assert process.stdout is not None
    left = max(deadline - time.monotonic(), 0)
    readable, _, _ = select.select([process.stdout], [], [], left)
    return bool(readable) and bool(process.stdout.read(1))


def _end(process: subprocess.Popen[bytes]) -> None:
    # Also after an orderly end: what an engine leaves behind would share the GPU with the next.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with process:  # closes its streams
        process.wait()
