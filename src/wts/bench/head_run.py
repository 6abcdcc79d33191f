"""How `wts bench head` measures a case: its walks are gated, then all paths are timed in turns."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from wts.bench.cases import HeadCase
from wts.bench.head_table import OURS, Measured
from wts.dtypes import WeightType

if TYPE_CHECKING:
    import torch

    from wts.bench.baselines import Sglang, WalkInputs
    from wts.bench.clock import Cache, CacheControl, Captured, Timing
    from wts.bench.gate import Drawn, Walk
    from wts.heads.cells import AnyHead
    from wts.kernels.resident.plan import ResidencyPlan
    from wts.walk.walker import Walker

__all__ = ["HeadBench", "Ours", "make_noise", "walker_call"]

# Of Domino, timed alone to be subtracted; no path of its own.
_LM_HEAD = "lm_head"
# First tokens that a baseline is compared on, at least; below this share of equal ones it computes
# something else. Two roundings against one move some near-ties: nine in ten agree on random heads.
_AGREEMENT_TOKENS = 16
_LEAST_AGREEMENT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A walk of our own, gated: of the head, or of its probe."""

    walker: Walker
    head: AnyHead

    @property
    def walk(self) -> Walk:
        return cast("Walk", self.walker)

    @property
    def plan(self) -> ResidencyPlan:
        return self.walker.plan


class HeadBench:
    """Holds what is built once and used by several cases: weights, emulators, the flush buffer."""

    def __init__(
        self,
        *,
        paths: tuple[str, ...],
        caches: tuple[Cache, ...],
        rounds: int,
        whole_gate: bool,
        seed: int,
        library: Sglang | None,
        device: str,
        trace_parts: bool = False,
        weights: WeightType = "int8",
    ) -> None:
        from wts.bench.clock import CacheControl

        self._device = device
        self._paths = paths
        self._caches = caches
        self._rounds = rounds
        self._whole_gate = whole_gate
        self._seed = seed
        self._library = library
        self._trace_parts = trace_parts
        self.weights = weights
        self.parts: list[tuple[str, dict[str, float]]] = []
        self._control: CacheControl = CacheControl()
        self._head: AnyHead | None = None
        self._head_key: tuple[object, ...] | None = None
        self._lm_head: torch.Tensor | None = None
        self._emulators: dict[tuple[str, bool], tuple[Walk, int, int]] = {}

    def measure(
        self, case: HeadCase, say: Callable[[str], None]
    ) -> tuple[list[Measured], list[str]]:
        """Gate and time one case.

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
        from wts.bench import baselines
        from wts.bench.clock import capture, time_replays

        head = self._head_of(case)
        ours = {"wts": self._gated(case, "wts", head, say)}
        applicable = [path for path in self._paths if _applies(path, case)]
        if "probe" in applicable:
            from wts.bench.gate import probe_of

            ours["probe"] = self._gated(case, "probe", probe_of(head), say)
        if "wts_exact" in applicable:
            ours["wts_exact"] = self._gated(case, "wts_exact", head, say)
        if "wts_streaming" in applicable:
            ours["wts_streaming"] = self._gated(case, "wts_streaming", head, say)
        shares, faults = self._agreements(
            case, ours, [path for path in applicable if path not in OURS]
        )
        paths = [path for path in applicable if path in OURS or path in shares]
        if not paths:
            return [], faults
        inputs = {steps: self._inputs(case, steps) for steps in case.steps}
        variants = {
            f"{path}@{steps}": self._call(path, inputs[steps], ours)
            for steps in case.steps
            for path in paths
        }
        if case.head == "domino" and "sglang" in paths:
            for steps in case.steps:
                hidden, lm_head = inputs[steps].hidden, inputs[steps].lm_head
                assert hidden is not None
                assert lm_head is not None
                variants[f"{_LM_HEAD}@{steps}"] = partial(
                    baselines.lm_head_product, hidden, lm_head
                )
        rescored: dict[tuple[str, int], tuple[float, float]] = {}
        if "wts_exact" in ours:
            for steps in case.steps:
                rescored["wts_exact", steps] = _rescored(ours["wts_exact"], inputs[steps])
        captured = capture(variants)
        rows = []
        for cache in self._caches:
            timings = time_replays(
                captured, cache=cache, control=self._control, rounds=self._rounds
            )
            for steps in case.steps:
                product = timings.get(f"{_LM_HEAD}@{steps}")
                for path in paths:
                    timing, excluded_us = timings[f"{path}@{steps}"], None
                    if case.head == "domino":
                        excluded_us = 0.0
                        if path == "sglang" and product is not None:
                            excluded_us = product.p50_us
                            timing = _without(timing, excluded_us)
                    rows.append(
                        Measured(
                            point=case.point(steps),
                            rank=case.rank,
                            path=path,
                            cache=cache,
                            timing=timing,
                            agreement=shares.get(path),
                            resident_share=ours[path].plan.resident_share if path in ours else 0.0,
                            plan=ours[path].plan.hash if path in ours else "",
                            weights=self.weights if path in ours else "bf16",
                            hidden_size=None if case.head == "markov" else case.hidden_size,
                            state_size=case.state_size if case.head == "domino" else None,
                            excluded_us=excluded_us,
                            rescored=rescored.get((path, steps)),
                        )
                    )
        for path in paths:
            if path in ours:
                self._check_replays(path, ours, inputs, captured)
        for one in ours.values():
            one.walker.check()
        if self._trace_parts and case.max_steps > 1:
            from wts.bench.parts import traced_parts

            for path, one in ours.items():
                given = _inputs_of(path, inputs[case.max_steps], ours)
                say(f"tracing {path}")
                self.parts.append((f"{case}, {path}", traced_parts(one.walker, given)))
        return rows, faults

    def _gated(self, case: HeadCase, path: str, head: AnyHead, say: Callable[[str], None]) -> Ours:
        """A walk on the device whose tokens were compared with the emulator's.

        Raises:
            WalkFault: they are others.
        """
        from wts.walk.walker import Walker

        plan = self.plan_of(case, head, exact=path == "wts_exact")
        if path == "wts_streaming":
            from wts.kernels.resident.variants import streaming_plan

            plan = streaming_plan(plan)
        # The plan of a Walker may be another: the compiler may want one with fewer registers.
        made = Ours(walker=Walker(head, plan, backend="device"), head=head)
        num_tokens = self.check(case, path, made, whole=self._whole_gate)
        made.walker.check()
        equal = "equal the emulator's" if self.weights == "int8" else "are the only ones allowed"
        say(f"{num_tokens} tokens of {path} {equal}")
        return made

    def plan_of(self, case: HeadCase, head: AnyHead, *, exact: bool = False) -> ResidencyPlan:
        """The plan of a case on this machine."""
        from wts.kernels.planner import plan_residency

        return plan_residency(
            head,
            "LOCAL",
            batch=case.batch,
            steps=case.max_steps,
            sampled=case.sampled,
            weights=self.weights,
            exact=exact,
        )

    def check(self, case: HeadCase, path: str, ours: Ours, *, whole: bool) -> int:
        """Compare a walk with the emulator, or with what any order of sums allows.

        Returns:
            How many tokens were compared.

        Raises:
            WalkFault: some are others.
        """
        from wts.bench import gate

        drawn = self._draw(case, case.max_steps, seed=1)
        if path == "probe":
            drawn = replace(drawn, hidden=None)
        part_of = partial(gate.device_part, ours.walker)
        if self.weights == "int8":
            emulator = self._emulator_of(case, path, ours)
            return gate.check_walk(
                ours.walk, emulator, drawn, whole=whole, make_noise=make_noise, part_of=part_of
            )
        return gate.check_followed(
            ours.walk,
            gate.emulator_of(ours.walker),
            drawn,
            whole=whole,
            make_noise=make_noise,
            part_of=part_of,
        )

    def _head_of(self, case: HeadCase) -> AnyHead:
        from wts.bench import gate

        key = (case.head, case.hidden_size, case.state_size, case.vocab, case.rank)
        if self._head is None or self._head_key != key:
            self._emulators.clear()
            self._head = self._lm_head = None  # the old ones' memory, before there are new ones
            self._head = gate.draw_head(case, device=self._device, seed=self._seed)
            if case.head == "domino":
                self._lm_head = gate.draw_lm_head(case, device=self._device, seed=self._seed + 1)
            self._head_key = key
        return self._head

    def _emulator_of(self, case: HeadCase, path: str, ours: Ours) -> Walk:
        """The emulator of this head that was built last, if its plan is large enough.

        Tokens do not depend on the plan, so one of a larger batch serves; that saves packing the
        weights again on the CPU while the GPU waits. Of a Markov head it packs the weights itself;
        input rows of other heads, which take the CPU minutes, are the device's.
        """
        from wts.bench.gate import EmulatedWalk, emulator_of
        from wts.heads.markov import MarkovHead
        from wts.walk.walker import Walker

        path = "wts" if path == "wts_streaming" else path  # the same head, so the same tokens
        kept = self._emulators.get((path, case.sampled))
        if kept is not None and kept[1] >= case.batch and kept[2] >= case.max_steps:
            return kept[0]
        emulator: Walk
        if isinstance(ours.head, MarkovHead):
            on_cpu = MarkovHead(table=ours.head.table.cpu(), projection=ours.head.projection.cpu())
            emulator = cast("Walk", Walker(on_cpu, ours.plan, backend="emulator"))
        else:
            emulator = EmulatedWalk(emulator_of(ours.walker))
        self._emulators[path, case.sampled] = (emulator, case.batch, case.max_steps)
        return emulator

    def _draw(self, case: HeadCase, steps: int, *, seed: int) -> Drawn:
        from wts.bench import gate

        return gate.draw(
            vocab=case.vocab,
            batch=case.batch,
            steps=steps,
            temperature=case.temperature,
            device=self._device,
            seed=self._seed + seed,
            hidden_size=None if case.head == "markov" else case.hidden_size,
            lm_head=self._lm_head if case.head == "domino" else None,
        )

    def _inputs(self, case: HeadCase, steps: int, *, seed: int = 2) -> WalkInputs:
        import torch

        from wts.bench import gate
        from wts.bench.baselines import WalkInputs

        drawn = self._draw(case, steps, seed=seed)
        return WalkInputs(
            head=self._head_of(case),
            base_logits=drawn.base_logits,
            anchor=drawn.anchor,
            hidden=drawn.hidden,
            lm_head=self._lm_head if case.head == "domino" else None,
            temperatures=drawn.temperatures,
            noise_key=gate.NOISE_KEY,
            noise_offset=torch.zeros(1, dtype=torch.int64, device=self._device),
            logits_out=torch.zeros_like(drawn.base_logits),
        )

    def _call(
        self, path: str, inputs: WalkInputs, ours: Mapping[str, Ours]
    ) -> Callable[[], torch.Tensor]:
        from wts.bench import baselines

        if path in ours:
            return walker_call(_inputs_of(path, inputs, ours), ours[path].walk)
        if path == "step_torch":
            return baselines.step_torch(inputs)
        assert self._library is not None
        if path == "sglang_greedy":
            return baselines.sglang_greedy(inputs, library=self._library)
        if inputs.lm_head is not None:
            return baselines.sglang_domino(inputs, library=self._library)
        return baselines.sglang(inputs, library=self._library)

    def _agreements(
        self, case: HeadCase, ours: Mapping[str, Ours], paths: Sequence[str]
    ) -> tuple[dict[str, float | None], list[str]]:
        """How many first tokens of each baseline are ours, on inputs of one step.

        Of heads with a state: how many second tokens, which a state has a part in, of the requests
        whose first tokens are ours.

        Returns:
            The share for each baseline that may be timed (None where it says nothing), and the
            others with the reason: they raised, or they compute something else.
        """
        import torch

        from wts.bench import gate

        num_draws = -(-_AGREEMENT_TOKENS // case.batch)
        steps = min(2 if case.head in ("rnn", "domino") else 1, case.max_steps)
        draws = [self._inputs(case, steps, seed=3 + draw) for draw in range(num_draws)]

        def first_tokens(path: str) -> torch.Tensor:
            found = []
            for inputs in draws:
                assert inputs.noise_offset is not None
                inputs.noise_offset.zero_()
                found.append(self._call(path, inputs, ours)().cpu())
            return torch.cat(found)

        wanted = first_tokens("wts")
        shares: dict[str, float | None] = {}
        faults = []
        for path in paths:
            try:
                share = gate.agreement(wanted, first_tokens(path))
            except Exception as error:
                # Foreign code on a foreign compiler: its failure must not cost our own times.
                traceback.print_exc()
                faults.append(f"{path}: {type(error).__name__}: {error}")
                continue
            if path == "step_torch" and case.sampled:
                shares[path] = None  # it draws other noise, so its tokens say nothing
            elif share < _LEAST_AGREEMENT:
                faults.append(
                    f"{path}: {share:.0%} of its first tokens are ours, wanted at least "
                    f"{_LEAST_AGREEMENT:.0%}; it computes something else"
                )
            else:
                shares[path] = share
        return shares, faults

    def _check_replays(
        self,
        path: str,
        ours: Mapping[str, Ours],
        inputs: Mapping[int, WalkInputs],
        captured: Mapping[str, Captured],
    ) -> None:
        """After all those replays a graph still gives the tokens of an eager call."""
        from wts.bench import gate

        for steps, given in inputs.items():
            offset = given.noise_offset
            assert offset is not None
            offset.zero_()
            eager = walker_call(_inputs_of(path, given, ours), ours[path].walk)().cpu()
            offset.zero_()
            replayed = captured[f"{path}@{steps}"]
            replayed.graph.replay()
            gate.compare(f"tokens of a replay of {path}, {steps} steps", replayed.output, eager)


def _inputs_of(path: str, inputs: WalkInputs, ours: Mapping[str, Ours]) -> WalkInputs:
    """The inputs of a walk of our own: the probe reads no hidden states."""
    if path != "probe":
        return inputs
    return replace(inputs, head=ours["probe"].head, hidden=None, lm_head=None)


def _rescored(exact: Ours, inputs: WalkInputs) -> tuple[float, float]:
    """Of one walk: the share of its steps that exact logits decided, and rows of one of these."""
    before = exact.walker.report()
    walker_call(inputs, exact.walk)()
    after = exact.walker.report()
    batch, steps, _ = inputs.base_logits.shape
    decided = after.rescored_steps - before.rescored_steps
    rows = after.rescored_rows - before.rescored_rows
    return decided / (batch * steps), rows / max(1, decided)


def _without(timing: Timing, excluded_us: float) -> Timing:
    """A timing less something that was timed alone."""
    samples = tuple(max(0.0, sample - excluded_us) for sample in timing.samples_us)
    return replace(timing, samples_us=samples)


def make_noise(key: int, offset: torch.Tensor) -> object:
    from wts.numerics.gumbel import Noise

    noise: object = Noise(key=key, offset=offset)
    return noise


def walker_call(inputs: WalkInputs, walk: Walk) -> Callable[[], torch.Tensor]:
    """Our walk of these inputs: sampled walks export their step logits, greedy ones keep none."""
    read = {} if inputs.hidden is None else {"hidden": inputs.hidden}
    if inputs.temperatures is None:
        return lambda: walk(inputs.base_logits, inputs.anchor, **read)
    assert inputs.noise_offset is not None
    noise = make_noise(inputs.noise_key, inputs.noise_offset)
    return lambda: walk(
        inputs.base_logits,
        inputs.anchor,
        **read,
        temperatures=inputs.temperatures,
        noise=noise,
        logits_out=inputs.logits_out,
    )


def _applies(path: str, case: HeadCase) -> bool:
    """Whether a path exists for a case.

    A Markov head is its own probe, and the only one that is streamed; no sampled walk is exact.
    SGLang samples no Domino head, and fuses its greedy step for one row of a Markov head only.
    """
    if path == "probe":
        return case.head != "markov"
    if path == "wts_streaming":
        return case.head == "markov"
    if path == "wts_exact":
        return not case.sampled
    if path == "sglang":
        return case.head != "domino" or not case.sampled
    return path != "sglang_greedy" or (
        case.head == "markov" and case.batch == 1 and not case.sampled
    )
