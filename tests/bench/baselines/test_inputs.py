"""Inputs that do not fit their head are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.stand_ins import inputs_of, recurrent_inputs
from wts.bench.inputs import constant_latent_head
from wts.errors import InputError


def test_walk_inputs_that_do_not_fit_are_refused() -> None:
    weights: dict[str, Any] = {"table": [[1.0, 0.0]] * 3, "projection": [[1.0, 0.0]] * 3}
    base = [[[0.0, 0.0, 0.0]]]
    with pytest.raises(InputError, match="base_logits"):
        inputs_of(**weights, base=[[[0.0, 0.0]]], anchor=[0])
    with pytest.raises(InputError, match="anchor"):
        inputs_of(**weights, base=base, anchor=[3])
    with pytest.raises(InputError, match="anchor"):
        inputs_of(**weights, base=base, anchor=[0, 1])
    with pytest.raises(InputError, match="temperatures"):
        inputs_of(**weights, base=base, anchor=[0], temperatures=torch.zeros(1))


def test_hidden_states_are_for_the_heads_that_read_them() -> None:
    inputs = recurrent_inputs("gated", 3)
    for changes in ({"hidden": None}, {"hidden": inputs.hidden[:, :2]}):  # type: ignore[index]
        with pytest.raises(InputError, match=r"^hidden: wanted \[4, 3, 48\]"):
            replace(inputs, **changes)
    with pytest.raises(InputError, match=r"^hidden: wanted None"):
        replace(inputs, head=constant_latent_head(inputs.head))
