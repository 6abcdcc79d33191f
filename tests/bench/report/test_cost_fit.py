"""A fit finds the constants that made the times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wts.bench.report.cost_fit import fit
from wts.bench.report.predicted import Predicted, mean_error
from wts.kernels.resident.cost import Constants


def test_fit_finds_the_constants_that_made_the_times(points: list[Predicted]) -> None:
    made_with = replace(Constants(), launch_us=5.0, greedy_exchange_cycles=1000.0, hbm_share=0.6)
    made = [replace(p, measured_us=p.predicted_us(made_with)) for p in points]
    assert fit(made).fitted() == pytest.approx(made_with.fitted(), rel=0.01)


def test_committed_constants_are_the_fitted_ones(points: list[Predicted]) -> None:
    # Wide enough for a later run's records; a model that no longer fits shows in the errors above.
    found = fit(points)
    assert mean_error(points) < mean_error(points, found) + 0.02
