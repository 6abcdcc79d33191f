"""Tokens that differ are found before anything is timed."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from bench.stand_ins import VOCAB, FaultyWalker, TinyWalker, tiny_head
from wts.bench.compare import (
    Walk,
    WalkFault,
    agreement,
    check_judged,
    check_walk,
    compare,
    compared_steps,
)
from wts.bench.head.cases import HeadCase
from wts.bench.inputs import draw, draw_head
from wts.kernels.planner import plan_residency
from wts.walk.walker import Walker


def test_gate_steps() -> None:
    assert compared_steps(batch=4, steps=16, whole=False) == 16
    assert compared_steps(batch=8, steps=16, whole=False) == 8
    assert compared_steps(batch=64, steps=16, whole=False) == 2
    assert compared_steps(batch=64, steps=1, whole=False) == 1
    assert compared_steps(batch=64, steps=16, whole=True) == 16


def test_compare_looks_at_bits() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    compare("x", nan, nan.clone())
    with pytest.raises(WalkFault, match=r"x: 1 of 2 differ, first at \[1\]"):
        compare("x", torch.tensor([0.0, 0.0]), torch.tensor([0.0, -0.0]))
    with pytest.raises(WalkFault, match="int32"):
        compare("x", torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))


def checked(walk: Walk, *, batch: int, temperature: float, whole: bool = False) -> int:
    drawn = draw(vocab=VOCAB, batch=batch, steps=16, temperature=temperature, device="cpu", seed=1)
    return check_walk(
        walk,
        TinyWalker(tiny_head(), backend="emulator"),
        drawn,
        whole=whole,
    )


def test_equal_walks_pass_the_gate() -> None:
    walk = TinyWalker(tiny_head())
    assert checked(walk, batch=4, temperature=0.0) == 4 * 16
    assert checked(walk, batch=64, temperature=0.0) == 64 * 2 + 3 * 16
    assert checked(walk, batch=64, temperature=0.0, whole=True) == 64 * 16
    assert checked(walk, batch=64, temperature=1.0) == 64 * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fault", ["", "token", "logits"])
def test_walks_with_bf16_weights_are_followed(temperature: float, fault: str) -> None:
    """A token where one only is allowed, and each step logit of sampled rows."""
    case = HeadCase(vocab=VOCAB, rank=64, batch=4, temperature=temperature, steps=(16,))
    made_of = draw_head(case, device="cpu", seed=0)
    plan = plan_residency(
        made_of, "h200", batch=4, steps=16, sampled=temperature > 0, weights="bf16"
    )
    walker = Walker(made_of, plan, backend="emulator")

    def walk(*args: Any, **kwargs: Any) -> torch.Tensor:
        tokens = walker(*args, **kwargs)
        if fault == "token":
            tokens[2] = (tokens[2] + 1) % VOCAB
        if fault == "logits" and temperature > 0:
            kwargs["logits_out"][1, 3, 5] += 1.0
        return tokens

    def checked() -> int:
        return check_judged(
            cast("Walk", walk),
            walker.twin(),
            draw(vocab=VOCAB, batch=4, steps=16, temperature=temperature, device="cpu", seed=1),
            whole=False,
        )

    if fault == "token" or (fault == "logits" and temperature > 0):
        with pytest.raises(WalkFault, match="tokens" if fault == "token" else "step logits"):
            checked()
    else:
        assert checked() > 4 * 16 * 0.8


@pytest.mark.parametrize("step", [0, 1, 15])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_a_wrong_token_is_caught(batch: int, step: int) -> None:
    walk = FaultyWalker(tiny_head())
    walk.step = step
    with pytest.raises(WalkFault, match="tokens"):
        checked(walk, batch=batch, temperature=0.0)


def test_wrong_step_logits_are_caught() -> None:
    class WrongLogits(TinyWalker):
        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            tokens = super().__call__(*args, **kwargs)
            if kwargs.get("logits_out") is not None:
                kwargs["logits_out"][0, 0, 3] += 1
            return tokens

    with pytest.raises(WalkFault, match=r"step logits.*\[0, 0, 3\]"):
        checked(WrongLogits(tiny_head()), batch=2, temperature=1.0)


def test_agreement_is_of_last_tokens_where_the_earlier_ones_agree() -> None:
    ours = torch.tensor([[1, 2], [1, 3], [4, 5], [6, 7]])
    theirs = torch.tensor([[1, 2], [1, 4], [0, 5], [6, 7]])
    assert agreement(ours, theirs) == pytest.approx(2 / 3)
    assert agreement(ours[:, :1], theirs[:, :1]) == 0.75
    assert agreement(ours, ours + 1) == 0.0
