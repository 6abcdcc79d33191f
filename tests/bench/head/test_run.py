"""Runs of `wts bench head`: a record for every point, and what becomes of cases that fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.stand_ins import SMALL, FaultyWalker
from wts.bench import record
from wts.bench.head import ours
from wts.cli import bench_head
from wts.errors import PlanError


def test_a_run_writes_a_record_per_point(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_head.main([*SMALL, "--paths", "wts,step_torch", "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {(line["B"], line["K"], line["path"]) for line in records} == {
        (batch, steps, path)
        for batch in (1, 2)
        for steps in (1, 3)
        for path in ("wts", "step_torch")
    }
    assert len({line["run_id"] for line in records}) == 1
    ours = [line for line in records if line["path"] == "wts"]
    theirs = [line for line in records if line["path"] == "step_torch"]
    assert {(line["plan"], line["weights"], line["resident_share"]) for line in ours} == {
        ("feed", "int8", 1.0)
    }
    assert {(line["plan"], line["weights"], line["resident_share"]) for line in theirs} == {
        ("", "bf16", 0.0)
    }
    assert {line["first_token_agreement"] for line in theirs} == {1.0}
    assert "step_torch / path" in capsys.readouterr().out


def test_the_walker_itself_goes_through_a_run(
    emulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_head.main([*SMALL, "--paths", "wts,step_torch"]) == 0
    assert "100%" in capsys.readouterr().out


def test_a_case_that_fails_its_gate_is_not_timed(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu.setattr(ours, "Walker", FaultyWalker)
    assert bench_head.main([*SMALL, "--paths", "wts", "--out", str(tmp_path)]) == 1
    assert not (tmp_path / "h200").exists()
    assert capsys.readouterr().out.count("FAILED V=96") == 2


def test_a_case_without_a_plan_fails_alone(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan_without(*_args: Any, batch: int, **_kwargs: Any) -> Any:
        if batch == 2:
            raise PlanError("batch: too large")
        return SimpleNamespace(placement=SimpleNamespace(resident_share=0.5), hash="feed")

    no_gpu.setattr(ours, "plan_residency", plan_without)
    assert bench_head.main([*SMALL, "--paths", "wts", "--out", str(tmp_path)]) == 1
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {line["B"] for line in records} == {1}
    assert "PlanError: batch: too large" in capsys.readouterr().out
