"""Where a draft cannot walk on every rank, all steps are SGLang's, and the log says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_draft import Buffers
from sglang_served import MOST, STEPS, Updater, draft_of, factory, head_of, made_by, never
from strategies import hopper
from wts.engines.common import report
from wts.engines.common.reasons import Reason
from wts.engines.sglang.dspark import factory_of
from wts.engines.sglang.version import RELEASES
from wts.heads.markov import MarkovHead
from wts.walk.walker_set import WalkerSet


@pytest.mark.parametrize("at", ["base logits", "building", "the hooks of updates"])
def test_where_one_rank_cannot_all_steps_are_sglangs(
    at: str,
    engine: tuple[type[Any], type[Any]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = head_of(MarkovHead)
    other = Reason(kind="memory", text="rank 1: none left")
    asked: list[Reason | None] = []
    answers = ["adoption", "base logits", "building", "the hooks of updates"]

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return other if answers[len(asked) - 1] == at else None

    made = made_by(agree, head)
    with caplog.at_level("INFO", logger="wts.sglang"):
        steps = made(**Buffers(head, most=MOST, steps=STEPS).arguments())
    assert [steps(batch) for batch in range(1, MOST + 1)] == [None] * MOST
    assert asked == [None] * (answers.index(at) + 1)
    monkeypatch.setattr(WalkerSet, "refresh", never)
    engine[0]().update_weights_from_disk()  # whatever was hooked by then does nothing
    assert caplog.messages == ["wts: off for SGLang's DSpark draft: rank 1: none left"]


def test_what_cannot_be_adopted_is_a_reason_on_every_rank() -> None:
    asked = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return reason

    found = factory_of(
        object(), hopper(4), release=RELEASES[-1], agree=agree, ranks=2, backend="emulator"
    )
    assert isinstance(found, Reason)
    assert asked == [found], "a rank that fails must still answer the others"


def test_a_rank_without_a_gpu_still_answers_the_others() -> None:
    asked = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return reason

    none = Reason(kind="gpu", text="no GPU")
    draft = draft_of(head_of(MarkovHead))
    assert (
        factory_of(draft, none, release=RELEASES[-1], agree=agree, ranks=2, backend="emulator")
        == none
    )
    assert asked == [none]


@pytest.mark.usefixtures("engine")
def test_the_batches_that_walk_are_told_to_the_other_ranks() -> None:
    told = []

    def agree(reason: Reason | None, walking: tuple[int, ...] | None = None) -> Reason | None:
        told.append(walking)
        return reason

    head = head_of(MarkovHead)
    made = made_by(agree, head)
    assert made(**Buffers(head, most=MOST, steps=STEPS).arguments())(1) is not None
    assert told == [None, None, (1, 2, 3), None]


@pytest.mark.usefixtures("engine")
def test_steps_that_cannot_be_made_are_a_reason_on_every_rank(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Reason | None] = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return reason

    head = head_of(MarkovHead)
    made = made_by(agree, head)
    arguments = Buffers(head, most=MOST, steps=STEPS).arguments() | {"noise": object()}
    assert made(**arguments)(1) is None
    assert [reason is None for reason in asked] == [True, True, False]
    assert "AttributeError" in caplog.text


def test_ranks_that_cannot_agree_draft_with_sglangs_steps(
    engine: tuple[type[Any], type[Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        if len(asked) == 4:
            raise RuntimeError("no connection")
        return reason

    head = head_of(MarkovHead)
    made = made_by(agree, head)
    assert made(**Buffers(head, most=1, steps=STEPS).arguments())(1) is None
    assert "no connection" in caplog.text
    monkeypatch.setattr(WalkerSet, "refresh", never)
    engine[0]().update_weights_from_disk()  # what was hooked does nothing


@pytest.mark.usefixtures("engine")
def test_a_line_that_cannot_be_written_stops_no_walk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "walks_line", never)
    head = head_of(MarkovHead)
    steps = factory(draft_of(head))(**Buffers(head, most=1, steps=STEPS).arguments())
    assert steps(1) is not None
    assert "not described" in caplog.text


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_buffer_that_does_not_fit_is_a_reason(
    dtype: torch.dtype | None, caplog: pytest.LogCaptureFixture
) -> None:
    head = head_of(MarkovHead)
    arguments = Buffers(head, most=MOST, steps=STEPS).arguments()
    arguments["step_logits"] = None if dtype is None else arguments["step_logits"].to(dtype)
    with caplog.at_level("INFO", logger="wts.sglang"):
        steps = factory(draft_of(head))(**arguments)
    assert steps(1) is None
    assert "step logits" in caplog.text


def test_without_the_hook_on_updates_walks_stay_off(
    engine: tuple[type[Any], type[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    del Updater.end_weight_update
    try:
        with caplog.at_level("INFO", logger="wts.sglang"):
            head = head_of(MarkovHead)
            steps = factory(draft_of(head))(**Buffers(head, most=2, steps=STEPS).arguments())
    finally:
        Updater.end_weight_update = lambda self: "end"  # type: ignore[method-assign]
    assert steps(1) is None
    assert "end_weight_update" in caplog.text
