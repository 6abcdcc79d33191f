"""The committed walks of Markov heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from wts.bench.record import read
from wts.bench.report.predicted import Predicted, predictions

RECORDS = Path(__file__).parents[3] / "benchmarks" / "results" / "h200" / "head.jsonl"


@pytest.fixture(scope="module")
def points() -> list[Predicted]:
    return predictions(read(RECORDS))
