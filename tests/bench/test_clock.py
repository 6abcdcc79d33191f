"""The stopwatch: quantiles, fits, and what lies between two events. Nothing here takes a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wts.bench import clock
from wts.errors import InputError


def test_quantiles_of_a_hand_worked_sample() -> None:
    samples = [40.0, 10.0, 30.0, 20.0, 50.0]
    assert clock.quantile(samples, 0.5) == 30.0
    assert clock.quantile(samples, 0.0) == 10.0
    assert clock.quantile(samples, 1.0) == 50.0
    # Place 0.05 * 4 = 0.2 between 10 and 20; place 3.8 between 40 and 50.
    assert clock.quantile(samples, 0.05) == pytest.approx(12.0)
    assert clock.quantile(samples, 0.95) == pytest.approx(48.0)
    assert clock.quantile([7.0], 0.95) == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_quantiles_are_in_order_and_inside_the_samples(samples: list[float]) -> None:
    timing = clock.Timing(name="any", samples_us=tuple(samples))
    assert min(samples) <= timing.p05_us <= timing.p50_us <= timing.p95_us <= max(samples)
    assert timing.num_samples == len(samples)


def test_quantile_refuses_what_has_no_answer() -> None:
    with pytest.raises(InputError, match="at least one"):
        clock.quantile([], 0.5)
    with pytest.raises(InputError, match=r"0\.\.1"):
        clock.quantile([1.0], 50)


def test_the_fit_finds_slope_and_entry() -> None:
    fit = clock.fit_steps({steps: 14.0 + 2.5 * steps for steps in (1, 7, 16)})
    assert fit is not None
    assert fit.step_us == pytest.approx(2.5)
    assert fit.entry_us == pytest.approx(14.0)


def test_the_fit_is_least_squares() -> None:
    # Normal equations by hand: slope = ((-1)(1 - 3) + 0 + (1)(4 - 3)) / 2 = 1.5.
    fit = clock.fit_steps({1: 1.0, 2: 4.0, 3: 4.0})
    assert fit is not None
    assert fit.step_us == pytest.approx(1.5)
    assert fit.entry_us == pytest.approx(0.0)


def test_one_length_has_no_slope() -> None:
    assert clock.fit_steps({7: 30.0}) is None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the stream, in order, with events and kernels replaced by their names."""
    queued: list[str] = []

    class Event:
        def record(self) -> None:
            queued.append("event")

        def elapsed_time(self, end: object) -> float:
            return 0.025

    monkeypatch.setattr(clock, "_event", Event)
    monkeypatch.setattr(clock, "_spin", lambda cycles: queued.append("spin"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return queued


def replayed(log_: list[str], *, cache: clock.Cache, rounds: int) -> dict[str, clock.Timing]:
    def graph(name: str) -> Any:
        return SimpleNamespace(replay=lambda: log_.append(name))

    control: Any = object.__new__(clock.CacheControl)
    control._buffer = SimpleNamespace(add_=lambda _: log_.append("write"))
    captured = {
        name: clock.Captured(graph=graph(name), output=torch.zeros(1)) for name in ("a", "b", "c")
    }
    return clock.time_replays(captured, cache=cache, control=control, rounds=rounds)


def test_only_the_replay_lies_between_the_events(log: list[str]) -> None:
    timings = replayed(log, cache="cold", rounds=1)
    assert log[:4] == ["write", "event", "a", "event"]
    assert timings["a"].samples_us == (25.0,)


def test_a_warm_replay_follows_one_of_the_same_graph(log: list[str]) -> None:
    replayed(log, cache="warm", rounds=1)
    assert log[:5] == ["a", "spin", "event", "a", "event"]


def test_variants_take_turns(log: list[str]) -> None:
    timings = replayed(log, cache="cold", rounds=4)
    turns = [name for name in log if name in "abc"]
    assert "".join(turns) == "abc" + "bca" + "cab" + "abc"
    assert {timing.num_samples for timing in timings.values()} == {4}


def test_no_rounds_are_refused(log: list[str]) -> None:
    with pytest.raises(InputError, match="rounds"):
        replayed(log, cache="cold", rounds=0)
