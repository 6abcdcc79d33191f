"""A run of `wts bench head`: case after case is measured, shown and recorded."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wts.bench import record
from wts.bench.clock import Cache, check_gpu
from wts.bench.compare import WalkFault
from wts.bench.head import theirs
from wts.bench.head.breakdown import breakdown_text
from wts.bench.head.cases import HeadCase
from wts.bench.head.session import HeadBench
from wts.bench.head.table import Measured, record_of, table
from wts.bench.record import Environment
from wts.dtypes import WeightType
from wts.errors import WalkError

__all__ = ["DEVICE", "Options", "Run"]

DEVICE = "cuda"
"""Where walks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for.

    Args:
        cases: at least one.
        paths: that are timed; None: all that this machine has, without those that nobody would
            walk like.
        caches: policies, each timed by itself.
        rounds: samples per point.
        whole: compare all steps of all rows with the emulator before timing.
        trace: also say where a step's time goes.
        weights: what our walks keep of the projection.
        seed: of weights and inputs.
        out: root of the results; None: nothing is recorded.
        commit: see `record.source_version`.
    """

    cases: tuple[HeadCase, ...]
    paths: tuple[str, ...] | None
    caches: tuple[Cache, ...]
    rounds: int
    whole: bool
    trace: bool
    weights: WeightType
    seed: int
    out: Path | None
    commit: str | None


class Run:
    """Measures what was asked for."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        """Look at the machine.

        Args:
            options: what is asked for.
            say: told what is going on.

        Raises:
            DeviceError: there is no GPU, or SGLang was asked for by name and cannot be had.
        """
        check_gpu()
        self._options = options
        self._say = say
        self._paths, library = theirs.choose_paths(options.paths, say)
        # Each capture collects garbage; what the imports left need not be searched each time.
        gc.freeze()
        self._environment: Environment = record.capture_environment(described=options.commit)
        self._bench = HeadBench(
            paths=self._paths,
            caches=options.caches,
            rounds=options.rounds,
            whole=options.whole,
            seed=options.seed,
            library=library,
            device=DEVICE,
            trace=options.trace,
            weights=options.weights,
        )

    def measure(self) -> int:
        """Measure all cases, and print what was found.

        Returns:
            0; 1 if a case or a baseline failed its comparison or could not run.
        """
        cases, out, say = self._options.cases, self._options.out, self._say
        gpu, run_id = self._environment.gpu, record.new_run_id()
        say(f"run {run_id} on {gpu}: {len(cases)} cases, paths {', '.join(self._paths)}")
        rows: list[Measured] = []
        failed: list[str] = []
        for number, case in enumerate(cases, start=1):
            say(f"{number}/{len(cases)} {case}")
            measured, faults = self._measure(case)
            for fault in faults:
                failed.append(f"{case}, {fault}")
                say(f"FAILED {fault}")
            for row in measured:
                if out is not None:
                    line = record_of(row, run_id=run_id, environment=self._environment)
                    record.append(out, line)
            rows += measured
        if rows:
            print(table(rows, gpu=gpu))
        if self._bench.breakdowns:
            print(f"\n{breakdown_text(self._bench.breakdowns)}")
        for text in failed:
            print(f"FAILED {text}")
        if out is None:
            say("no record was written; pass --out DIR to keep this run")
        say(f"done, {len(rows)} points, {len(failed)} failures")
        return 1 if failed else 0

    def _measure(self, case: HeadCase) -> tuple[list[Measured], list[str]]:
        """Rows and faults of a case; the cases before are kept, whatever happens to this one."""
        try:
            return self._bench.measure(case, self._say)
        except Exception as error:
            if not isinstance(error, (WalkError, WalkFault)):
                traceback.print_exc()
            return [], [f"not timed: {type(error).__name__}: {error}"]
