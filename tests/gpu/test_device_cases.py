"""The cases from public bug reports, on the device: the tests of test_cases.py, word for word."""

from __future__ import annotations

import inspect

import pytest

import test_cases
from walks import WAYS_OF_A_GPU, Way


@pytest.fixture(scope="session", params=WAYS_OF_A_GPU)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


# Every test that takes a way is a test of this module, too.
globals().update(
    {
        name: test
        for name, test in vars(test_cases).items()
        if name.startswith("test_") and "way" in inspect.signature(test).parameters
    }
)
