"""`wts fidelity` counts what it says: levels, errors of rows, flips that the emulator has too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from drafters import write_drafter
from strategies import KINDS, heads, recurrent_head, silent_head
from walks import walk, walker_of
from wts.cli import main
from wts.errors import WalkError
from wts.fidelity import examine, steps, weights
from wts.fidelity.draw import draw_fidelity
from wts.fidelity.summary import summary
from wts.fidelity.weights import CROSSOVER, quantise_e4m3
from wts.heads.domino import DominoHead
from wts.heads.markov import MarkovHead
from wts.walk.recorded import Inputs, draw_inputs, read_inputs


def of_rows(rows: torch.Tensor, **more: Any) -> MarkovHead:
    """A head of this projection."""
    return MarkovHead(table=torch.ones(max(len(rows), 50), rows.shape[1]), projection=rows, **more)


# ---- weights -----------------------------------------------------------------------------------


def test_levels_are_closer_in_e4m3_below_the_crossover_and_only_there() -> None:
    positive = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert float(positive[-1]) == 448
    steps = positive.diff() / 448
    middles = (positive[1:] + positive[:-1]) / 2 / 448
    closer = steps < 1 / 127
    assert closer.any()
    assert not closer.all()
    assert (closer == (middles < CROSSOVER)).all()


def test_rows_of_e4m3_numbers_stay_as_they_are() -> None:
    numbers = torch.tensor([448.0, -416.0, 2**-9, 1.75, 0.0, 36.0])
    rows = torch.stack([numbers, numbers / 32, torch.zeros(6)])
    torch.testing.assert_close(quantise_e4m3(rows), rows, rtol=1e-7, atol=0)
    # Half-way numbers go to the even one: the scale is 1 here.
    odd = torch.tensor([[448.0, 17.0, 19.0]])
    assert quantise_e4m3(odd).tolist() == [[448.0, 16.0, 20.0]]


def test_magnitudes_and_crests_of_rows_known_by_hand() -> None:
    rows = torch.zeros(3, 64)
    rows[0] = 1.0  # even: all weights are the largest
    rows[1, :32], rows[1, 32:] = 0.05, -1.0  # half of the weights below the crossover
    rows[2, 5] = -3.0  # one weight alone: crest 8
    ids = torch.tensor([7, 40, 9])
    found = examine(of_rows(rows, draft_to_target=ids), draw_inputs(
        of_rows(rows, draft_to_target=ids), requests=1, steps=1, seed=0))["weights"]  # fmt: skip
    counts = found["magnitudes"]["counts"]
    assert counts[-1] == 64 + 32 + 1
    assert counts[0] == 63
    assert counts[2] == 32
    assert sum(counts) == 3 * 64
    assert found["share_below_crossover"] == pytest.approx((32 + 63) / 192)
    assert found["crest"]["1"] == pytest.approx(8.0)
    assert found["crest"]["0"] == pytest.approx(1.0)
    shares = found["share_of_rows_with_crest_above"]
    assert shares == pytest.approx({"6": 1 / 3, "8": 0.0, "12": 0.0})
    assert [row["token"] for row in found["outliers"]] == [9, 40, 7]
    # Row 1: 0.05 is 6.35 levels of int8, 0.35 of one off; half of the weights, in a rms of 0.708.
    wanted = (0.35 / 127) * 0.5**0.5 / ((0.05**2 + 1) / 2) ** 0.5
    assert found["row_error"]["int8"]["1"] == pytest.approx(wanted, rel=1e-3)


def test_small_weights_beside_a_large_one_are_what_e4m3_is_for() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 64, generator=generator)
    even = examine_random(of_rows(rows))["weights"]
    rows = rows.clone()
    rows[:, 0] = 100.0
    spiky = examine_random(of_rows(rows))["weights"]
    assert even["share_of_rows_where_int8_is_closer"] == 1.0
    assert spiky["share_of_rows_where_int8_is_closer"] == 0.0
    assert spiky["share_below_crossover"] > 0.9 > even["share_below_crossover"]
    assert spiky["error"]["int8"] == pytest.approx(100 / 127 / 12**0.5 / 12.54, rel=0.05)


def test_padding_rows_are_left_out() -> None:
    rows = torch.ones(5, 64)
    rows[3:] = 1e6
    rows[3:, 1:] = 0
    found = examine_random(of_rows(rows, logical_vocab=3))["weights"]
    assert sum(found["magnitudes"]["counts"]) == 3 * 64
    assert found["crest"]["1"] == pytest.approx(1.0)


def examine_random(head: Any, requests: int = 3, steps: int = 2) -> dict[str, Any]:
    return examine(head, draw_inputs(head, requests=requests, steps=steps, seed=4))


# ---- steps -------------------------------------------------------------------------------------


@given(head=heads(mapped=False), seed=st.integers(0, 999))
@settings(max_examples=25)
def test_flips_are_those_of_the_emulator(head: MarkovHead, seed: int) -> None:
    inputs = draw_inputs(head, requests=5, steps=1, seed=seed)
    found = examine(head, inputs)["steps"]
    pair = [
        walk(backend, head, inputs.base_logits, inputs.anchor)
        for backend in ("emulator", "reference")
    ]
    assert found["flip_rate"]["int8"] == pytest.approx(float((pair[0] != pair[1]).double().mean()))
    assert found["flips_where_decided"] == 0
    assert found["logit_error"]["largest_share_of_bound"] <= 1
    rows = found["by_margin"]
    assert sum(row["steps"] for row in rows) == found["num_steps"] == 5
    assert sum(row["int8_flips"] for row in rows) == round(5 * found["flip_rate"]["int8"])
    assert sum(row["decided"] for row in rows) == round(5 * found["decided"])
    assert sum(found["logit_error"]["share_of_bound"]["counts"]) == 5 * head.vocab


def near_tie(gap: float) -> tuple[MarkovHead, Inputs]:
    """Token 1 is best by `gap` in the formula; int8 moves token 0 up by 0.4 of a level."""
    projection = torch.zeros(3, 64)
    projection[0, 0], projection[0, 1] = 127.0, 1.6  # becomes 2
    projection[1, 0] = 127.0
    table = torch.zeros(3, 64)
    table[:, 1] = 1.0
    base = torch.tensor([[[0.0, 1.6 + gap, -9.0]]])
    head = MarkovHead(table=table, projection=projection)
    return head, Inputs(
        base_logits=base, anchor=torch.tensor([0]), hidden=None, tokens=None, recorded=True
    )


@pytest.mark.parametrize(("gap", "flips"), [(0.3, 1), (0.6, 0)])
def test_a_near_tie_flips_where_it_has_to(gap: float, flips: int) -> None:
    found = examine(*near_tie(gap))["steps"]
    assert found["num_steps"] == 1
    assert found["flip_rate"]["int8"] == flips
    assert found["decided"] == 0
    (row,) = [row for row in found["by_margin"] if row["steps"]]
    assert row["from"] <= gap < 2 * row["from"]
    assert row["int8_flips"] == flips
    p = torch.tensor([0.0 + 1.6, 1.6 + gap, -9.0]).softmax(0)
    q = torch.tensor([0.0 + 2.0, 1.6 + gap, -9.0]).softmax(0)
    wanted = float((p - q).abs().sum() / 2)
    assert found["mean_total_variation"]["int8"] == pytest.approx(wanted, rel=1e-3)
    assert found["logit_error"]["largest"] == pytest.approx(0.4, rel=1e-3)


def test_a_head_that_adds_nothing_changes_nothing() -> None:
    found = examine_random(silent_head(40))["steps"]
    assert found["flip_rate"] == {"int8": 0.0, "e4m3": 0.0}
    assert found["mean_total_variation"] == {"int8": 0.0, "e4m3": 0.0}
    assert found["logit_error"]["largest"] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_read_hidden_states(kind: Any) -> None:
    head = recurrent_head(kind)
    found = examine_random(head, requests=18, steps=3)
    # The first step of a Domino walk has no part of the head.
    assert found["steps"]["num_steps"] == 18 * (2 if kind is DominoHead else 3)
    assert found["head"]["kind"] == head.kind
    assert found["steps"]["flips_where_decided"] == 0
    assert 0 < found["steps"]["bias_error"]["int8"] < 0.02
    assert found["steps"]["bias_error"]["int8"] < found["steps"]["bias_error"]["e4m3"]


def test_a_domino_block_of_one_step_has_nothing_to_judge(tmp_path: Path) -> None:
    report = examine_random(recurrent_head(DominoHead), steps=1)
    assert report["steps"] == {"num_steps": 0}
    assert draw_fidelity(report, tmp_path / "f.png").stat().st_size > 1000


def test_recorded_tokens_are_followed() -> None:
    head = MarkovHead.random(vocab=60, rank=64, seed=1)
    drawn = draw_inputs(head, requests=4, steps=3, seed=2)
    best = walker_of("reference", head)(drawn.base_logits, drawn.anchor)

    def steps_of(tokens: torch.Tensor | None) -> Any:
        return examine(
            head,
            Inputs(
                base_logits=drawn.base_logits,
                anchor=drawn.anchor,
                hidden=None,
                tokens=tokens,
                recorded=True,
            ),
        )["steps"]

    assert steps_of(best) == steps_of(None)
    assert steps_of((best + 1) % 60)["margin"] != steps_of(None)["margin"]


# ---- inputs and the command --------------------------------------------------------------------


def save_inputs(path: Path, head: Any, **changes: torch.Tensor | None) -> Path:
    drawn = draw_inputs(head, requests=2, steps=3, seed=1)
    tensors = {"base_logits": drawn.base_logits, "anchor": drawn.anchor, "hidden": drawn.hidden}
    held = {name: value for name, value in (tensors | changes).items() if value is not None}
    save_file(held, path)
    return path


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_inputs_come_back(kind: Any, tmp_path: Path) -> None:
    head = MarkovHead.random(vocab=60, rank=64, seed=1) if kind is None else recurrent_head(kind)
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    found = read_inputs(save_inputs(tmp_path / "i.safetensors", head, tokens=tokens), head)
    wanted = draw_inputs(head, requests=2, steps=3, seed=1)
    assert found.recorded
    assert torch.equal(found.base_logits, wanted.base_logits)
    assert torch.equal(found.anchor, wanted.anchor)
    assert found.tokens is not None
    assert (found.hidden is None) == (kind is None)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("anchor", None, "tensor anchor: wanted one"),
        ("hidden", None, "tensor hidden: wanted one, as a gated head reads it"),
        ("base_logits", torch.zeros(2, 3, 5), "at least 517"),
        ("base_logits", torch.zeros(2, 517), "at least 517"),
        ("anchor", torch.zeros(2), r"int64\[2\]"),
        ("tokens", torch.zeros(2, 4, dtype=torch.int64), r"int64\[2, 3\]"),
        ("hidden", torch.zeros(2, 3, 40), r"bfloat16\[2, 3, 40\]"),
    ],
)
def test_wrong_inputs_are_named(
    name: str, value: torch.Tensor | None, words: str, tmp_path: Path
) -> None:
    head = recurrent_head(KINDS[0])
    path = save_inputs(tmp_path / "i.safetensors", head, **{name: value})
    with pytest.raises(WalkError, match=words):
        read_inputs(path, head)


def test_the_command_prints_and_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = recurrent_head(KINDS[0])
    folder = write_drafter(tmp_path / "drafter", head)
    inputs = save_inputs(tmp_path / "i.safetensors", head)
    out = tmp_path / "out"
    assert main(["fidelity", str(folder), "--inputs", str(inputs), "--out", str(out)]) == 0
    text, progress = capsys.readouterr()
    printed = json.loads(text)
    assert printed == json.loads((out / "fidelity.json").read_text())
    for line in summary(printed):
        assert f"] {line}\n" in progress
    assert printed["inputs"]["kind"] == "recorded"
    assert (out / "fidelity.png").stat().st_size > 1000
    # Where there is no matplotlib the numbers are there all the same.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        assert main(["fidelity", str(folder), "--out", str(tmp_path / "bare")]) == 0
    assert [path.name for path in (tmp_path / "bare").iterdir()] == ["fidelity.json"]
    assert "no figure: matplotlib" in capsys.readouterr().err
    assert main(["fidelity", str(folder), "--batch", "3", "--steps", "2"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["inputs"]["kind"] == "random"
    assert printed["steps"]["num_steps"] == 6


def test_a_report_in_two_lines() -> None:
    steps = {
        "num_steps": 40,
        "flip_rate": {"int8": 0.025, "e4m3": 0.1},
        "flips_where_decided": 3,
    }
    report = {"weights": {"error": {"int8": 0.005, "e4m3": 0.02}}, "steps": steps}
    rows, tokens = summary(report)
    assert "0.50% in int8, 2.00% in E4M3" in rows
    assert "40 steps: 2.50% by int8, 10.00% by E4M3; 3 by int8 beyond its bound" in tokens
    none = summary({**report, "steps": {"num_steps": 0}})
    assert none == (rows, "no step that the head has a part in")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fidelity", str(tmp_path), "--batch", "0"]) == 2
    assert "batch: wanted at least 1" in capsys.readouterr().err
    assert main(["fidelity", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_large_vocabularies_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    head = MarkovHead.random(vocab=100, rank=64, seed=1)
    whole = examine_random(head)
    monkeypatch.setattr(weights, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(steps, "_REQUESTS", 2)
    parts = examine_random(head)
    assert parts["weights"] == whole["weights"]
    assert parts["steps"]["by_margin"] == whole["steps"]["by_margin"]
