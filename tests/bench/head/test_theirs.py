"""A step-wise path that fails, or computes something else, costs only itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.stand_ins import SMALL
from wts.bench import record
from wts.bench.baselines import sglang_steps, torch_steps
from wts.bench.baselines.inputs import WalkInputs
from wts.cli import bench_head


def test_a_baseline_that_computes_something_else_is_not_timed(
    no_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def zeros(inputs: WalkInputs) -> Any:
        return lambda: torch.zeros(inputs.batch, inputs.steps, dtype=torch.int64)

    no_gpu.setattr(torch_steps, "step_torch", zeros)
    assert bench_head.main([*SMALL, "--paths", "wts,step_torch"]) == 1
    assert "computes something else" in capsys.readouterr().out


def test_a_baseline_that_raises_does_not_cost_our_times(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(inputs: WalkInputs) -> Any:
        raise RuntimeError("no compiler")

    no_gpu.setattr(torch_steps, "step_torch", broken)
    arguments = [*SMALL, "--paths", "wts,step_torch", "--out", str(tmp_path)]
    assert bench_head.main(arguments) == 1
    assert "step_torch: RuntimeError: no compiler" in capsys.readouterr().out
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {line["path"] for line in records} == {"wts"}


def test_sglang_left_out_says_why_and_asked_for_by_name_fails(
    no_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu.setattr(sglang_steps, "installed_version", lambda _: None)
    assert bench_head.main([*SMALL]) == 0
    assert "left out. sglang: wanted SGLang 0.5.23" in capsys.readouterr().err
    assert bench_head.main([*SMALL, "--paths", "wts,sglang"]) == 2
    assert "wanted SGLang 0.5.23" in capsys.readouterr().err
