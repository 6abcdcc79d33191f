"""Settings shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import wts

# Workers side by side, each with torch threads on all cores, are three times slower than with one.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Tests never time: a slow machine is not a failure.
settings.register_profile("wts", deadline=None, max_examples=50)
settings.load_profile("wts")


@pytest.fixture
def run_python() -> Callable[[str], int]:
    """Run code in a fresh interpreter that can import the package; gives its exit status."""

    def run(code: str) -> int:
        environment = os.environ | {"PYTHONPATH": str(Path(wts.__file__).parents[1])}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=False).returncode

    return run
