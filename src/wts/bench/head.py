"""`wts bench head`: how long a head takes to walk a block, beside the step-wise paths.

For every case (head, V, r, B, T) the device's tokens are first compared with the emulator's. Then
all paths and lengths are captured in CUDA graphs and replayed in turns, once per cache policy.

Beside a head that reads hidden states stands its probe: the walk of a Markov head of the same
projection whose latent never changes, so the difference is what latents and states cost. SGLang's
Domino rollout begins with the product of hidden states and lm_head, which our walk is given: it
is timed alone in the same run and subtracted.
"""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from wts.bench.arguments import names, numbers, size
from wts.bench.cases import (
    DEFAULT_HIDDEN_SIZE,
    DEFAULT_STATE_SIZE,
    GOALS,
    HeadCase,
    Point,
    grid_cases,
    product_cases,
)
from wts.errors import DeviceError, WalkError
from wts.numbers import HEAD_KINDS, WEIGHT_TYPES, WeightType
from wts.progress import sayer

if TYPE_CHECKING:
    import torch

    from wts.bench.baselines import Sglang, WalkInputs
    from wts.bench.clock import Cache, CacheControl, Captured, Timing
    from wts.bench.gate import Drawn, Walk
    from wts.bench.record import Environment
    from wts.cells import AnyHead
    from wts.plan import ResidencyPlan
    from wts.walk import Walker

__all__ = ["configure", "main", "run"]

PATHS = ("wts", "wts_exact", "probe", "wts_streaming", "step_torch", "sglang", "sglang_greedy")
"""Who can be timed, in the order of the table."""

_OURS = ("wts", "wts_exact", "probe", "wts_streaming")
# Timed only where they are named: nobody would walk like the first, and the second is another walk.
_ASKED_FOR = ("wts_streaming", "wts_exact")
# Of Domino, timed alone to be subtracted; no path of its own.
_LM_HEAD = "lm_head"

_DEVICE = "cuda"
_CACHES = ("cold", "cold_read", "warm")
_ROUNDS = 60
_QUICK_ROUNDS = 20
# First tokens that a baseline is compared on, at least; below this share of equal ones it computes
# something else. Two roundings against one move some near-ties: nine in ten agree on random heads.
_AGREEMENT_TOKENS = 16
_LEAST_AGREEMENT = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench head` to a parser."""
    integers = numbers(int, 1)
    add = parser.add_argument
    add("--grid", action="store_true", help="all points that have a goal; other options filter")
    add(
        "--head",
        type=names(HEAD_KINDS),
        default=("markov",),
        metavar="HEAD,..",
        help=f"some of {', '.join(HEAD_KINDS)}; default markov",
    )
    add(
        "--hidden-size",
        type=size,
        default=DEFAULT_HIDDEN_SIZE,
        metavar="H",
        help=f"of heads that read hidden states, default {DEFAULT_HIDDEN_SIZE}",
    )
    add(
        "--state-size",
        type=size,
        default=DEFAULT_STATE_SIZE,
        metavar="G",
        help=f"of Domino heads, a multiple of 32, default {DEFAULT_STATE_SIZE}",
    )
    add("--vocab", type=integers, metavar="V,..", help="default 151936")
    add("--rank", type=integers, metavar="R,..", help="default 256")
    add("--batch", type=integers, metavar="B,..", help="default 1,4")
    add("--steps", type=integers, metavar="K,..", help="default 1,7,16")
    add("--temperature", type=numbers(float, 0), metavar="T,..", help="default 0")
    add("--cache", type=names(_CACHES), metavar="C,..", help="default cold,warm; grid: cold")
    add(
        "--paths",
        type=names(PATHS),
        metavar="P,..",
        help="default: all that this machine has, without wts_streaming, a walk with nothing "
        "resident, and wts_exact, whose tokens are the unquantised head's",
    )
    add(
        "--weights",
        choices=WEIGHT_TYPES,
        default="int8",
        help="what our walks keep of the projection, default int8; those of bf16 are compared "
        "wherever sums in any order give one token",
    )
    add("--rounds", type=int, metavar="N", help=f"samples per point, default {_ROUNDS}")
    add("--quick", action="store_true", help=f"{_QUICK_ROUNDS} samples, L2 cold only")
    add(
        "--gate",
        choices=("short", "whole"),
        default="short",
        help="steps compared with the emulator before timing: the first few and some whole rows of "
        "large batches (short), or all of all rows (whole, slow); there is no way to compare none",
    )
    add("--seed", type=int, default=0, help="of weights and inputs")
    add(
        "--parts",
        action="store_true",
        help="also say where a step's time goes, from a traced build of the kernel (not recorded)",
    )
    add("--out", type=Path, metavar="DIR", help="append records to DIR/<gpu>/head.jsonl")
    add(
        "--commit",
        metavar="NAME",
        help="commit to record where the sources have no repository: the output of "
        "`git describe --always --dirty --abbrev=40`",
    )


def cases_of(args: argparse.Namespace) -> tuple[HeadCase, ...]:
    """The cases that the options ask for."""
    if args.grid:
        return grid_cases(
            heads=args.head,
            hidden_size=args.hidden_size,
            state_size=args.state_size,
            vocabs=args.vocab,
            batches=args.batch,
            temperatures=args.temperature,
            steps=args.steps,
        )
    return product_cases(
        heads=args.head,
        hidden_size=args.hidden_size,
        state_size=args.state_size,
        vocabs=args.vocab or (151_936,),
        ranks=args.rank or (256,),
        batches=args.batch or (1, 4),
        temperatures=args.temperature or (0.0,),
        steps=args.steps or (1, 7, 16),
    )


def caches_of(args: argparse.Namespace) -> tuple[Cache, ...]:
    """The cache policies that the options ask for."""
    if args.cache is not None:
        chosen: tuple[Cache, ...] = args.cache
        return chosen
    return ("cold",) if args.grid or args.quick else ("cold", "warm")


def rounds_of(args: argparse.Namespace) -> int:
    """Samples per point."""
    if args.rounds is not None:
        return int(args.rounds)
    return _QUICK_ROUNDS if args.quick else _ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the table, and what its record says besides the times.

    `excluded_us` is what was subtracted from the times, None where nothing is excluded. `rescored`,
    of an exact walk: the share of steps that exact logits decided, and rows of one of these.
    """

    point: Point
    rank: int
    path: str
    cache: Cache
    timing: Timing
    agreement: float | None
    resident_share: float
    plan: str
    weights: WeightType = "int8"
    hidden_size: int | None = None
    state_size: int | None = None
    excluded_us: float | None = None
    rescored: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ours:
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
            case, ours, [path for path in applicable if path not in _OURS]
        )
        paths = [path for path in applicable if path in _OURS or path in shares]
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

    def _gated(self, case: HeadCase, path: str, head: AnyHead, say: Callable[[str], None]) -> _Ours:
        """A walk on the device whose tokens were compared with the emulator's.

        Raises:
            WalkFault: they are others.
        """
        from wts.walk import Walker

        plan = self.plan_of(case, head, exact=path == "wts_exact")
        if path == "wts_streaming":
            from wts.variants import streaming_plan

            plan = streaming_plan(plan)
        # The plan of a Walker may be another: the compiler may want one with fewer registers.
        made = _Ours(walker=Walker(head, plan, backend="device"), head=head)
        num_tokens = self.check(case, path, made, whole=self._whole_gate)
        made.walker.check()
        equal = "equal the emulator's" if self.weights == "int8" else "are the only ones allowed"
        say(f"{num_tokens} tokens of {path} {equal}")
        return made

    def plan_of(self, case: HeadCase, head: AnyHead, *, exact: bool = False) -> ResidencyPlan:
        """The plan of a case on this machine."""
        from wts.planner import plan_residency

        return plan_residency(
            head,
            "LOCAL",
            batch=case.batch,
            steps=case.max_steps,
            sampled=case.sampled,
            weights=self.weights,
            exact=exact,
        )

    def check(self, case: HeadCase, path: str, ours: _Ours, *, whole: bool) -> int:
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
                ours.walk, emulator, drawn, whole=whole, make_noise=_make_noise, part_of=part_of
            )
        return gate.check_followed(
            ours.walk,
            gate.emulator_of(ours.walker),
            drawn,
            whole=whole,
            make_noise=_make_noise,
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

    def _emulator_of(self, case: HeadCase, path: str, ours: _Ours) -> Walk:
        """The emulator of this head that was built last, if its plan is large enough.

        Tokens do not depend on the plan, so one of a larger batch serves; that saves packing the
        weights again on the CPU while the GPU waits. Of a Markov head it packs the weights itself;
        input rows of other heads, which take the CPU minutes, are the device's.
        """
        from wts.bench.gate import EmulatedWalk, emulator_of
        from wts.heads import MarkovHead
        from wts.walk import Walker

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
        self, path: str, inputs: WalkInputs, ours: Mapping[str, _Ours]
    ) -> Callable[[], torch.Tensor]:
        from wts.bench import baselines

        if path in ours:
            return _walker_call(_inputs_of(path, inputs, ours), ours[path].walk)
        if path == "step_torch":
            return baselines.step_torch(inputs)
        assert self._library is not None
        if path == "sglang_greedy":
            return baselines.sglang_greedy(inputs, library=self._library)
        if inputs.lm_head is not None:
            return baselines.sglang_domino(inputs, library=self._library)
        return baselines.sglang(inputs, library=self._library)

    def _agreements(
        self, case: HeadCase, ours: Mapping[str, _Ours], paths: Sequence[str]
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
        ours: Mapping[str, _Ours],
        inputs: Mapping[int, WalkInputs],
        captured: Mapping[str, Captured],
    ) -> None:
        """After all those replays a graph still gives the tokens of an eager call."""
        from wts.bench import gate

        for steps, given in inputs.items():
            offset = given.noise_offset
            assert offset is not None
            offset.zero_()
            eager = _walker_call(_inputs_of(path, given, ours), ours[path].walk)().cpu()
            offset.zero_()
            replayed = captured[f"{path}@{steps}"]
            replayed.graph.replay()
            gate.compare(f"tokens of a replay of {path}, {steps} steps", replayed.output, eager)


def _inputs_of(path: str, inputs: WalkInputs, ours: Mapping[str, _Ours]) -> WalkInputs:
    """The inputs of a walk of our own: the probe reads no hidden states."""
    if path != "probe":
        return inputs
    return replace(inputs, head=ours["probe"].head, hidden=None, lm_head=None)


def _rescored(exact: _Ours, inputs: WalkInputs) -> tuple[float, float]:
    """Of one walk: the share of its steps that exact logits decided, and rows of one of these."""
    before = exact.walker.report()
    _walker_call(inputs, exact.walk)()
    after = exact.walker.report()
    batch, steps, _ = inputs.base_logits.shape
    decided = after.rescored_steps - before.rescored_steps
    rows = after.rescored_rows - before.rescored_rows
    return decided / (batch * steps), rows / max(1, decided)


def _without(timing: Timing, excluded_us: float) -> Timing:
    """A timing less something that was timed alone."""
    samples = tuple(max(0.0, sample - excluded_us) for sample in timing.samples_us)
    return replace(timing, samples_us=samples)


def _make_noise(key: int, offset: torch.Tensor) -> object:
    from wts.noise import Noise  # type: ignore[import-not-found, unused-ignore]

    noise: object = Noise(key=key, offset=offset)
    return noise


def _walker_call(inputs: WalkInputs, walk: Walk) -> Callable[[], torch.Tensor]:
    """Our walk of these inputs: sampled walks export their step logits, greedy ones keep none."""
    read = {} if inputs.hidden is None else {"hidden": inputs.hidden}
    if inputs.temperatures is None:
        return lambda: walk(inputs.base_logits, inputs.anchor, **read)
    assert inputs.noise_offset is not None
    noise = _make_noise(inputs.noise_key, inputs.noise_offset)
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


def ratio_path(rows: Sequence[Measured]) -> str:
    """What the ratios of the table are taken to."""
    return "sglang" if any(row.path == "sglang" for row in rows) else "step_torch"


def table(rows: Sequence[Measured], *, gpu: str) -> str:
    """The results as text: one line per point, then one per fitted line over K.

    Goals are printed beside ratios only where they were set: int8 weights, L2 cold, r = 256, a
    ratio to SGLang on an H200. Beside the slope of a walk is its ratio to that of its probe.
    """
    from wts.bench.clock import fit_steps

    against = ratio_path(rows)
    base = {
        (row.point, row.rank, row.cache): row.timing.p50_us for row in rows if row.path == against
    }
    lines = [
        f"{'head':<6} {'V':>7} {'r':>3} {'B':>3} {'K':>3} {'T':>4} {'cache':<9} {'path':<13} "
        f"{'p50 us':>8} {'p05':>8} {'p95':>8} {f'{against} / path':>18} {'goal':>6} {'agree':>6}"
    ]
    for row in rows:
        point, timing = row.point, row.timing
        reference = base.get((point, row.rank, row.cache))
        ratio = (
            "" if reference is None or timing.p50_us <= 0 else f"{reference / timing.p50_us:.2f} x"
        )
        goal = GOALS.get(point)
        ours = row.path == "wts" and row.weights == "int8"
        shown = ours and row.cache == "cold" and row.rank == 256 and gpu == "h200"
        goal_text = f"{goal:g} x" if goal is not None and shown and against == "sglang" else ""
        agree = "" if row.agreement is None else f"{row.agreement:.0%}"
        lines.append(
            f"{point.head:<6} {point.vocab:>7} {row.rank:>3} {point.batch:>3} {point.steps:>3} "
            f"{point.temperature:>4g} {row.cache:<9} {row.path:<13} {timing.p50_us:>8.1f} "
            f"{timing.p05_us:>8.1f} {timing.p95_us:>8.1f} {ratio:>18} {goal_text:>6} {agree:>6}"
        )
    groups: dict[tuple[str, int, int, int, float, str, str], dict[int, float]] = {}
    for row in rows:
        point = row.point
        key = (point.head, point.vocab, row.rank, point.batch, point.temperature, row.cache)
        groups.setdefault((*key, row.path), {})[point.steps] = row.timing.p50_us
    fits = {key: fit for key, times in groups.items() if (fit := fit_steps(times)) is not None}
    lines.append("")
    lines.append(
        f"{'head':<6} {'V':>7} {'r':>3} {'B':>3} {'T':>4} {'cache':<9} {'path':<13} "
        f"{'us a step':>10} {'entry us':>9} {'of probe':>9}"
    )
    for group, fit in fits.items():
        head, vocab, rank, batch, temperature, cache, path = group
        probe = fits.get((*group[:-1], "probe"))
        share = ""
        if probe is not None and probe.step_us > 0 and path == "wts":
            share = f"{fit.step_us / probe.step_us:.2f} x"
        lines.append(
            f"{head:<6} {vocab:>7} {rank:>3} {batch:>3} {temperature:>4g} {cache:<9} {path:<13} "
            f"{fit.step_us:>10.3f} {fit.entry_us:>9.2f} {share:>9}".rstrip()
        )
    decided = {row.point: row.rescored for row in rows if row.rescored is not None}
    lines += [""] if decided else []
    for point, (part, count) in decided.items():
        lines.append(
            f"{point.head}, V={point.vocab} B={point.batch} K={point.steps}: exact logits decided "
            f"{part:.1%} of the exact walk's steps, of {count:.1f} rows each"
        )
    excluded = {
        (row.point, row.cache): row.excluded_us
        for row in rows
        if row.excluded_us is not None and row.excluded_us > 0
    }
    if excluded:
        lines.append("")
    for (point, cache), us in excluded.items():
        lines.append(
            f"domino, V={point.vocab} B={point.batch} K={point.steps}, L2 {cache}: the product of "
            f"hidden states and lm_head, {us:.1f} us alone, is subtracted from sglang"
        )
    return "\n".join(lines)


def _record(row: Measured, *, run_id: str, environment: Environment) -> dict[str, object]:
    from wts.bench import record

    sizes = {"H": row.hidden_size, "G": row.state_size, "excluded_us": row.excluded_us}
    if row.rescored is not None:
        sizes |= dict(zip(("rescored_share", "rescored_rows"), row.rescored, strict=True))
    return record.build(
        environment,
        bench="head",
        run_id=run_id,
        path=row.path,
        head=row.point.head,
        weights=row.weights if row.path in _OURS else "bf16",
        V=row.point.vocab,
        r=row.rank,
        B=row.point.batch,
        K=row.point.steps,
        T=row.point.temperature,
        cache=row.cache,
        p50_us=round(row.timing.p50_us, 3),
        p05_us=round(row.timing.p05_us, 3),
        p95_us=round(row.timing.p95_us, 3),
        n=row.timing.num_samples,
        inputs="random",
        excludes="" if row.excluded_us is None else "lm_head",
        resident_share=row.resident_share,
        plan=row.plan,
        first_token_agreement=row.agreement,
        **{name: value for name, value in sizes.items() if value is not None},
    )


def _choose_paths(
    wanted: tuple[str, ...] | None, say: Callable[[str], None]
) -> tuple[tuple[str, ...], Sglang | None]:
    """The paths to time, and SGLang if one of them needs it.

    Raises:
        DeviceError: SGLang was asked for by name and cannot be had.
    """
    from wts.bench.baselines import load_sglang

    paths = tuple(path for path in PATHS if path not in _ASKED_FOR) if wanted is None else wanted
    if not any(path.startswith("sglang") for path in paths):
        return paths, None
    say("importing SGLang")
    try:
        return paths, load_sglang()
    except DeviceError as error:
        if wanted is not None:
            raise
        say(f"paths sglang and sglang_greedy are left out. {error}")
        return tuple(path for path in paths if not path.startswith("sglang")), None


def run(args: argparse.Namespace) -> int:
    """Measure what the parsed options ask for.

    Returns:
        0; 1 if a case or a baseline failed its gate or could not run; 2 if nothing can be measured.
    """
    say = sayer()

    cases = cases_of(args)
    if not cases:
        print("wts bench head: no point of the grid is left by these options", file=sys.stderr)
        return 2
    try:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError.mismatch(
                "gpu",
                wanted="an NVIDIA GPU that torch can use",
                found=f"none (torch {torch.__version__})",
                fix="run the benchmark on a machine with one; `wts doctor` says what is missing",
            )
        paths, library = _choose_paths(args.paths, say)
        # Each capture collects garbage; what the imports above left need not be searched each time.
        gc.freeze()
        from wts.bench import record
        from wts.bench.gate import WalkFault

        environment = record.capture_environment(described=args.commit)
        bench = HeadBench(
            paths=paths,
            caches=caches_of(args),
            rounds=rounds_of(args),
            whole_gate=args.gate == "whole",
            seed=args.seed,
            library=library,
            device=_DEVICE,
            trace_parts=args.parts,
            weights=args.weights,
        )
    except WalkError as error:
        print(f"wts bench head: {error}", file=sys.stderr)
        return 2
    run_id = record.new_run_id()
    say(f"run {run_id} on {environment.gpu}: {len(cases)} cases, paths {', '.join(paths)}")
    rows: list[Measured] = []
    failed: list[str] = []
    for number, case in enumerate(cases, start=1):
        name = f"{number}/{len(cases)} {case}"
        say(name)
        try:
            measured, faults = bench.measure(case, say)
        except Exception as error:
            # The cases measured so far are kept, whatever happens to this one.
            if not isinstance(error, (WalkError, WalkFault)):
                traceback.print_exc()
            measured, faults = [], [f"not timed: {type(error).__name__}: {error}"]
        for fault in faults:
            failed.append(f"{case}, {fault}")
            say(f"FAILED {fault}")
        for row in measured:
            if args.out is not None:
                record.append(args.out, _record(row, run_id=run_id, environment=environment))
        rows += measured
    if rows:
        print(table(rows, gpu=environment.gpu))
    if bench.parts:
        from wts.bench.parts import parts_text

        print(f"\n{parts_text(bench.parts)}")
    for text in failed:
        print(f"FAILED {text}")
    if args.out is None:
        say("no record was written; pass --out DIR to keep this run")
    say(f"done, {len(rows)} points, {len(failed)} failures")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="wts bench head", description=__doc__)
    configure(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
