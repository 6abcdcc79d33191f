"""Recorded inputs come back, and wrong ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from strategies import KINDS, recurrent_head
from walk.recordings import save_inputs
from wts.errors import WalkError
from wts.heads.markov import MarkovHead
from wts.walk.recorded import draw_inputs, read_inputs


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
