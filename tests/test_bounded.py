"""A program that hangs is ended in time, with what it started; others are reported as they end."""

from __future__ import annotations

import os
import sys
import time

import pytest

from bounded import run_bounded


def test_status_and_both_outputs_are_given() -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    outcome = run_bounded([sys.executable, "-c", code], seconds=60)
    assert (outcome.status, outcome.output) == (3, "out\nerr\n")
    assert str(outcome).startswith("ended with status 3")


def test_the_package_and_the_helpers_can_be_imported() -> None:
    code = "import wts, bounded, os; print(os.environ['WTS_SAID'])"
    outcome = run_bounded([sys.executable, "-c", code], seconds=60, environment={"WTS_SAID": "yes"})
    assert (outcome.status, outcome.output) == (0, "yes\n")


def test_a_program_that_hangs_is_ended_with_its_children() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    outcome = run_bounded([sys.executable, "-c", code], seconds=5)
    assert outcome.status is None
    assert "ran out of time" in str(outcome)
    child = int(outcome.output)
    for _ in range(100):
        if not is_running(child):
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} was left behind")


def is_running(process: int) -> bool:
    """Whether a process still runs; one that nobody has waited for yet does not."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
