"""The cases from public bug reports, on the device: the tests of test_cases.py, word for word."""

from __future__ import annotations

import inspect

import pytest

import test_cases
from wts.walk import Backend


@pytest.fixture(scope="session")
def backend() -> Backend:
    return "device"


# Every test that takes a backend is a test of this module, too.
globals().update(
    {
        name: test
        for name, test in vars(test_cases).items()
        if name.startswith("test_") and "backend" in inspect.signature(test).parameters
    }
)
