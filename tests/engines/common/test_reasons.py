"""Why walks stay off, as data; one decision on all ranks."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from wts.engines.common.reasons import (
    Reason,
    agreed,
    why_not_draft,
    why_not_gpu,
    why_not_memory,
    why_not_ranks,
    why_step_wise,
    why_switched_off,
)
from wts.engines.sglang.version import DOMINO, DSPARK, SGLANG
from wts.hardware.gpu import GPUS
from wts.heads.kinds import Shape
from wts.kernels.planner import plan_residency


def test_only_hopper_walks() -> None:
    assert why_not_gpu(GPUS["h20"]) is None
    reason = why_not_gpu(GPUS["b200"])
    assert reason is not None
    assert reason.kind == "gpu"
    assert "10.0" in reason.text


def test_the_reserve_stays_free_to_the_byte() -> None:
    needed = 100 << 20
    assert (
        why_not_memory(SGLANG, needed_bytes=needed, free_bytes=needed + SGLANG.reserve_bytes)
        is None
    )
    reason = why_not_memory(
        SGLANG, needed_bytes=needed, free_bytes=needed + SGLANG.reserve_bytes - 1
    )
    assert reason is not None
    assert reason.kind == "memory"
    assert "100 MiB" in reason.text


def test_a_plan_that_loses_is_not_used() -> None:
    losing = plan_residency(Shape(vocab=248_320, rank=256), "h200", batch=64, sampled=True)
    winning = plan_residency(Shape(vocab=248_320, rank=256), "h200", batch=1, sampled=True)
    assert losing.placement.slower_than_stepwise
    assert not winning.placement.slower_than_stepwise
    assert why_step_wise(winning) is None
    reason = why_step_wise(losing)
    assert reason is not None
    assert reason.kind == "plan"
    assert f"{losing.placement.reads_of_w_per_step:.1f}" in reason.text


REASON = Reason(kind="memory", text="none left")


def test_a_reason_survives_the_way_between_ranks() -> None:
    assert pickle.loads(pickle.dumps(REASON)) == REASON


def test_one_rank_needs_no_answer_of_others() -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("gathered")

    for group in (None, SimpleNamespace(world_size=1)):
        assert agreed(REASON, group, never) is REASON
        assert agreed(None, group, never) is None


@pytest.mark.parametrize("of_ranks", [(None, REASON, None), (REASON, None, None), (None,) * 3])
def test_all_ranks_stay_off_if_one_does(of_ranks: tuple[Reason | None, ...]) -> None:
    group = SimpleNamespace(world_size=3, cpu_group="cpu")
    decisions = []
    for own in of_ranks:

        def gather(found: list[Any], given: Any, *, group: str) -> None:
            assert group == "cpu"
            assert given == (own, None)  # noqa: B023 - called before the next rank's turn
            found[:] = [(reason, None) for reason in of_ranks]

        decisions.append(agreed(own, group, gather))
    assert decisions[0] == decisions[1] == decisions[2]
    if any(of_ranks):
        decided = decisions[0]
        assert decided is not None
        assert decided.kind == "memory"
        assert f"rank {of_ranks.index(REASON)}: none left" == decided.text
    else:
        assert decisions[0] is None


@pytest.mark.parametrize("other", [(1, 2), (1,), None])
def test_ranks_that_would_walk_in_other_batches_stay_off(other: tuple[int, ...] | None) -> None:
    def gather(found: list[Any], given: Any, *, group: str) -> None:
        assert given == (None, (1, 2))
        found[:] = [given, (None, other)]

    decided = agreed(None, SimpleNamespace(world_size=2, cpu_group="cpu"), gather, (1, 2))
    if other == (1, 2):
        assert decided is None
    else:
        assert decided is not None
        assert decided.kind == "plan"
        assert decided.text == f"rank 0 would walk in batches (1, 2), rank 1 in {other}"


def test_what_walks_of_a_draft_is_data() -> None:
    assert why_not_draft(DSPARK, "gated", sampled=True) is None
    assert why_not_draft(DOMINO, "domino", sampled=False) is None
    other = why_not_draft(DSPARK, "domino", sampled=False)
    assert other == Reason(
        kind="head", text="it has a domino head, wanted is one of markov, gated, rnn"
    )
    sampled = why_not_draft(DOMINO, "domino", sampled=True)
    assert sampled is not None
    assert "sampled" in sampled.text


def test_one_rank_always_may_and_more_where_the_draft_says_so() -> None:
    assert why_not_ranks(DOMINO, 1) is None
    assert why_not_ranks(DSPARK, 8) is None
    reason = why_not_ranks(DOMINO, 2)
    assert reason is not None
    assert reason.kind == "tensor parallelism"
    assert reason.text == DOMINO.one_rank


@pytest.mark.parametrize(("value", "off"), [(None, False), ("1", False), ("", False), ("0", True)])
def test_only_0_turns_an_engine_off(
    value: str | None, off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(SGLANG.switch, raising=False)
    else:
        monkeypatch.setenv(SGLANG.switch, value)
    reason = why_switched_off(SGLANG)
    assert (reason is not None) == off
    assert reason is None or reason.text == "WTS_SGLANG=0"
