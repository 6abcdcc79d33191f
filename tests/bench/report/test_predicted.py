"""Predictions stay near the committed measurements."""

from __future__ import annotations

from wts.bench.report.predicted import Predicted, mean_error


def test_stays_near_the_committed_measurements(points: list[Predicted]) -> None:
    assert len(points) >= 72
    assert mean_error(points) < 0.06
    assert max(abs(point.error()) for point in points) < 0.25


def test_the_largest_walk_of_the_case_makes_the_plan(points: list[Predicted]) -> None:
    assert {point.plan.request.steps for point in points} == {16}
    assert {point.plan.request.batch for point in points} == {point.batch for point in points}
