"""`wts bench head`: how long a Markov head takes to walk a block, beside the step-wise paths.

For every case (V, r, B, T) the device's tokens are first compared with the emulator's. Then all
paths and lengths are captured in CUDA graphs and replayed in turns, once per cache policy.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from wts.bench.cases import GOALS, HeadCase, Point, grid_cases, product_cases
from wts.errors import DeviceError, WalkError

if TYPE_CHECKING:
    import torch

    from wts.bench.baselines import Sglang, WalkInputs
    from wts.bench.clock import Cache, CacheControl, Captured, Timing
    from wts.bench.gate import Walk
    from wts.bench.record import Environment
    from wts.heads import MarkovHead
    from wts.plan import ResidencyPlan

__all__ = ["configure", "main", "run"]

PATHS = ("wts", "step_torch", "sglang", "sglang_greedy")
"""Who can be timed, in the order of the table."""

_DEVICE = "cuda"
_CACHES = ("cold", "cold_read", "warm")
_ROUNDS = 60
_QUICK_ROUNDS = 20
# First tokens that a baseline is compared on, at least; below this share of equal ones it computes
# something else. Two roundings against one move some near-ties: nine in ten agree on random heads.
_AGREEMENT_TOKENS = 16
_LEAST_AGREEMENT = 0.5

_T = TypeVar("_T", int, float)


def _numbers(kind: type[_T], least: float) -> Callable[[str], tuple[_T, ...]]:
    """An argument type: numbers separated by commas, none below the least."""

    def parse(text: str) -> tuple[_T, ...]:
        try:
            values = tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"wanted {kind.__name__} numbers separated by commas, got {text!r}"
            ) from None
        if any(not math.isfinite(value) or value < least for value in values):
            raise argparse.ArgumentTypeError(f"wanted numbers of at least {least}, got {text!r}")
        return tuple(dict.fromkeys(values))

    return parse


def _names(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument type: some of the choices, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        values = tuple(dict.fromkeys(text.split(",")))
        for value in values:
            if value not in choices:
                raise argparse.ArgumentTypeError(
                    f"wanted some of {','.join(choices)}, got {value!r}"
                )
        return values

    return parse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts bench head` to a parser."""
    integers = _numbers(int, 1)
    add = parser.add_argument
    add("--grid", action="store_true", help="all points that have a goal; other options filter")
    add("--vocab", type=integers, metavar="V,..", help="default 151936")
    add("--rank", type=integers, metavar="R,..", help="default 256")
    add("--batch", type=integers, metavar="B,..", help="default 1,4")
    add("--steps", type=integers, metavar="K,..", help="default 1,7,16")
    add("--temperature", type=_numbers(float, 0), metavar="T,..", help="default 0")
    add("--cache", type=_names(_CACHES), metavar="C,..", help="default cold,warm; grid: cold")
    add("--paths", type=_names(PATHS), metavar="P,..", help="default: all that this machine has")
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
            vocabs=args.vocab,
            batches=args.batch,
            temperatures=args.temperature,
            steps=args.steps,
        )
    return product_cases(
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
    """One row of the table, and what its record says besides the times."""

    point: Point
    rank: int
    path: str
    cache: Cache
    timing: Timing
    agreement: float | None
    resident_share: float
    plan: str


def _progress(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:6.1f} s] {text}", file=sys.stderr, flush=True)


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
    ) -> None:
        from wts.bench.clock import CacheControl

        self._device = device
        self._paths = paths
        self._caches = caches
        self._rounds = rounds
        self._whole_gate = whole_gate
        self._seed = seed
        self._library = library
        self._control: CacheControl = CacheControl()
        self._head: MarkovHead | None = None
        self._head_key: tuple[int, int] | None = None
        self._emulators: dict[bool, tuple[Walk, int, int]] = {}

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
        from wts.bench import gate
        from wts.bench.clock import capture, time_replays
        from wts.planner import plan_residency
        from wts.walk import Walker

        head = self._head_of(case)
        plan = plan_residency(
            head, "LOCAL", batch=case.batch, steps=case.max_steps, sampled=case.sampled
        )
        walker = Walker(head, plan, backend="device")
        plan = walker.plan  # the compiler may have wanted one with fewer registers
        walk = cast("Walk", walker)
        drawn = gate.draw(
            vocab=case.vocab,
            batch=case.batch,
            steps=case.max_steps,
            temperature=case.temperature,
            device=self._device,
            seed=self._seed + 1,
        )
        emulator = self._emulator_of(case, head, plan)
        num_tokens = gate.check_walk(
            walk, emulator, drawn, whole=self._whole_gate, make_noise=_make_noise
        )
        walker.check()
        say(f"{num_tokens} tokens equal the emulator's")

        applicable = [path for path in self._paths if _applies(path, case)]
        shares, faults = self._agreements(
            case, head, walk, [path for path in applicable if path != "wts"]
        )
        paths = [path for path in applicable if path == "wts" or path in shares]
        inputs = {steps: self._inputs(case, head, steps) for steps in case.steps}
        captured = capture(
            {
                f"{path}@{steps}": self._call(path, inputs[steps], walk)
                for steps in case.steps
                for path in paths
            }
        )
        rows = []
        for cache in self._caches:
            timings = time_replays(
                captured, cache=cache, control=self._control, rounds=self._rounds
            )
            rows += [
                Measured(
                    point=case.point(steps),
                    rank=case.rank,
                    path=path,
                    cache=cache,
                    timing=timings[f"{path}@{steps}"],
                    agreement=shares.get(path),
                    resident_share=plan.resident_share if path == "wts" else 0.0,
                    plan=plan.hash if path == "wts" else "",
                )
                for steps in case.steps
                for path in paths
            ]
        if "wts" in paths:
            self._check_replays(case, walk, inputs, captured)
        walker.check()
        return rows, faults

    def _head_of(self, case: HeadCase) -> MarkovHead:
        from wts.bench import gate
        from wts.heads import MarkovHead

        key = (case.vocab, case.rank)
        if self._head is None or self._head_key != key:
            self._emulators.clear()
            table, projection = gate.draw_weights(
                vocab=case.vocab, rank=case.rank, device=self._device, seed=self._seed
            )
            self._head = MarkovHead(table=table, projection=projection)
            self._head_key = key
        return self._head

    def _emulator_of(self, case: HeadCase, head: MarkovHead, plan: ResidencyPlan) -> Walk:
        """The emulator of this head that was built last, if its plan is large enough.

        Tokens do not depend on the plan, so one of a larger batch serves; that saves packing the
        weights again on the CPU while the GPU waits.
        """
        from wts.heads import MarkovHead
        from wts.walk import Walker

        kept = self._emulators.get(case.sampled)
        if kept is not None and kept[1] >= case.batch and kept[2] >= case.max_steps:
            return kept[0]
        on_cpu = MarkovHead(table=head.table.cpu(), projection=head.projection.cpu())
        emulator = cast("Walk", Walker(on_cpu, plan, backend="emulator"))
        self._emulators[case.sampled] = (emulator, case.batch, case.max_steps)
        return emulator

    def _inputs(self, case: HeadCase, head: MarkovHead, steps: int, *, seed: int = 2) -> WalkInputs:
        import torch

        from wts.bench import gate
        from wts.bench.baselines import WalkInputs

        drawn = gate.draw(
            vocab=case.vocab,
            batch=case.batch,
            steps=steps,
            temperature=case.temperature,
            device=self._device,
            seed=self._seed + seed,
        )
        return WalkInputs(
            table=head.table,
            projection=head.projection,
            base_logits=drawn.base_logits,
            anchor=drawn.anchor,
            temperatures=drawn.temperatures,
            noise_key=gate.NOISE_KEY,
            noise_offset=torch.zeros(1, dtype=torch.int64, device=self._device),
            logits_out=torch.zeros_like(drawn.base_logits),
        )

    def _call(self, path: str, inputs: WalkInputs, walk: Walk) -> Callable[[], torch.Tensor]:
        from wts.bench import baselines

        if path == "wts":
            return _walker_call(inputs, walk)
        if path == "step_torch":
            return baselines.step_torch(inputs)
        assert self._library is not None
        if path == "sglang":
            return baselines.sglang(inputs, library=self._library)
        return baselines.sglang_greedy(inputs, library=self._library)

    def _agreements(
        self, case: HeadCase, head: MarkovHead, walk: Walk, paths: Sequence[str]
    ) -> tuple[dict[str, float | None], list[str]]:
        """How many first tokens of each baseline are ours, on inputs of one step.

        Returns:
            The share for each baseline that may be timed (None where it says nothing), and the
            others with the reason: they raised, or they compute something else.
        """
        import torch

        from wts.bench import gate

        num_draws = -(-_AGREEMENT_TOKENS // case.batch)
        draws = [self._inputs(case, head, 1, seed=3 + draw) for draw in range(num_draws)]

        def first_tokens(path: str) -> torch.Tensor:
            found = []
            for inputs in draws:
                assert inputs.noise_offset is not None
                inputs.noise_offset.zero_()
                found.append(self._call(path, inputs, walk)().cpu())
            return torch.cat(found)

        ours = first_tokens("wts")
        shares: dict[str, float | None] = {}
        faults = []
        for path in paths:
            try:
                share = gate.agreement(ours, first_tokens(path))
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
        case: HeadCase,
        walk: Walk,
        inputs: dict[int, WalkInputs],
        captured: dict[str, Captured],
    ) -> None:
        """After all those replays a graph still gives the tokens of an eager call."""
        from wts.bench import gate

        for steps in case.steps:
            offset = inputs[steps].noise_offset
            assert offset is not None
            offset.zero_()
            eager = _walker_call(inputs[steps], walk)().cpu()
            offset.zero_()
            captured[f"wts@{steps}"].graph.replay()
            gate.compare(
                f"tokens of a replay, {steps} steps", captured[f"wts@{steps}"].output, eager
            )


def _make_noise(key: int, offset: torch.Tensor) -> object:
    from wts.noise import Noise  # type: ignore[import-not-found, unused-ignore]

    noise: object = Noise(key=key, offset=offset)
    return noise


def _walker_call(inputs: WalkInputs, walk: Walk) -> Callable[[], torch.Tensor]:
    """Our walk of these inputs: sampled walks export their step logits, greedy ones keep none."""
    if inputs.temperatures is None:
        return lambda: walk(inputs.base_logits, inputs.anchor)
    assert inputs.noise_offset is not None
    noise = _make_noise(inputs.noise_key, inputs.noise_offset)
    return lambda: walk(
        inputs.base_logits,
        inputs.anchor,
        temperatures=inputs.temperatures,
        noise=noise,
        logits_out=inputs.logits_out,
    )


def _applies(path: str, case: HeadCase) -> bool:
    """Whether a path exists for a case: SGLang fuses its greedy step for one row only."""
    return path != "sglang_greedy" or (case.batch == 1 and not case.sampled)


def ratio_path(rows: Sequence[Measured]) -> str:
    """What the ratios of the table are taken to."""
    return "sglang" if any(row.path == "sglang" for row in rows) else "step_torch"


def table(rows: Sequence[Measured], *, gpu: str) -> str:
    """The results as text: one line per point, then one per fitted line over K.

    Goals are printed beside ratios only where they were set: L2 cold, r = 256, a ratio to SGLang on
    an H200.
    """
    from wts.bench.clock import fit_steps

    against = ratio_path(rows)
    base = {
        (row.point, row.rank, row.cache): row.timing.p50_us for row in rows if row.path == against
    }
    lines = [
        f"{'V':>7} {'r':>3} {'B':>3} {'K':>3} {'T':>4} {'cache':<9} {'path':<13} "
        f"{'p50 us':>8} {'p05':>8} {'p95':>8} {f'{against} / path':>18} {'goal':>6} {'agree':>6}"
    ]
    for row in rows:
        point, timing = row.point, row.timing
        reference = base.get((point, row.rank, row.cache))
        ratio = "" if reference is None else f"{reference / timing.p50_us:.2f} x"
        goal = GOALS.get(point)
        shown = row.path == "wts" and row.cache == "cold" and row.rank == 256 and gpu == "h200"
        goal_text = f"{goal:g} x" if goal is not None and shown and against == "sglang" else ""
        agree = "" if row.agreement is None else f"{row.agreement:.0%}"
        lines.append(
            f"{point.vocab:>7} {row.rank:>3} {point.batch:>3} {point.steps:>3} "
            f"{point.temperature:>4g} {row.cache:<9} {row.path:<13} {timing.p50_us:>8.1f} "
            f"{timing.p05_us:>8.1f} {timing.p95_us:>8.1f} {ratio:>18} {goal_text:>6} {agree:>6}"
        )
    groups: dict[tuple[int, int, int, float, str, str], dict[int, float]] = {}
    for row in rows:
        point = row.point
        key = (point.vocab, row.rank, point.batch, point.temperature, row.cache, row.path)
        groups.setdefault(key, {})[point.steps] = row.timing.p50_us
    lines.append("")
    lines.append(
        f"{'V':>7} {'r':>3} {'B':>3} {'T':>4} {'cache':<9} {'path':<13} "
        f"{'us a step':>10} {'entry us':>9}"
    )
    for (vocab, rank, batch, temperature, cache, path), times in groups.items():
        fit = fit_steps(times)
        if fit is not None:
            lines.append(
                f"{vocab:>7} {rank:>3} {batch:>3} {temperature:>4g} {cache:<9} {path:<13} "
                f"{fit.step_us:>10.3f} {fit.entry_us:>9.2f}"
            )
    return "\n".join(lines)


def _record(row: Measured, *, run_id: str, environment: Environment) -> dict[str, object]:
    from wts.bench import record

    return record.build(
        environment,
        bench="head",
        run_id=run_id,
        path=row.path,
        head="markov",
        weights="int8" if row.path == "wts" else "bf16",
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
        excludes="",
        resident_share=row.resident_share,
        plan=row.plan,
        first_token_agreement=row.agreement,
    )


def _choose_paths(
    wanted: tuple[str, ...] | None, say: Callable[[str], None]
) -> tuple[tuple[str, ...], Sglang | None]:
    """The paths to time, and SGLang if one of them needs it.

    Raises:
        DeviceError: SGLang was asked for by name and cannot be had.
    """
    from wts.bench.baselines import load_sglang

    paths = PATHS if wanted is None else wanted
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
    started = time.monotonic()

    def say(text: str) -> None:
        _progress(started, text)

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
