"""A module is tried in its engine's own way: here one that embeds, then projects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sglang_draft import parameter
from wts.engines.common.adopt import dspark_head, has_adapter, plain_weight, why_other_bias
from wts.engines.common.reasons import Reason
from wts.heads.markov import MarkovHead


class Markov(nn.Module):
    """DSpark's parts, and neither states nor hidden states."""

    def __init__(self, head: MarkovHead, scale: float = 1.0) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(head.table_rows, head.rank, device="meta")
        self.markov_w2 = nn.Linear(head.rank, head.vocab, bias=False, device="meta")
        self.markov_w1.weight = parameter(head.table)
        self.markov_w2.weight = parameter(head.projection)
        self.scale = scale

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.markov_w1(tokens)

    def project(self, embedded: torch.Tensor) -> torch.Tensor:
        return self.markov_w2(embedded) * self.scale


class Embedding:
    """How such a module is asked."""

    def __init__(self, module: Markov) -> None:
        self.module = module

    def start(self, hidden: torch.Tensor | None) -> None:
        assert hidden is None

    def bias(
        self, tokens: torch.Tensor, hidden: torch.Tensor | None, state: Any
    ) -> tuple[torch.Tensor, Any]:
        return self.module.project(self.module.embed(tokens)), state


def head_of() -> MarkovHead:
    return MarkovHead.random(vocab=517, rank=64, seed=1)


def test_a_module_of_another_engine_is_adopted_by_its_parts_and_tried() -> None:
    module = Markov(head_of())
    head = dspark_head(module)
    assert isinstance(head, MarkovHead)
    assert head.projection.data_ptr() == module.markov_w2.weight.data_ptr()
    assert why_other_bias("Markov", Embedding(module), head) is None


@pytest.mark.parametrize("scale", [0.5, 1.1, 0.0, float("nan")])
def test_a_scaled_bias_is_another_bias(scale: float) -> None:
    module = Markov(head_of(), scale)
    head = dspark_head(module)
    assert not isinstance(head, Reason)
    reason = why_other_bias("Markov", Embedding(module), head)
    assert reason == Reason(
        kind="head", text="Markov gives another bias than a markov head of its weights"
    )


def test_an_adapter_is_seen_in_any_of_the_modules() -> None:
    plain, wrapped = Markov(head_of()), nn.Module()
    wrapped.base_layer = nn.Linear(2, 2)
    assert not has_adapter(plain)
    assert has_adapter(plain, wrapped)


@pytest.mark.parametrize("weight", [None, torch.zeros(3), torch.zeros(3, 3, dtype=torch.int8)])
def test_a_weight_that_is_no_matrix_of_numbers_is_quantised(weight: Any) -> None:
    layer = nn.Module()
    layer.weight = None if weight is None else parameter(weight)
    found = plain_weight("markov_w2", layer)
    assert isinstance(found, Reason)
    assert found.kind == "quantised"
    assert found.text.startswith("markov_w2 is quantised")
