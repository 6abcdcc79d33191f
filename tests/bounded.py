"""Programs that may hang: run beside the tests, and ended when their time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import wts

SOURCE = Path(wts.__file__).parents[1]
TESTS = Path(__file__).parent
_SECONDS_TO_DIE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program ended.

    Args:
        status: its exit status, or None where its time was over.
        output: what it wrote to stdout and stderr.
    """

    status: int | None
    output: str

    def __str__(self) -> str:
        ending = "ran out of time" if self.status is None else f"ended with status {self.status}"
        return f"{ending} after writing:\n{self.output[-6000:]}"


def run_bounded(
    command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a program that can import the package and the helpers of the tests.

    Args:
        command: the program and its arguments.
        seconds: after these it is ended, with all processes that it started.
        environment: what it finds in its environment besides this process's own.
    """
    paths = os.pathsep.join((str(SOURCE), str(TESTS)))
    variables = os.environ | {"PYTHONPATH": paths} | dict(environment or {})
    # Not a pipe: a process left behind would keep it open, and its reader waiting.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # held by the driver: not ours to wait
                    process.wait(_SECONDS_TO_DIE)
        output.seek(0)
        return Outcome(status=status, output=output.read().decode(errors="replace"))
