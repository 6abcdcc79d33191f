"""An upkeep packs what modules hold, looks now and then, and lets go of what is gone."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch

from sglang_served import failing_upkeep, upkeep_of
from wts.engines.common.engine import Methods
from wts.engines.common.reasons import Reason
from wts.engines.common.upkeep import CHECK_EVERY_S, MOST_TIMEOUTS, follow
from wts.engines.sglang.version import SGLANG
from wts.errors import HeadError, WalkTimeout
from wts.heads.markov import MarkovHead
from wts.walk.walker_set import WalkerSet


@pytest.mark.parametrize("times", [1, 2])
def test_an_update_that_finds_no_memory_is_tried_again(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def refresh(self: Any, head: Any) -> None:
        calls.append("refresh")
        if calls.count("refresh") <= times:
            raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(WalkerSet, "refresh", refresh)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    kept = upkeep_of(MarkovHead)
    if times == 1:
        kept.refresh()
    else:
        with pytest.raises(HeadError, match=r"full; lower --mem-fraction-static"):
            kept.refresh()
    assert calls == ["refresh", "empty", "refresh"]


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("full"), RuntimeError("any")])
def test_ranks_agree_on_an_update_before_one_stops(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Reason | None] = []
    other = Reason(kind="memory", text="rank 1: full")

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return other

    def refresh(self: Any, head: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(WalkerSet, "refresh", refresh)
    with pytest.raises(HeadError, match="rank 1: full"):
        upkeep_of(MarkovHead, ranks=2, agree=agree).refresh()
    assert [reason is None for reason in asked] == [error is None]


def test_an_upkeep_that_is_off_does_nothing() -> None:
    kept, walkers, clock = failing_upkeep(ranks=1)
    kept.active = False
    kept.refresh()  # its adoption fails
    clock.now += CHECK_EVERY_S
    kept.look()
    assert walkers.looks == 0


def test_the_error_of_an_update_is_not_hidden_by_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Owner:
        def method(self) -> None:
            raise RuntimeError("out of files")

    def then() -> None:
        raise HeadError("quantised now")

    follow(Owner, "method", then, SGLANG.logger)
    with pytest.raises(RuntimeError, match="out of files") as caught:
        Owner().method()
    assert caught.value.__context__ is None
    assert "quantised now" in caplog.text


def test_a_look_is_taken_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    kept, walkers, clock = failing_upkeep(ranks=1)
    for _ in range(5):
        kept.look()
    assert walkers.looks == 0
    clock.now += CHECK_EVERY_S
    for _ in range(5):
        kept.look()
    assert walkers.looks == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "block 3" in caplog.text


def test_walks_given_up_again_and_again_stop_the_server() -> None:
    kept, _, clock = failing_upkeep(ranks=1)
    for _ in range(MOST_TIMEOUTS - 1):
        clock.now += CHECK_EVERY_S
        kept.look()
    clock.now += CHECK_EVERY_S
    with pytest.raises(WalkTimeout):
        kept.look()


def test_of_several_ranks_the_first_one_stops_the_server() -> None:
    kept, _, clock = failing_upkeep(ranks=2)
    clock.now += CHECK_EVERY_S
    with pytest.raises(WalkTimeout):
        kept.look()


class Owner:
    """A class of an engine."""

    def __init__(self) -> None:
        self.updates = 0

    def update(self) -> int:
        self.updates += 1
        return self.updates


class Listener:
    def __init__(self, error: Exception | None = None) -> None:
        self.heard = 0
        self.error = error

    def hear(self) -> None:
        self.heard += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def owner() -> type[Owner]:
    """A fresh class, whose method has no followers."""
    return type("Fresh", (Owner,), {"update": lambda self: Owner.update(self)})


def test_a_method_is_wrapped_once_whatever_follows_it(owner: type[Owner]) -> None:
    listeners = [Listener(), Listener()]
    follow(owner, "update", listeners[0].hear, SGLANG.logger)
    wrapped = owner.update
    follow(owner, "update", listeners[1].hear, SGLANG.logger)
    assert owner.update is wrapped
    assert owner().update() == 1
    assert [listener.heard for listener in listeners] == [1, 1]


def test_what_is_gone_no_longer_follows(owner: type[Owner]) -> None:
    listeners = [Listener(), Listener()]
    for listener in listeners:
        follow(owner, "update", listener.hear, SGLANG.logger)
    gone = weakref.ref(listeners.pop(0))
    del listener
    gc.collect()
    assert gone() is None, "a method of the engine keeps a draft alive that is gone"
    assert owner().update() == 1
    assert listeners[0].heard == 1


def test_all_that_follow_are_called_and_the_first_error_is_raised(
    owner: type[Owner], caplog: pytest.LogCaptureFixture
) -> None:
    listeners = [Listener(HeadError("first")), Listener(HeadError("second")), Listener()]
    for listener in listeners:
        follow(owner, "update", listener.hear, SGLANG.logger)
    with pytest.raises(HeadError, match="first"):
        owner().update()
    assert [listener.heard for listener in listeners] == [1, 1, 1]
    assert "second" in caplog.text
    assert "first" not in caplog.text


def test_upkeeps_of_two_drafts_are_apart(
    owner: type[Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them was turned off, and has seen timeouts."""
    monkeypatch.setattr(sys.modules[__name__], "Served", owner, raising=False)
    packed: list[Any] = []
    monkeypatch.setattr(WalkerSet, "refresh", lambda self, head: packed.append(self))
    methods = Methods(owner=f"{__name__}.Served", names=("update",))
    kept = [upkeep_of(MarkovHead), upkeep_of(MarkovHead)]
    for one in kept:
        assert one.attach(updates=[methods], parts=[], results=[]) is None
    owner().update()
    assert packed == [kept[0].walkers, kept[1].walkers]
    kept[0].active = False
    owner().update()
    assert packed[2:] == [kept[1].walkers]
    del kept[1], one
    gc.collect()
    packed.clear()
    owner().update()
    assert packed == []
