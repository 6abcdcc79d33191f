"""A stopwatch for work of a few microseconds: CUDA-graph replays of every variant, interleaved.

Each variant is captured once in a CUDA graph, so the cost of launching from Python is not measured,
and the variants take turns within one loop, so a drift of the clocks meets them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from wts.errors import DeviceError, InputError

Cache = Literal["cold", "cold_read", "warm"]
"""What the caches hold when a replay starts.

cold: a 512 MiB buffer was incremented in place, so L2 is full of dirty lines that are not ours.
cold_read: a buffer of that size was only read, so L2 is full of clean lines that are not ours.
warm: the same graph ran just before, and a spin kernel separates the two.
"""

CACHES: tuple[Cache, ...] = get_args(Cache)

DEFAULT_ROUNDS = 60
WARMUPS = 3
FLUSH_BYTES = 512 * 1024 * 1024
# About 110 us: the CPU queues the events and the replay well within it, so that launch latency
# stays outside.
SPIN_CYCLES = 200_000


def quantile(samples: Sequence[float], share: float) -> float:
    """The value below which a share of the samples lies, linear between neighbours.

    Args:
        samples: any order, at least one.
        share: 0..1.

    Raises:
        InputError: no samples, or a share outside 0..1.
    """
    if not samples:
        raise InputError("samples: wanted at least one, found none; time at least one round")
    if not 0.0 <= share <= 1.0:
        raise InputError(f"share: wanted a number in 0..1, found {share}")
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """The line `entry_us + step_us * K` through the times of walks of different length."""

    step_us: float
    entry_us: float


def fit_steps(times_us: Mapping[int, float]) -> StepFit | None:
    """Least squares over K: what one more step costs, and what a walk costs before its first step.

    Args:
        times_us: number of steps -> time of a walk of that length in us.

    Returns:
        The line, or None with fewer than two lengths.
    """
    if len(times_us) < 2:
        return None
    mean_steps = sum(times_us) / len(times_us)
    mean_us = sum(times_us.values()) / len(times_us)
    spread = sum((steps - mean_steps) ** 2 for steps in times_us)
    slope = sum((steps - mean_steps) * (us - mean_us) for steps, us in times_us.items()) / spread
    return StepFit(step_us=slope, entry_us=mean_us - slope * mean_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Every sample of one variant under one cache policy, in the order in which they were taken."""

    name: str
    samples_us: tuple[float, ...]

    @property
    def p50_us(self) -> float:
        return quantile(self.samples_us, 0.50)

    @property
    def p05_us(self) -> float:
        return quantile(self.samples_us, 0.05)

    @property
    def p95_us(self) -> float:
        return quantile(self.samples_us, 0.95)

    @property
    def num_samples(self) -> int:
        return len(self.samples_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One variant as a CUDA graph, and the tensor that its call returned: replays write it anew."""

    graph: torch.cuda.CUDAGraph
    output: torch.Tensor


def capture(
    variants: Mapping[str, Callable[[], torch.Tensor]], *, warmups: int = WARMUPS
) -> dict[str, Captured]:
    """Capture each variant in a graph of its own, after eager calls on the stream that captures.

    Args:
        variants: name -> a call that launches work on the current stream and returns its result.
        warmups: eager calls first, so that no compilation or first launch happens under capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    captured = {}
    for name, launch in variants.items():
        with torch.cuda.stream(stream):
            for _ in range(warmups):
                launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output = launch()
        captured[name] = Captured(graph=graph, output=output)
    torch.cuda.synchronize()
    return captured


def check_gpu() -> None:
    """Refuse to measure without a GPU.

    Raises:
        DeviceError: torch finds none.
    """
    if not torch.cuda.is_available():
        raise DeviceError.mismatch(
            "gpu",
            wanted="an NVIDIA GPU that torch can use",
            found=f"none (torch {torch.__version__})",
            fix="run the benchmark on a machine with one; `wts doctor` says what is missing",
        )


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _elapsed_us(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) * 1000.0


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


class CacheControl:
    """Brings the caches into the state that a policy names.

    Holds the 512 MiB buffer: make one per process.
    """

    def __init__(self) -> None:
        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self._largest = torch.zeros((), dtype=torch.int32, device="cuda")

    def prepare(self, cache: Cache, graph: torch.cuda.CUDAGraph) -> None:
        """Queue what must run right before a timed replay of this graph, on the current stream."""
        if cache == "cold":
            self._buffer.add_(1)
        elif cache == "cold_read":
            torch.amax(self._buffer, dim=0, out=self._largest)
        else:
            graph.replay()
            _spin(SPIN_CYCLES)


def time_replays(
    captured: Mapping[str, Captured],
    *,
    cache: Cache,
    control: CacheControl,
    rounds: int = DEFAULT_ROUNDS,
) -> dict[str, Timing]:
    """Replay all graphs in turn, round after round, with the caches prepared before each replay.

    The start event is recorded behind the flush or spin kernel on the same stream: only the replay
    lies between the events, and the GPU is busy while the CPU queues it. Each round starts with
    another variant.

    Args:
        captured: name -> graph.
        cache: policy applied before every replay.
        control: owns the flush buffer.
        rounds: samples per variant.
    """
    if rounds < 1:
        raise InputError(f"rounds: wanted at least 1, found {rounds}")
    names = list(captured)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        events = []
        for name in names[shift:] + names[:shift]:
            start = _event()
            end = _event()
            control.prepare(cache, captured[name].graph)
            start.record()
            captured[name].graph.replay()
            end.record()
            events.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in events:
            samples[name].append(_elapsed_us(start, end))
    return {name: Timing(name=name, samples_us=tuple(samples[name])) for name in names}


def time_interleaved(
    variants: Mapping[str, Callable[[], torch.Tensor]],
    *,
    cache: Cache = "cold",
    rounds: int = DEFAULT_ROUNDS,
    warmups: int = WARMUPS,
    control: CacheControl | None = None,
) -> dict[str, Timing]:
    """Capture the variants and time their replays: `capture` and `time_replays` in one call."""
    return time_replays(
        capture(variants, warmups=warmups),
        cache=cache,
        control=CacheControl() if control is None else control,
        rounds=rounds,
    )


def measured_clock_mhz(*, cycles: int = 2_000_000) -> float:
    """The SM clock as a spin kernel of known length sees it; tools show the one asked for."""
    _spin(cycles)
    start = _event()
    end = _event()
    start.record()
    _spin(cycles)
    end.record()
    torch.cuda.synchronize()
    return cycles / _elapsed_us(start, end)
