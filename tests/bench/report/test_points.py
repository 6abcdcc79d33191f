"""Records become times over K, of one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report.results import record
from wts.bench.report.points import latest, load, stepwise, times
from wts.errors import InputError


class TestPoints:
    def test_only_the_latest_run_counts(self) -> None:
        old = record(1.0, run_id="old", time="2026-01-01T00:00:00Z")
        new = record(2.0, run_id="new", time="2026-01-02T00:00:00Z")
        warm = record(3.0, run_id="warm", time="2026-01-03T00:00:00Z", cache="warm")
        assert latest([new, old, warm], lambda r: r["cache"] == "cold") == [new]
        assert latest([warm], lambda r: r["cache"] == "cold") == []

    def test_the_fastest_step_wise_path_counts(self) -> None:
        paths = times([record(9.0, path="sglang"), record(7.0, path="step_torch"), record(1.0)])
        (by_path,) = paths.values()
        assert stepwise(by_path, 1) == 7.0
        assert stepwise(by_path, 2) is None

    def test_a_folder_without_records_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"head\.jsonl"):
            load(tmp_path)

    def test_digest_follows_the_records(self, tmp_path: Path) -> None:
        for name, us in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "head.jsonl").write_text(json.dumps(record(us)) + "\n")
        a, b, c = (load(tmp_path / name).digest for name in "abc")
        assert a == c != b
