"""How a case is measured: its walks are compared, then all paths are timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from wts.bench import clock
from wts.bench.baselines.inputs import WalkInputs, lm_head_product
from wts.bench.baselines.sglang_steps import Sglang
from wts.bench.clock import Cache, Captured, Timing
from wts.bench.compare import compare
from wts.bench.head.breakdown import traced_breakdown
from wts.bench.head.cases import OURS, HeadCase, applies
from wts.bench.head.material import Material
from wts.bench.head.ours import Ours, Walks, inputs_of, rescored, walker_call
from wts.bench.head.table import Measured
from wts.bench.head.theirs import AGREEMENT_TOKENS, agreements, call
from wts.dtypes import WeightType

__all__ = ["HeadBench"]

# Of Domino, timed alone to be subtracted; no path of its own.
_LM_HEAD = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A case whose walks were compared: what is timed, and what its rows say besides.

    Args:
        case: what is measured.
        ours: walks of our own, also one that is not timed.
        paths: that are timed, in the order of the table.
        inputs: by the number of steps.
        shares: of each path of others, first tokens that are ours; None where that says nothing.
        rescored: by path and steps, of exact walks: see `Measured`.
    """

    case: HeadCase
    ours: Mapping[str, Ours]
    paths: tuple[str, ...]
    inputs: Mapping[int, WalkInputs]
    shares: Mapping[str, float | None]
    rescored: Mapping[tuple[str, int], tuple[float, float]]

    def rows(
        self, cache: Cache, timings: Mapping[str, Timing], weights: WeightType
    ) -> list[Measured]:
        """A row per length and path, of timings of one cache policy."""
        return [
            self._row(path, steps, cache, timings, weights)
            for steps in self.case.steps
            for path in self.paths
        ]

    def _row(
        self,
        path: str,
        steps: int,
        cache: Cache,
        timings: Mapping[str, Timing],
        weights: WeightType,
    ) -> Measured:
        case, plan = self.case, self.ours[path].plan if path in self.ours else None
        timing, excluded_us = timings[f"{path}@{steps}"], None
        if case.head == "domino":
            excluded_us = 0.0
            product = timings.get(f"{_LM_HEAD}@{steps}")
            if path == "sglang" and product is not None:
                excluded_us = product.p50_us
                timing = _without(timing, excluded_us)
        return Measured(
            point=case.point(steps),
            rank=case.rank,
            path=path,
            cache=cache,
            timing=timing,
            agreement=self.shares.get(path),
            resident_share=0.0 if plan is None else plan.placement.resident_share,
            plan="" if plan is None else plan.hash,
            weights="bf16" if plan is None else weights,
            hidden_size=case.hidden_size if case.reads_hidden else None,
            state_size=case.state_size if case.owns_state_size else None,
            excluded_us=excluded_us,
            rescored=self.rescored.get((path, steps)),
        )


class HeadBench:
    """Measures cases; holds what is built once and used by several."""

    def __init__(
        self,
        *,
        paths: tuple[str, ...],
        caches: tuple[Cache, ...],
        rounds: int,
        whole: bool,
        seed: int,
        library: Sglang | None,
        device: str,
        trace: bool = False,
        weights: WeightType = "int8",
    ) -> None:
        """Nothing is built yet, but for the buffer that flushes L2.

        Args:
            paths: that are timed where they apply.
            caches: policies, each timed by itself.
            rounds: samples per point.
            whole: compare all steps of all rows with the emulator.
            seed: of weights and inputs.
            library: SGLang, where one of the paths needs it.
            device: where walks run.
            trace: also say where a step's time goes.
            weights: what our walks keep of the projection.
        """
        self.material = Material(device=device, seed=seed)
        self.walks = Walks(self.material, weights=weights, whole=whole)
        self.rounds = rounds
        self.control = clock.CacheControl()
        self.breakdowns: list[tuple[str, dict[str, float]]] = []
        self._paths = paths
        self._caches = caches
        self._library = library
        self._traced = trace

    def measure(
        self, case: HeadCase, say: Callable[[str], None]
    ) -> tuple[list[Measured], list[str]]:
        """Compare and time one case.

        Args:
            case: what to build.
            say: told what is going on.

        Returns:
            A row per path, length and cache policy; and for each baseline that failed, and was
            therefore not timed, its name and the reason.

        Raises:
            WalkFault: the walk gave other tokens than it must; nothing of this case was timed.
            WalkError: no plan, no kernel, a bad input, a timeout.
        """
        ready, faults = self._compare(case, say)
        if not ready.paths:
            return [], faults
        captured = clock.capture(self._variants(ready))
        rows = []
        for cache in self._caches:
            timings = clock.time_replays(
                captured, cache=cache, control=self.control, rounds=self.rounds
            )
            rows += ready.rows(cache, timings, self.walks.weights)
        for path in ready.paths:
            if path in ready.ours:
                _check_replays(path, ready, captured)
        for one in ready.ours.values():
            one.walker.check()
        if self._traced and case.max_steps > 1:
            self._trace(ready, say)
        return rows, faults

    def _compare(self, case: HeadCase, say: Callable[[str], None]) -> tuple[_Compared, list[str]]:
        """Compare our walks with the emulator, then the step-wise paths with our first tokens."""
        applicable = [path for path in self._paths if applies(path, case)]
        made = [
            "wts",
            *(path for path in ("probe", "wts_exact", "wts_streaming") if path in applicable),
        ]
        ours = {path: self.walks.make(case, path, say) for path in made}
        others = [path for path in applicable if path not in OURS]
        shares, faults = agreements(case, others, self._first_tokens(case, ours))
        paths = tuple(path for path in applicable if path in OURS or path in shares)
        inputs = {steps: self.material.inputs(case, steps) for steps in case.steps if paths}
        found = {}
        if "wts_exact" in ours:
            for steps, given in inputs.items():
                found["wts_exact", steps] = rescored(ours["wts_exact"], given)
        ready = _Compared(
            case=case, ours=ours, paths=paths, inputs=inputs, shares=shares, rescored=found
        )
        return ready, faults

    def _first_tokens(
        self, case: HeadCase, ours: Mapping[str, Ours]
    ) -> Callable[[str], torch.Tensor]:
        """A path -> its tokens of one step, of heads with a state of two, of the same inputs."""
        num_draws = -(-AGREEMENT_TOKENS // case.batch)
        steps = min(2 if case.has_state else 1, case.max_steps)
        draws = [self.material.inputs(case, steps, seed=3 + draw) for draw in range(num_draws)]

        def first_tokens(path: str) -> torch.Tensor:
            found = []
            for inputs in draws:
                assert inputs.noise_offset is not None
                inputs.noise_offset.zero_()
                found.append(self._call(path, inputs, ours)().cpu())
            return torch.cat(found)

        return first_tokens

    def _call(
        self, path: str, inputs: WalkInputs, ours: Mapping[str, Ours]
    ) -> Callable[[], torch.Tensor]:
        if path not in ours:
            return call(path, inputs, self._library)
        return walker_call(inputs_of(path, inputs, ours[path].head), ours[path].walk)

    def _variants(self, ready: _Compared) -> dict[str, Callable[[], torch.Tensor]]:
        """What is timed in turns, by path and steps."""
        variants = {
            f"{path}@{steps}": self._call(path, inputs, ready.ours)
            for steps, inputs in ready.inputs.items()
            for path in ready.paths
        }
        if ready.case.head == "domino" and "sglang" in ready.paths:
            for steps, inputs in ready.inputs.items():
                assert inputs.hidden is not None
                assert inputs.lm_head is not None
                variants[f"{_LM_HEAD}@{steps}"] = partial(
                    lm_head_product, inputs.hidden, inputs.lm_head
                )
        return variants

    def _trace(self, ready: _Compared, say: Callable[[str], None]) -> None:
        """Keep where a step's time goes, of the longest walk."""
        inputs = ready.inputs[ready.case.max_steps]
        for path, one in ready.ours.items():
            say(f"tracing {path}")
            parts = traced_breakdown(one.walker, inputs_of(path, inputs, one.head))
            self.breakdowns.append((f"{ready.case}, {path}", parts))


def _check_replays(path: str, ready: _Compared, captured: Mapping[str, Captured]) -> None:
    """After all those replays a graph still gives the tokens of an eager call."""
    ours = ready.ours[path]
    for steps, given in ready.inputs.items():
        offset = given.noise_offset
        assert offset is not None
        offset.zero_()
        eager = walker_call(inputs_of(path, given, ours.head), ours.walk)().cpu()
        offset.zero_()
        replayed = captured[f"{path}@{steps}"]
        replayed.graph.replay()
        compare(f"tokens of a replay of {path}, {steps} steps", replayed.output, eager)


def _without(timing: Timing, excluded_us: float) -> Timing:
    """A timing less something that was timed alone."""
    samples = tuple(max(0.0, sample - excluded_us) for sample in timing.samples_us)
    return replace(timing, samples_us=samples)
