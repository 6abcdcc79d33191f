"""Gains are of what was measured side by side."""

from __future__ import annotations

from typing import Any

import pytest

from wts.bench import record
from wts.bench.serving import table
from wts.errors import InputError


def serving_line(**changes: Any) -> record.Record:
    fields: dict[str, Any] = {
        "run_id": "one",
        "time": "2026-01-01T00:00:00Z",
        "bench": "serving",
        "path": "sglang",
        "T": 0.0,
        "concurrency": 1,
        "repeat": 0,
        "round_us": 6500.0,
        "tokens_per_s": 900.0,
        "accepted_length": 6.0,
    }
    return fields | changes


def headline() -> record.Record:
    names = ("model", "draft", "accept", "gpu", "sglang", "torch", "commit")
    return {name: name for name in names}


class TestTable:
    def test_gains_are_of_medians_and_range_over_starts(self) -> None:
        lines = [
            serving_line(path=path, repeat=repeat, round_us=us)
            for path, times in (("sglang", (6600, 6500, 6400)), ("wts", (6000, 6100, 6400)))
            for repeat, us in enumerate(times)
        ]
        base, ours = table.rows(lines)
        assert (base.path, base.gain, base.num_starts) == ("sglang", None, 3)
        assert ours.gain == pytest.approx(6500 / 6100 - 1)
        assert ours.gain_low == pytest.approx(0.0)
        assert ours.gain_high == pytest.approx(0.1)

    def test_gains_are_medians_of_what_was_measured_side_by_side(self) -> None:
        # A machine that gets slower, and starts that differ: no two times are the same.
        slower = (1.0, 1.1, 1.2, 1.0)
        shares = {0: (1.05, 1.06, 1.07, 1.08), 1: (1.02, 1.03, 1.04)}
        lines = [
            serving_line(path=path, repeat=start, n=1, round_us=6000.0 * slow * share)
            for path in ("sglang", "wts")
            for start in shares
            for slow, share in zip(
                slower, shares[start] if path == "sglang" else (1.0,) * 4, strict=False
            )
        ]
        _, ours = table.rows(lines)  # the eighth of wts has nobody beside it
        assert (ours.num_starts, ours.num_times) == (2, 8)
        assert ours.gain == pytest.approx(0.05)
        assert (ours.gain_low, ours.gain_high) == (pytest.approx(0.02), pytest.approx(0.08))
        assert "+5.0%" in table.table([{**headline(), **line} for line in lines])

    def test_gains_of_records_that_hold_a_start_each_are_ratios_of_medians(self) -> None:
        lines = [
            serving_line(path=path, repeat=repeat, n=3, round_us=us)
            for path, times in (("sglang", (6000, 6600)), ("wts", (5800, 6200)))
            for repeat, us in enumerate(times)
        ]
        _, ours = table.rows(lines)
        assert ours.gain == pytest.approx(0.05)  # the median over pairs is 0.0495

    def test_nothing_is_gained_over_what_was_not_measured(self) -> None:
        (row,) = table.rows([serving_line(path="wts")])
        assert (row.gain, row.gain_low) == (None, None)

    def test_runs_stay_apart(self) -> None:
        lines = [serving_line(), serving_line(run_id="two"), serving_line(path="wts")]
        assert table.runs(lines) == [[lines[0], lines[2]], [lines[1]]]
        with pytest.raises(InputError, match="bench serving"):
            table.runs([serving_line(bench="head")])
