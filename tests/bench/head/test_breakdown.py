"""Parts of a step are read off the right time stamps of a walk with the same tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.stand_ins import recurrent_inputs
from wts.bench.compare import WalkFault
from wts.bench.head import breakdown
from wts.kernels.planner import plan_residency
from wts.kernels.resident.args import EVENTS, TRACED_ROUNDS
from wts.walk.walker import Walker


def test_parts_of_a_step_are_between_the_events_of_a_round() -> None:
    """Two groups take turns, two steps: the last step's rounds are left out."""
    names, traced = EVENTS, TRACED_ROUNDS
    assert names[:2] == ("LATENT_SEEN", "SWEPT")
    stamps = torch.zeros(3, traced, len(names), dtype=torch.int64)
    for block in range(3):
        for round_ in range(4):
            begin = 1000 * (block + 1) + 70 * (round_ // 2) + 5 * (round_ % 2)
            stamps[block, round_] = begin + torch.tensor([0, 10, 13, 15, 20, 50, 65])
    stamps[:, 2:, 1:] -= torch.arange(1, len(names)) * 100
    found = breakdown.breakdown_of(stamps, steps=2, groups=2)
    assert list(found.values()) == [10, 3, 2, 5, 30, 15, 5, 70]
    assert list(found) == list(breakdown.PARTS)
    stamps[:, :, names.index("LATENT_SENT")] = 0  # a kernel of many groups does not mark it
    found = breakdown.breakdown_of(stamps, steps=2, groups=2)
    assert set(breakdown.PARTS) - set(found) == {"latent and state", "seen"}
    text = breakdown.breakdown_text([("gated V=9, wts", found)])
    assert "gated V=9, wts: sweep 10, " in text


def test_parts_are_of_a_traced_build_that_gives_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = recurrent_inputs("rnn", 3)
    plan = plan_residency(inputs.head, "h200", batch=4, steps=3)
    walker = Walker(inputs.head, plan, backend="emulator")
    wrong = 0

    class Traced:
        def __init__(self, *_: Any, trace: bool) -> None:
            assert trace
            self.plan = plan
            shape = (plan.shard.num_blocks, TRACED_ROUNDS, len(EVENTS))
            self.stamps = torch.zeros(shape, dtype=torch.int64)

        def launch(self, call: Any, tokens: torch.Tensor) -> None:
            self.stamps.copy_(torch.arange(self.stamps.numel()).view_as(self.stamps))
            tokens.copy_(walker(call.base_logits, call.anchor, hidden=call.hidden) + wrong)

        def check(self) -> None:
            pass

    monkeypatch.setattr(breakdown, "LoadedKernel", Traced)

    class Stand(SimpleNamespace):
        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            tokens: torch.Tensor = walker(*args, **kwargs)
            return tokens

    stand: Any = Stand(head=inputs.head, plan=plan)
    assert breakdown.traced_breakdown(stand, inputs)["sweep"] == 1
    wrong = 1
    with pytest.raises(WalkFault, match="traced"):
        breakdown.traced_breakdown(stand, inputs)
