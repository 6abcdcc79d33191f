"""Heads and inputs are drawn as is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.stand_ins import each_kind, recurrent_inputs, small_case
from wts.bench.inputs import draw, draw_head, draw_weights


@each_kind
def test_drawn_heads_have_biases_like_those_of_a_markov_head(kind: Any) -> None:
    drawn = draw_head(small_case(kind, vocab=3000, rank=128), device="cpu", seed=0)
    hidden = torch.randn(64, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    state, _ = drawn.latent(drawn.initial_state(64), torch.arange(64), hidden)
    latent = drawn.latent(state, torch.arange(64, 128), hidden)[1]
    assert latent is not None
    bias = latent.float() @ drawn.projection.float().T
    assert float(bias.std()) == pytest.approx(1.5, rel=0.15)


def test_base_logits_of_an_lm_head_are_its_product() -> None:
    inputs = recurrent_inputs("domino", 3, vocab=4000)
    assert inputs.hidden is not None
    assert inputs.lm_head is not None
    wanted = inputs.hidden.float() @ inputs.lm_head.float().T
    assert torch.allclose(inputs.base_logits.float(), wanted, rtol=0.01, atol=0.01)
    assert float(inputs.base_logits.float().std()) == pytest.approx(2.0, rel=0.1)


def test_drawn_inputs_are_as_said() -> None:
    table, projection = draw_weights(vocab=4096, rank=256, device="cpu", seed=0)
    bias = table[:64].float() @ projection.float().T
    assert float(bias.std()) == pytest.approx(1.5, rel=0.1)
    drawn = draw(vocab=4096, batch=2, steps=3, temperature=0.0, device="cpu", seed=0)
    assert float(drawn.base_logits.float().std()) == pytest.approx(2.0, rel=0.1)
    assert drawn.base_logits.dtype == torch.bfloat16
    assert drawn.temperatures is None
    again = draw(vocab=4096, batch=2, steps=3, temperature=0.0, device="cpu", seed=0)
    assert torch.equal(again.base_logits, drawn.base_logits)
