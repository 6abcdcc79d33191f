"""gpu/sanitize.py without a GPU: its plans are what they are for, its verdicts can be bad ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bounded import Outcome
from strategies import KINDS, hopper

FILE = Path(__file__).parent / "gpu" / "sanitize.py"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sanitize", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sanitize"] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


sanitize = load()


@pytest.mark.parametrize("case", sanitize.CASES, ids=lambda case: case.name)
def test_plans_are_small_and_what_they_are_for(case: sanitize.Case) -> None:
    head = case.head()
    plan = case.plan(head, hopper(case.blocks))  # refuses another plan
    assert 2 <= plan.shard.num_blocks <= case.blocks <= 4
    base = case.base(head)
    assert not base.isnan().any()
    assert (base.storage_offset() % 2 == 1) == case.odd
    assert base.untyped_storage().nbytes() % 16 == 0 or not case.odd


def test_every_part_of_the_kernel_is_walked() -> None:
    cases = sanitize.CASES
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    for sampled in (False, True):
        assert {case.batch for case in cases if case.sampled == sampled} >= {1, 2, 4, 9}
        assert any(case.streamed for case in cases if case.sampled == sampled)
    assert any(case.draft_vocab is not None for case in cases)
    for kind in KINDS:  # alone and in groups, where the state's words have other places
        assert {case.batch > 4 for case in cases if case.kind is kind} == {False, True}
    whole = [case for case in cases if case.odd and case.vocab % (128 * case.blocks) == 0]
    assert whole, "a last shard without padding is copied in another way"


def test_a_case_refuses_a_plan_of_another_kind() -> None:
    case = sanitize.Case(name="streamed", vocab=1001, streamed=True)
    with pytest.raises(SystemExit, match=r"^streamed: found another plan"):
        case.plan(case.head(), hopper(3))


RIGHT = sanitize.all_right()
FAULT = sanitize.FAULT_STATUS


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("planted_status", "planted_seen", "walks_status", "said", "planted", "walks"),
    [
        (FAULT, True, 0, RIGHT, "seen", "clean"),
        (FAULT, True, FAULT, RIGHT, "seen", "FAULTS"),
        (FAULT, True, 1, "odd rows: found", "seen", "FAILED"),
        (FAULT, True, None, "", "seen", "OUT OF TIME"),
        (FAULT, True, 0, "", "seen", "NOT WALKED"),
        (0, False, 0, RIGHT, "NOT SEEN", "clean"),
        (0, True, 0, RIGHT, "NOT SEEN", "clean"),
        (FAULT, False, 0, RIGHT, "NOT SEEN", "clean"),
    ],
)
def test_a_row_is_good_only_where_the_tool_sees_and_the_walks_are_clean(
    tool: str,
    planted_status: int,
    planted_seen: bool,
    walks_status: int | None,
    said: str,
    planted: str,
    walks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_child(task: str, seconds: float, prefix: list[str]) -> Outcome:
        assert prefix[:3] == ["sanitizer", "--tool", tool]
        if task == f"planted-{tool}":
            words = sanitize.PLANTED[tool].words if planted_seen else "something else"
            return Outcome(status=planted_status, output=words)
        assert task == ("walks-each-lane" if tool == "racecheck" else "walks")
        return Outcome(status=walks_status, output=said)

    monkeypatch.setattr(sanitize, "run_child", run_child)
    row = sanitize.run_tool("sanitizer", tool, 1.0)
    assert (row.planted, row.walks) == (planted, walks)
    assert row.good == ((planted, walks) == ("seen", "clean"))


class TestMain:
    @pytest.fixture(autouse=True)
    def _walks_are_right(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sanitize, "run_child", lambda *_: Outcome(status=0, output=RIGHT))
        monkeypatch.setattr(sanitize, "find_sanitizer", lambda: "sanitizer")

    @pytest.mark.parametrize("bad", [None, *TOOLS])
    def test_the_status_is_that_of_the_worst_row(
        self,
        bad: str | None,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def run_tool(sanitizer: str, tool: str, seconds: float) -> sanitize.Row:
            verdict = "FAULTS" if tool == bad else "clean"
            return sanitize.Row(tool=tool, planted="seen", walks=verdict, good=tool != bad)

        monkeypatch.setattr(sanitize, "run_tool", run_tool)
        assert sanitize.main([]) == (0 if bad is None else 1)
        table = capsys.readouterr().out.splitlines()[-len(TOOLS) :]
        assert sorted(line.split()[0] for line in table) == sorted(TOOLS)

    def test_walks_that_fail_by_themselves_are_told_first(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sanitize, "run_child", lambda *_: Outcome(status=1, output="no GPU"))
        assert sanitize.main([]) == 1
        assert "without any tool: ended with status 1" in capsys.readouterr().err

    def test_a_missing_sanitizer_is_said(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
        assert sanitize.main([]) == 2
        assert capsys.readouterr().err.startswith("compute-sanitizer: wanted on PATH")

    def test_an_unknown_tool_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            sanitize.main(["leakcheck"])
        assert "found leakcheck" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_task_without_a_gpu_ends_in_an_error() -> None:
    outcome = sanitize.run_child("walks", 120, [])
    assert outcome.status == 1
    assert "found none (torch" in outcome.output
