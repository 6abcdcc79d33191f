"""A Walker, judged from outside: its twin, and what hidden states added to a walk."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strategies import KINDS, anchors, base_logits, hidden_states, hopper, recurrent_head
from wts.errors import InputError
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.walk.backends import BackendName
from wts.walk.walker import Walker

HEADS = [MarkovHead.random(vocab=700, rank=64, seed=1), *map(recurrent_head, KINDS)]
each_head = pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)


def walker_of(head: Any, backend: BackendName = "emulator") -> Walker:
    return Walker(head, plan_residency(head, hopper(3), batch=4, steps=8), backend=backend)


def inputs_of(head: Any, batch: int = 3, steps: int = 4) -> tuple[Any, ...]:
    hidden = None
    if head.hidden_size is not None:
        hidden = hidden_states(head, batch=batch, steps=steps, seed=2)
    return base_logits(head, batch=batch, steps=steps, seed=1), anchors(head, batch, 1), hidden


@each_head
def test_a_twin_walks_as_its_walker_from_bytes_of_its_own(head: Any) -> None:
    walker, (base, anchor, hidden) = walker_of(head), inputs_of(head)
    twin = walker.twin("emulator")
    tokens = walker(base, anchor, hidden=hidden)
    assert walker.packed is not None
    for packed in walker.packed.tensors:
        packed.zero_()
    assert torch.equal(twin(base, anchor, hidden_term=walker.hidden_term()), tokens)
    assert not torch.equal(walker(base, anchor, hidden=hidden), tokens)


@each_head
def test_the_hidden_term_is_of_the_last_walk(head: Any) -> None:
    walker = walker_of(head)
    if head.hidden_size is None:
        assert walker.hidden_term() is None
        walker(*inputs_of(head)[:2])
        assert walker.hidden_term() is None
        return
    with pytest.raises(
        InputError, match=r"^hidden_term: wanted a Walker that has walked, found no"
    ):
        walker.hidden_term()
    for batch, steps in ((3, 4), (2, 7)):
        base, anchor, hidden = inputs_of(head, batch, steps)
        walker(base, anchor, hidden=hidden)
        found = walker.hidden_term()
        assert walker.packed is not None
        assert found is not None
        assert found.shape == (batch, steps, walker.plan.recurrence.hidden_term)
        assert torch.equal(found, walker.packed.hidden_term(hidden))


def test_the_reference_has_neither() -> None:
    head = recurrent_head(KINDS[0])
    walker, (base, anchor, hidden) = walker_of(head, "reference"), inputs_of(head)
    walker(base, anchor, hidden=hidden)
    with pytest.raises(InputError, match=r"^hidden_term: wanted a Walker with packed weights"):
        walker.hidden_term()
    with pytest.raises(InputError, match=r"^twin: wanted .*found 'emulator' of the reference"):
        walker.twin()


def test_a_twin_is_an_emulator() -> None:
    with pytest.raises(InputError, match=r"^twin: wanted 'emulator'.*found 'device'"):
        walker_of(HEADS[0]).twin("device")  # type: ignore[arg-type]
