"""`wts bench all` measures every stage, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from wts.bench import record
from wts.bench.compare import WalkFault
from wts.bench.head import every, ours, placement, theirs
from wts.bench.head.cases import product_cases
from wts.bench.head.session import HeadBench
from wts.cli import bench_all


def small_stages(*, quick: bool) -> tuple[every.Stage, ...]:
    def cases(kind: Any = "markov") -> Any:
        return product_cases(
            heads=(kind,),
            hidden_size=40,
            vocabs=(96,),
            ranks=(256,),
            batches=(1, 2),
            temperatures=(0.0,),
            steps=(1, 3),
        )

    return (
        every.Stage(name="residency", cases=cases(), more_paths=("wts_streaming",)),
        every.Stage(name="heads", cases=cases("gated")),
        every.Stage(name="placement", cases=cases()[:1], placements=(2, 5)),
    )


@pytest.fixture
def all_small(emulated: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def placed(made_of: Any, plan: Any) -> Any:
        walker = ours.Walker(made_of, plan, backend="device")
        return walker, 8 if plan.placement.register_fragments == 5 else 0

    def no_sglang(wanted: Any, say: Any) -> Any:
        return ("wts", "probe", "step_torch"), None

    emulated.setattr(every, "stages", small_stages)
    emulated.setattr(theirs, "choose_paths", no_sglang)
    emulated.setattr(placement, "placed_walker", placed)
    return emulated


def measured_points(folder: Path, bench: str) -> list[tuple[object, ...]]:
    fields = ("head", "path", "B", "K", "run_id")
    lines = record.read(folder / "h200" / f"{bench}.jsonl")
    return [tuple(line[name] for name in fields) for line in lines]


def test_all_measures_every_stage(all_small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert bench_all.main(["--out", str(tmp_path), "--run-id", "one"]) == 0
    points = measured_points(tmp_path, "head")
    assert set(points) == {
        (kind, path, batch, steps, "one")
        for kind, paths in (
            ("markov", ("wts", "wts_streaming", "step_torch")),
            ("gated", ("wts", "probe", "step_torch")),
        )
        for path in paths
        for batch in (1, 2)
        for steps in (1, 3)
    }
    assert len(points) == len(set(points))
    placed = record.read(tmp_path / "h200" / "placement.jsonl")
    found = {(line["register_fragments"], line["K"], line["spill_bytes"]) for line in placed}
    assert found == {(2, 1, 0), (2, 3, 0), (5, 1, 8), (5, 3, 8)}
    assert {line["run_id"] for line in placed} == {"one"}


def test_all_goes_on_where_it_was_stopped(
    all_small: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = HeadBench.measure

    def stopped(self: Any, case: Any, say: Any) -> Any:
        if case.head == "gated":
            raise KeyboardInterrupt
        return real(self, case, say)

    with all_small.context() as patched:
        patched.setattr(HeadBench, "measure", stopped)
        with pytest.raises(KeyboardInterrupt):
            bench_all.main(["--out", str(tmp_path), "--run-id", "one"])
    before = measured_points(tmp_path, "head")
    assert {point[0] for point in before} == {"markov"}
    assert bench_all.main(["--out", str(tmp_path), "--run-id", "two"]) == 0
    after = measured_points(tmp_path, "head")
    assert after[: len(before)] == before
    assert {point[0] for point in after[len(before) :]} == {"gated"}
    assert {point[-1] for point in after} == {"one"}
    assert "run one: 3 of 5 cases to measure" in capsys.readouterr().err
    # What is complete is not gone on with.
    assert bench_all.main(["--out", str(tmp_path), "--run-id", "three"]) == 0
    assert "run three: 5 of 5 cases" in capsys.readouterr().err


def test_all_begins_anew_where_something_else_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "h200" / "all.json"
    first = every.Progress(path, {"commit": "a"}, "one")
    first.keep("grid: x", complete=False)
    same = every.Progress(path, {"commit": "a"}, "two")
    assert (same.run_id, same.finished) == ("one", {"grid: x"})
    other = every.Progress(path, {"commit": "b"}, "two")
    assert (other.run_id, other.finished) == ("two", set())
    path.write_text("{ torn")
    assert every.Progress(path, {"commit": "a"}, "two").run_id == "two"


def test_all_keeps_what_a_failing_case_leaves_and_tries_it_again(
    all_small: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = HeadBench.measure

    def failing(self: Any, case: Any, say: Any) -> Any:
        if (case.head, case.batch) == ("gated", 2):
            raise WalkFault("tokens differ")
        return real(self, case, say)

    with all_small.context() as patched:
        patched.setattr(HeadBench, "measure", failing)
        assert bench_all.main(["--out", str(tmp_path), "--run-id", "one"]) == 1
    out = capsys.readouterr()
    assert "FAILED heads: gated" in out.out
    assert "tokens differ" in out.out
    assert " min left" in out.err
    assert bench_all.main(["--out", str(tmp_path)]) == 0
    assert "run one: 1 of 5 cases to measure" in capsys.readouterr().err


def test_all_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_all.main(["--out", str(tmp_path)]) == 2
    assert "wanted an NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize("quick", [False, True])
def test_stages_hold_what_the_figures_need(quick: bool) -> None:
    found = every.stages(quick=quick)
    names = [f"{stage.name}: {case}" for stage in found for case in stage.cases]
    assert len(names) == len(set(names))
    (residency,) = [stage for stage in found if stage.name == "residency"]
    assert residency.more_paths == ("wts_streaming",)
    assert (151_936, 1, 0.0) in {(c.vocab, c.batch, c.temperature) for c in residency.cases}
    kinds = {case.head for stage in found for case in stage.cases}
    assert kinds == ({"markov"} if quick else {"markov", "gated", "rnn", "domino"})
    assert all(len(case.steps) > 1 for stage in found for case in stage.cases)
    assert len(names) <= 3 if quick else len(names) >= 30
