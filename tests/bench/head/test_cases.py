"""The points of the head benchmark: every goal is among them."""

from __future__ import annotations

from wts.bench.head.cases import GOALS, HeadCase, grid_cases, product_cases


def test_the_grid_covers_every_goal() -> None:
    cases = grid_cases()
    points = {case.point(steps) for case in cases for steps in case.steps}
    assert set(GOALS) <= points
    assert all(len(case.steps) >= 2 for case in cases), "a slope needs two lengths"
    keys = {(case.head, case.vocab, case.batch, case.temperature) for case in cases}
    assert len(keys) == len(cases)


def test_product_cases_put_the_largest_batch_first() -> None:
    cases = product_cases(
        vocabs=(10,), ranks=(64,), batches=(1, 4, 2), temperatures=(1.0, 0.0), steps=(3, 1)
    )
    assert [(case.temperature, case.batch) for case in cases] == [
        (0.0, 4),
        (0.0, 2),
        (0.0, 1),
        (1.0, 4),
        (1.0, 2),
        (1.0, 1),
    ]
    assert str(cases[0]) == "V=10 r=64 B=4 K=1,3 T=0"
    assert isinstance(cases[0], HeadCase)
