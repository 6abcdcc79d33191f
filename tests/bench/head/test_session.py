"""Which paths a case has, what their rows say, and that wrong tokens are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.stand_ins import RECURRENT_SMALL, SMALL, each_kind, stand_in_library
from wts.bench import clock, record
from wts.bench.baselines import sglang_steps
from wts.bench.baselines.inputs import WalkInputs
from wts.bench.baselines.torch_steps import step_torch
from wts.bench.head import theirs
from wts.cli import bench_head
from wts.walk.walker import Walker


@each_kind
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_of_a_head_that_reads_hidden_states(
    kind: Any, temperature: float, emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Records say the head and its sizes; its probe is timed beside it."""
    arguments = [*RECURRENT_SMALL, "--head", kind, "--temperature", str(temperature)]
    paths = ("wts", "probe", "step_torch")
    assert bench_head.main([*arguments, "--paths", ",".join(paths), "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {(line["B"], line["K"], line["path"]) for line in records} == {
        (batch, steps, path) for batch in (1, 2) for steps in (1, 3) for path in paths
    }
    for line in records:
        assert (line["head"], line["H"]) == (kind, 40)
        assert line.get("G") == (32 if kind == "domino" else None)
        assert line["excludes"] == ("lm_head" if kind == "domino" else "")
        assert line.get("excluded_us") == (0.0 if kind == "domino" else None)
        ours = line["path"] in ("wts", "probe")
        assert line["weights"] == ("int8" if ours else "bf16")
        assert bool(line["plan"]) is ours
    plans = {path: {line["plan"] for line in records if line["path"] == path} for path in paths}
    assert not plans["wts"] & plans["probe"]
    out = capsys.readouterr()
    assert out.out.count(" tokens of") == 0
    assert out.err.count("tokens of wts equal the emulator's") == 2
    assert out.err.count("tokens of probe equal the emulator's") == 2


def test_a_run_of_bf16_weights(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*RECURRENT_SMALL, "--head", "markov,gated", "--weights", "bf16"]
    assert bench_head.main([*arguments, "--paths", "wts,step_torch", "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {line["weights"] for line in records} == {"bf16"}
    assert {bool(line["plan"]) for line in records if line["path"] == "wts"} == {True}
    assert capsys.readouterr().err.count("tokens of wts are the only ones allowed") == 4


def test_a_head_may_be_one_of_several(emulated: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = [*RECURRENT_SMALL, "--head", "markov,gated", "--paths", "wts,probe"]
    assert bench_head.main([*arguments, "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {(line["head"], line["path"]) for line in records} == {
        ("markov", "wts"),
        ("gated", "wts"),
        ("gated", "probe"),
    }
    assert all("H" not in line for line in records if line["head"] == "markov")


def test_a_streaming_walk_is_timed_where_it_is_named(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = ("--rank", "256", "--out", str(tmp_path))
    given_ = [*SMALL, *wide, "--head", "markov,gated", "--hidden-size", "40"]
    assert bench_head.main([*given_, "--paths", "wts,wts_streaming"]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    streaming = [line for line in records if line["path"] == "wts_streaming"]
    assert {(line["head"], line["weights"], line["resident_share"]) for line in streaming} == {
        ("markov", "int8", 0.0)
    }
    assert {(line["B"], line["K"]) for line in streaming} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert "tokens of wts_streaming equal the emulator's" in capsys.readouterr().err
    assert "wts_streaming" not in theirs.choose_paths(None, print)[0]


def test_an_exact_walk_says_what_it_decided_by_exact_logits(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given_ = [*SMALL, "--out", str(tmp_path), "--temperature", "0,1"]
    assert bench_head.main([*given_, "--paths", "wts,wts_exact"]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    exact = [line for line in records if line["path"] == "wts_exact"]
    assert {line["T"] for line in exact} == {0.0}
    assert {(line["B"], line["K"]) for line in exact} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert all(0 <= line["rescored_share"] <= 1 <= 1 + line["rescored_rows"] for line in exact)
    assert all("rescored_share" not in line for line in records if line["path"] == "wts")
    said = capsys.readouterr()
    assert "tokens of wts_exact equal the emulator's" in said.err
    assert "of the exact walk's steps" in said.out
    assert "wts_exact" not in theirs.choose_paths(None, print)[0]


def test_a_case_that_no_path_exists_for_has_no_rows(
    emulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def capture(variants: dict[str, Any]) -> dict[str, clock.Captured]:
        raise AssertionError("there is nothing to time")

    emulated.setattr(clock, "capture", capture)
    assert bench_head.main([*SMALL, "--paths", "probe"]) == 0
    assert "done, 0 points" in capsys.readouterr().err


def test_the_lm_head_product_is_subtracted_from_sglang_alone(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def time_replays(
        captured: dict[str, clock.Captured], *, cache: str, control: Any, rounds: int
    ) -> dict[str, clock.Timing]:
        us = {"wts": 50.0, "probe": 30.0, "step_torch": 500.0, "sglang": 700.0, "lm_head": 190.0}
        return {
            name: clock.Timing(name=name, samples_us=(us[name.split("@")[0]],) * 3)
            for name in captured
        }

    def sglang_domino(inputs: WalkInputs, *, library: Any) -> Any:
        return step_torch(inputs)

    emulated.setattr(clock, "time_replays", time_replays)
    emulated.setattr(sglang_steps, "load_sglang", lambda: stand_in_library([]))
    emulated.setattr(sglang_steps, "sglang_domino", sglang_domino)
    arguments = [*RECURRENT_SMALL, "--head", "domino", "--batch", "1", "--steps", "3"]
    assert bench_head.main([*arguments, "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    found = {line["path"]: (line["p50_us"], line["excluded_us"]) for line in records}
    assert found == {
        "wts": (50.0, 0.0),
        "probe": (30.0, 0.0),
        "step_torch": (500.0, 0.0),
        "sglang": (510.0, 190.0),
    }
    assert "190.0 us alone, is subtracted from sglang" in capsys.readouterr().out


@each_kind
def test_a_wrong_token_of_a_head_that_reads_hidden_states_is_caught(
    kind: Any, emulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the emulator is given is the device's own hidden term, and a wrong one is found out."""
    real = Walker.hidden_term

    def wrong(walker: Walker) -> torch.Tensor | None:
        term = real(walker)
        return None if term is None else term + 3

    emulated.setattr(Walker, "hidden_term", wrong)
    assert bench_head.main([*RECURRENT_SMALL, "--head", kind, "--paths", "wts"]) == 1
    assert "WalkFault: tokens" in capsys.readouterr().out
