"""Plain torch walks by the formula of each head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from bench.stand_ins import each_kind, inputs_of, recurrent_inputs
from wts.bench.baselines.inputs import WalkInputs
from wts.bench.baselines.torch_steps import latent_in_torch, step_torch
from wts.walk.reference import reference_walk


def test_step_torch_on_a_hand_worked_walk() -> None:
    # Three tokens of rank 2. E = (1,0), (0,1), (1,1); W rows (2,0), (0,3), (1,1).
    # Row 0, anchor 0: e = (1,0), bias = (2,0,1); + (0,1,0) = (2,1,1) -> 0.
    #   step 1: prev 0, bias (2,0,1) + (0,2,1) = (2,2,2): all tie -> the lowest id, 0.
    #   step 2: prev 0, bias (2,0,1) + (-1,0,1) = (1,0,2) -> 2.
    # Row 1, anchor 1: e = (0,1), bias = (0,3,1); + (4,0,0) = (4,3,1) -> 0.
    #   step 1: prev 0, bias (2,0,1) + (0,0,5) = (2,0,6) -> 2.
    #   step 2: prev 2, e = (1,1), bias (2,3,2) + (2,0,0) = (4,3,2) -> 0.
    walk = step_torch(
        inputs_of(
            [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
            [[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]],
            [
                [[0.0, 1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.0, 1.0]],
                [[4.0, 0.0, 0.0], [0.0, 0.0, 5.0], [2.0, 0.0, 0.0]],
            ],
            [0, 1],
        )
    )
    assert walk().tolist() == [[0, 0, 2], [0, 2, 0]]
    assert walk().tolist() == [[0, 0, 2], [0, 2, 0]], "a call leaves its inputs alone"


def test_step_torch_rounds_the_bias_and_then_the_sum() -> None:
    # bf16 has 8 significant bits. The bias 257 becomes 256 (ties to even), and 256 - 256 = 0 loses
    # to 0.5; one rounding of 257 - 256 = 1 would win.
    walk = step_torch(
        inputs_of([[1.0, 1.0]] * 2, [[256.0, 1.0], [0.0, 0.0]], [[[-256.0, 0.5]]], [0])
    )
    assert walk().tolist() == [[1]]


def test_step_torch_draws_from_the_softmax() -> None:
    torch.manual_seed(0)
    rows = 20_000
    logits = torch.tensor([1.0, 0.0, -1.0])
    zeros: Any = SimpleNamespace(
        kind="markov",
        table=torch.zeros(3, 2).bfloat16(),
        projection=torch.zeros(3, 2).bfloat16(),
    )
    walk = step_torch(
        WalkInputs(
            head=zeros,
            base_logits=logits.bfloat16().expand(rows, 1, 3).contiguous(),
            anchor=torch.zeros(rows, dtype=torch.int64),
            temperatures=torch.full((rows,), 2.0),
        )
    )
    shares = torch.bincount(walk().flatten(), minlength=3) / rows
    # A share deviates by at most 0.0036; noise of the other sign is off by ten times that.
    assert torch.allclose(shares, torch.softmax(logits / 2.0, dim=0), atol=0.015)


@each_kind
def test_step_torch_is_the_formula_of_each_head(kind: Any) -> None:
    """Its sums are in another order, and on a CPU torch's GRU rounds more often."""
    inputs = recurrent_inputs(kind, 6, batch=30)
    tokens = step_torch(inputs)()
    wanted = reference_walk(inputs.head, inputs.base_logits, inputs.anchor, hidden=inputs.hidden)
    # A walk that went another way once stays there: first steps only.
    assert torch.equal(tokens[:, 0], wanted[:, 0])
    assert (tokens[:, :3] == wanted[:, :3]).double().mean() > 0.8
    assert len(wanted[:, 1:].unique()) > 20, "a walk that stands still says little"
    plain = inputs.base_logits.argmax(2)
    assert (wanted[:, 1:] == plain[:, 1:]).double().mean() < 0.7, "the head has its say"


@each_kind
def test_latents_and_states_of_step_torch_are_near_those_of_the_formula(kind: Any) -> None:
    inputs = recurrent_inputs(kind, 6)
    assert inputs.hidden is not None
    latent_of, state = latent_in_torch(inputs)
    wanted_state = inputs.head.initial_state(inputs.batch)
    for step in range(6):
        token, hidden = inputs.anchor + step, inputs.hidden[:, step]
        state, latent = latent_of(state, inputs.table[token % 200], hidden)
        wanted_state, wanted = inputs.head.latent(wanted_state, token % 200, hidden)
        assert (latent is None) == (wanted is None) == (kind == "domino" and step == 0)
        for found, right in ((latent, wanted), (state, wanted_state)):
            if isinstance(found, torch.Tensor) and isinstance(right, torch.Tensor):
                assert torch.allclose(found.float(), right.float(), rtol=0.05, atol=0.05)
