"""A Walker on a backend that was made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strategies import anchors, base_logits, hopper, silent_head
from wts.errors import InputError, PlanError
from wts.heads.markov import MarkovHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.walk.backends import DeviceBackend, EmulatorBackend, ReferenceBackend
from wts.walk.emulator import Emulator
from wts.walk.walker import Walker

CPU = torch.device("cpu")


def test_a_backend_made_by_hand_is_walked() -> None:
    head = MarkovHead.random(vocab=300, rank=64, seed=1)
    plan = plan_residency(head, hopper(2), batch=2, steps=4)
    backend = EmulatorBackend(Emulator(plan=plan, packed=pack_head(head, plan, CPU)))
    walker = Walker(head, plan, backend=backend)
    assert (walker.backend, walker.plan) == ("emulator", plan)
    base, anchor = base_logits(head, batch=2, steps=4, seed=1), anchors(head, 2, 1)
    wanted = Walker(head, plan, backend="emulator")(base, anchor)
    assert torch.equal(walker(base, anchor), wanted)


def test_a_backend_of_another_plan_is_refused() -> None:
    head = silent_head(9)
    plans = [plan_residency(head, hopper(blocks), batch=2) for blocks in (1, 2)]
    backend = ReferenceBackend(head, plans[0])
    with pytest.raises(PlanError, match=r"^plan: wanted that of the backend, .*backend\.plan"):
        Walker(head, plans[1], backend=backend)


@pytest.mark.parametrize("other", ["cuda", "", None, 5, DeviceBackend])
def test_what_is_no_backend_is_refused(other: Any) -> None:
    head = silent_head(9)
    with pytest.raises(InputError, match=r"^backend: wanted 'auto', 'device', 'emulator' or 'ref"):
        Walker(head, plan_residency(head, "h200"), backend=other)
