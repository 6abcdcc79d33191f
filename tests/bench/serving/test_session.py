"""Of a turn what all measured is kept."""

from __future__ import annotations

from typing import Any

from wts.bench.serving import session
from wts.bench.serving.starts import Point


def lines(*counts: tuple[int, int]) -> list[dict[str, Any]]:
    return [
        {"concurrency": concurrency, "temperature": 0.0, "nth": nth}
        for concurrency, times in counts
        for nth in range(times)
    ]


class TestMeasuredByAll:
    wanted: dict[Point, int] = {(1, 0.0): 4, (2, 0.0): 4}  # noqa: RUF012

    def kept(self, *measured: list[dict[str, Any]], statuses: list[int | None]) -> list[Any]:
        return session._measured_by_all(measured, [self.wanted] * len(measured), statuses)

    def test_of_what_was_cut_short_as_much_as_all_have(self) -> None:
        found = self.kept(lines((1, 4), (2, 3)), lines((1, 4), (2, 2)), statuses=[None, None])
        assert found == [lines((1, 4), (2, 2))] * 2

    def test_a_start_that_fell_out_does_not_count(self) -> None:
        found = self.kept(lines((1, 4), (2, 4)), lines((1, 3)), statuses=[0, 1])
        assert found == [lines((1, 4), (2, 4)), lines((1, 3))]

    def test_a_start_that_wanted_less_does_not_keep_the_others(self) -> None:
        measured = [lines((1, 4)), lines((1, 1))]
        wanted: list[dict[Point, int]] = [{(1, 0.0): 4}, {(1, 0.0): 1}]
        assert session._measured_by_all(measured, wanted, [0, 0]) == measured
