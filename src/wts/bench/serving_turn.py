"""Starts of engines, each in a process group of its own; those of a turn get ready side by side.

Most of a start is not measuring: imports, weights, captured graphs. Starts of a turn do that at the
same time, and measure one after another while the others stand idle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Start", "run_turn"]

_WORKER = "wts.bench.serving_worker"
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start that is to be run.

    Args:
        job: its file, which `serving_worker` reads.
        results: the file that it writes; the first line says that it is ready.
        gate: a file that is made when it may measure.
        log: of everything that it prints.
        environment: of its processes.
    """

    job: Path
    results: Path
    gate: Path
    log: Path
    environment: Mapping[str, str]


def run_turn(starts: Sequence[Start], *, limit_s: float) -> list[int | None]:
    """Run starts: all get ready, then they measure in this order; end whatever they started.

    Args:
        starts: of one turn.
        limit_s: after which all of them are ended.

    Returns:
        The exit status of each; None where time ran out.
    """
    deadline = time.monotonic() + limit_s
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for start in starts:
            start.results.unlink(missing_ok=True)
            start.gate.unlink(missing_ok=True)
            processes.append(_begin(start))
        for start, process in zip(starts, processes, strict=True):
            while (
                process.poll() is None
                and not start.results.is_file()
                and time.monotonic() < deadline
            ):
                time.sleep(_LOOK_EVERY_S)
        statuses: list[int | None] = []
        for start in starts:
            start.gate.touch()
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
    files = (str(start.job), str(start.results), str(start.gate))
    with start.log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", _WORKER, *files],
            env=dict(start.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    # Also after an orderly end: what an engine leaves behind would share the GPU with the next.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
