"""Settings shared by all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import wts
from simulator import BUILDS

# Workers side by side, each with torch threads on all cores, are three times slower than with one.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Tests never time: a slow machine is not a failure.
settings.register_profile("wts", deadline=None, max_examples=50)
settings.load_profile("wts")


def pytest_configure(config: pytest.Config) -> None:
    """One folder for the kernels that a run compiles for the CPU: its workers inherit it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="wts-simulator-")
        os.environ[BUILDS] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture
def run_python() -> Callable[[str], int]:
    """Run code in a fresh interpreter that can import the package; gives its exit status."""

    def run(code: str) -> int:
        environment = os.environ | {"PYTHONPATH": str(Path(wts.__file__).parents[1])}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=False).returncode

    return run
