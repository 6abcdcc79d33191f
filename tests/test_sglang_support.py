"""Why walks stay off, as data; the line that says which path runs; one decision on all ranks."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from strategies import hopper
from wts.engines.common import report
from wts.engines.common.buckets import Bucket, build_walks
from wts.engines.common.reasons import (
    RESERVE_BYTES,
    Reason,
    agreed,
    why_not_gpu,
    why_not_memory,
    why_step_wise,
)
from wts.engines.sglang.version import why_not_version
from wts.hardware.gpu import GPUS
from wts.heads.kinds import Shape
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23+cu130"])
def test_the_known_version_and_its_post_releases_are_served(version: str) -> None:
    assert why_not_version(version) is None


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.5.230", "0.5.23rc1", "1.0", "0x5y23"])
def test_other_versions_are_named(version: str) -> None:
    reason = why_not_version(version)
    assert reason is not None
    assert reason.kind == "version"
    assert version in reason.text
    assert "0.5.23" in reason.text


def test_no_sglang_is_a_reason() -> None:
    assert why_not_version(None) == Reason(kind="version", text="SGLang is not installed")


def test_only_hopper_walks() -> None:
    assert why_not_gpu(GPUS["h20"]) is None
    reason = why_not_gpu(GPUS["b200"])
    assert reason is not None
    assert reason.kind == "gpu"
    assert "10.0" in reason.text


def test_the_reserve_stays_free_to_the_byte() -> None:
    needed = 100 << 20
    assert why_not_memory(needed_bytes=needed, free_bytes=needed + RESERVE_BYTES) is None
    reason = why_not_memory(needed_bytes=needed, free_bytes=needed + RESERVE_BYTES - 1)
    assert reason is not None
    assert reason.kind == "memory"
    assert "100 MiB" in reason.text


def test_a_plan_that_loses_is_not_used() -> None:
    losing = plan_residency(Shape(vocab=248_320, rank=256), "h200", batch=64, sampled=True)
    winning = plan_residency(Shape(vocab=248_320, rank=256), "h200", batch=1, sampled=True)
    assert losing.loses
    assert not winning.loses
    assert why_step_wise(winning) is None
    reason = why_step_wise(losing)
    assert reason is not None
    assert reason.kind == "plan"
    assert f"{losing.readings:.1f}" in reason.text


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


def bucket(
    batch: int, share: float = 1.0, reason: Reason | None = None, *, product: bool = False
) -> Bucket:
    return Bucket(batch=batch, resident_share=share, product=product, reason=reason)


def test_neighbours_of_one_path_are_told_together() -> None:
    slow = Reason(kind="plan", text="too slow")
    text = report.describe_buckets(
        (bucket(1), bucket(2, 0.5), bucket(4, 0.5), bucket(8, 0.5, slow), bucket(16, 0.5, slow))
    )
    assert text.split("; ") == [
        "batch 1: 1 kernel a block, 100 % resident",
        "batch 2 to 4: 1 kernel a block, 50 % resident",
        "batch 5 to 16: SGLang's own steps (too slow)",
        "batch 17 and above: SGLang's own steps",
    ]


def test_the_product_of_hidden_states_is_told() -> None:
    text = report.describe_buckets((bucket(2), bucket(4, product=True)))
    assert text.startswith(
        "batch 1 to 2: 1 kernel a block, 100 % resident; "
        "batch 3 to 4: 1 kernel and a matrix product a block, 100 % resident; "
    )


def test_the_line_names_what_walks(caplog: pytest.LogCaptureFixture) -> None:
    walks = build_walks(
        MarkovHead.random(vocab=517, rank=64, seed=1),
        hopper(4),
        most_requests=2,
        steps=5,
        base_type="bf16",
        sampled=True,
        backend="emulator",
    )
    assert not isinstance(walks, Reason)
    with caplog.at_level(logging.INFO, logger="wts.sglang"):
        report.will_walk("dspark", walks)
        report.stays_off("domino", REASON)
    on, off = caplog.messages
    for word in ("DSpark", "markov head", "V 517", "r 64", "K 5", "batch 1 to 2", "MiB held"):
        assert word in on
    assert off == "wts: off for SGLang's Domino rollout: none left"
