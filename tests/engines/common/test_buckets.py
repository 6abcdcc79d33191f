"""Walks of all batches are built, or there is a reason; what loses is left to the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_served import KINDS, STEPS, head_of
from strategies import hopper
from wts.engines.common import buckets
from wts.engines.common.buckets import Walks, build_walks, held_bytes
from wts.engines.common.reasons import Reason
from wts.engines.sglang.version import DSPARK
from wts.errors import WalkTimeout
from wts.heads.base import Head
from wts.heads.markov import MarkovHead
from wts.kernels.resident.plan import ResidentPlan
from wts.walk.walker_set import WalkerSet


def built(head: Head, *, most: int = 4, steps: int = STEPS) -> Walks | Reason:
    return build_walks(
        head,
        hopper(4),
        draft=DSPARK,
        most_requests=most,
        steps=steps,
        base_type="bf16",
        sampled=True,
        backend="emulator",
    )


def test_buckets_that_lose_are_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_above_two(plan: ResidentPlan) -> Reason | None:
        return Reason(kind="plan", text="slow") if plan.request.batch > 2 else None

    monkeypatch.setattr(buckets, "why_step_wise", lose_above_two)
    walks = built(head_of(MarkovHead), most=8)
    assert isinstance(walks, Walks)
    assert [walks.for_batch(batch) is not None for batch in (1, 2, 3, 8, 9)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [plan.request.batch for plan in walks.walkers.plans][-1] == 2, (
        "nothing is built for the others"
    )


def test_a_plan_that_comes_out_slower_is_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling may settle for another plan than was made: the policy asks about that one."""
    asked: list[int] = []

    def lose_once_built(plan: ResidentPlan) -> Reason | None:
        asked.append(plan.request.batch)
        built_already = asked.count(plan.request.batch) > 1
        return (
            Reason(kind="plan", text="slow") if built_already and plan.request.batch == 2 else None
        )

    monkeypatch.setattr(buckets, "why_step_wise", lose_once_built)
    walks = built(head_of(MarkovHead), most=2)
    assert isinstance(walks, Walks)
    assert walks.for_batch(1) is not None
    assert walks.for_batch(2) is None


def test_no_bucket_that_wins_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Reason(kind="plan", text="slow")
    monkeypatch.setattr(buckets, "why_step_wise", lambda plan: slow)
    assert built(head_of(MarkovHead)) == slow


@pytest.mark.parametrize("steps", [0, 33])
def test_blocks_that_are_too_long_are_a_reason(steps: int) -> None:
    found = built(head_of(MarkovHead), steps=steps)
    assert isinstance(found, Reason)
    assert found.kind == "plan"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("full"), "memory"),
        (RuntimeError("anything"), "build"),
        (WalkTimeout("given up"), "build"),
    ],
)
def test_a_failure_of_building_is_a_reason(
    error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(buckets, "WalkerSet", fail)
    found = built(head_of(MarkovHead))
    assert isinstance(found, Reason)
    assert found.kind == kind
    assert str(error) in found.text


@pytest.mark.parametrize("kind", KINDS)
def test_held_bytes_are_known_before(kind: type[Any]) -> None:
    """A device also has a workspace, which the emulator has not."""
    head = head_of(kind)
    walkers = WalkerSet(head, hopper(4), batches=[4], steps=STEPS, backend="emulator")
    (plan,) = walkers.plans
    positions = plan.request.batch * plan.request.steps
    workspace = (
        plan.selection.workspace_words * plan.exchange.word_bytes + 8 * plan.recurrence.state_words
    )
    workspace += positions * (4 * plan.recurrence.hidden_term + 2 * (head.hidden_size or 0))
    estimate = held_bytes(head, [plan]) - workspace
    assert walkers.memory_bytes <= estimate <= walkers.memory_bytes * 1.25
