"""Flips are those that the emulator has too, and near-ties flip where they have to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.reports import examine_random
from strategies import KINDS, heads, recurrent_head, silent_head
from walks import walk, walker_of
from wts.fidelity import examine
from wts.fidelity.draw import draw_fidelity
from wts.heads.domino import DominoHead
from wts.heads.markov import MarkovHead
from wts.walk.recorded import Inputs, draw_inputs


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
