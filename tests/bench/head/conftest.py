"""Runs without a GPU: no stopwatch, and the emulator or a tiny walk in the place of the device."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.records import environment
from bench.stand_ins import TinyWalker
from wts.bench import clock, record
from wts.bench.head import ours, run
from wts.kernels.planner import plan_residency
from wts.walk.walker import Walker


@pytest.fixture
def no_stopwatch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace graphs, events and the questions to the GPU; everything is computed on the CPU."""

    def replay(launch: Any, output: torch.Tensor) -> None:
        output.copy_(launch())

    def capture(variants: dict[str, Any]) -> dict[str, clock.Captured]:
        made = {}
        for name, launch in variants.items():
            output = launch()
            graph: Any = SimpleNamespace(replay=partial(replay, launch, output))
            made[name] = clock.Captured(graph=graph, output=output)
        return made

    def time_replays(
        captured: dict[str, clock.Captured], *, cache: str, control: Any, rounds: int
    ) -> dict[str, clock.Timing]:
        return {
            name: clock.Timing(name=name, samples_us=tuple(float(n + 10) for n in range(rounds)))
            for name in captured
        }

    monkeypatch.setattr(clock, "capture", capture)
    monkeypatch.setattr(clock, "time_replays", time_replays)
    monkeypatch.setattr(clock, "CacheControl", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(record, "capture_environment", lambda described: environment())
    monkeypatch.setattr(run, "DEVICE", "cpu")
    return monkeypatch


@pytest.fixture
def no_gpu(no_stopwatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace the walker and its plan too. The rest of the benchmark is real."""
    plan = SimpleNamespace(placement=SimpleNamespace(resident_share=1.0), hash="feed")
    no_stopwatch.setattr(ours, "Walker", TinyWalker)
    no_stopwatch.setattr(ours, "plan_residency", lambda *_args, **_kwargs: plan)
    return no_stopwatch


@pytest.fixture
def emulated(no_stopwatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The real planner and Walker, with the emulator in the place of the device."""

    def plan_for_h200(made_of: Any, device: str, **given_: Any) -> Any:
        assert device == "LOCAL"
        return plan_residency(made_of, "h200", **given_)

    def emulator(made_of: Any, plan_: Any, *, backend: str) -> Any:
        return Walker(made_of, plan_, backend="emulator")

    no_stopwatch.setattr(ours, "plan_residency", plan_for_h200)
    no_stopwatch.setattr(ours, "Walker", emulator)
    return no_stopwatch
