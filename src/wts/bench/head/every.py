"""`wts bench all`: everything that figures need of one GPU, in stages that can be resumed.

DIR/<gpu>/all.json says what a run has finished. Started again with the same commit, versions and
options, the run goes on where it stopped, under the same run_id; a finished or another one begins
anew. A case that fails is named and tried again the next time.
"""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wts.bench import record
from wts.bench.clock import check_gpu
from wts.bench.head import placement, run, theirs
from wts.bench.head.breakdown import breakdown_text
from wts.bench.head.cases import HeadCase, product_cases
from wts.bench.head.session import HeadBench
from wts.bench.head.table import record_of
from wts.bench.record import Environment
from wts.errors import WalkError

__all__ = ["Options", "Progress", "Run", "Stage", "stages"]

_VOCAB, _RANK = 151_936, 256
_STEPS = (1, 7, 16)
_ROUNDS, _QUICK_ROUNDS = 30, 15
_PLACEMENTS = (24, 28, 32, 36, 40, 44, 48, 52)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Cases that are measured in the same way.

    Args:
        name: of the stage.
        cases: each finished or not as a whole.
        more_paths: besides those that are timed by default.
        traced: where a step's time goes, to parts.txt; times are not kept.
        placements: fragments in registers that are swept; none: an ordinary measurement.
    """

    name: str
    cases: tuple[HeadCase, ...]
    more_paths: tuple[str, ...] = ()
    traced: bool = False
    placements: tuple[int, ...] = ()


def stages(*, quick: bool) -> tuple[Stage, ...]:
    """What is measured, the cheapest and most telling first.

    Args:
        quick: a minute's worth of it.
    """
    temperatures = (0.0,) if quick else (0.0, 1.0)
    steps = (1, 16) if quick else _STEPS

    def markov(batches: Sequence[int], vocab: int = _VOCAB) -> tuple[HeadCase, ...]:
        return product_cases(
            vocabs=(vocab,),
            ranks=(_RANK,),
            batches=batches,
            temperatures=temperatures,
            steps=steps,
        )

    residency = Stage(
        name="residency",
        cases=markov((1,) if quick else (1, 8)),
        more_paths=("wts_streaming",),
    )
    if quick:
        sweep = Stage(name="placement", cases=markov((1,)), placements=(32, 44))
        return (residency, Stage(name="grid", cases=markov((8,))), sweep)
    greedy = [case for case in markov((1, 4)) if not case.sampled]
    recurrent = product_cases(
        heads=("gated", "rnn", "domino"),
        vocabs=(_VOCAB,),
        ranks=(_RANK,),
        batches=(1, 4),
        temperatures=(0.0,),
        steps=(1, 7, 15),
    )
    return (
        residency,
        Stage(
            name="grid",
            cases=(*markov((2, 4, 16, 64)), *markov((1, 2, 4, 8, 16, 64), 248_320)),
        ),
        Stage(name="heads", cases=recurrent),
        Stage(name="placement", cases=tuple(greedy), placements=_PLACEMENTS),
        Stage(name="parts", cases=markov((1, 8)), traced=True),
    )


class Progress:
    """What a run has finished, in a file beside its records."""

    def __init__(self, path: Path, same: dict[str, object], run_id: str) -> None:
        """Go on with the run of the file, if it is the same and not complete; or begin anew.

        Args:
            path: of the file.
            same: what has to be equal for records to share a run.
            run_id: of a new run.
        """
        self._path = path
        self._same = json.loads(json.dumps(same))
        self.run_id = run_id
        self.finished: set[str] = set()
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["same"] == self._same and not kept["complete"]:
                self.run_id, self.finished = str(kept["run_id"]), set(kept["finished"])
        except (OSError, ValueError, KeyError, TypeError):
            return  # none, or no such file: a run begins

    def keep(self, name: str, *, complete: bool) -> None:
        """Note a finished case; whether it was the last one."""
        self.finished.add(name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "same": self._same,
            "run_id": self.run_id,
            "finished": sorted(self.finished),
            "complete": complete,
        }
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self._path)


def _left(seconds: Sequence[float], remaining: int) -> str:
    """How long it will take, by the cases measured so far."""
    if not seconds:
        return ""
    return f", about {sum(seconds) / len(seconds) * remaining / 60:.1f} min left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for.

    Args:
        out: root of the results.
        quick: a few cases, few samples.
        commit: see `record.source_version`.
        run_id: of a new run; by the time by default.
    """

    out: Path
    quick: bool
    commit: str | None
    run_id: str | None


class Run:
    """Measures what is not finished yet."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        """Look at the machine, and at what was finished before.

        Args:
            options: what is asked for.
            say: told what is going on.

        Raises:
            DeviceError: there is no GPU.
        """
        check_gpu()
        self._options = options
        self._say = say
        self._paths, self._library = theirs.choose_paths(None, say)
        gc.freeze()
        self._environment: Environment = record.capture_environment(described=options.commit)
        same = {
            name: getattr(self._environment, name)
            for name in ("gpu", "sms", "driver", "cuda", "torch", "sglang", "commit", "dirty")
        } | {"quick": options.quick}
        self._folder = options.out / self._environment.gpu
        self._progress = Progress(
            self._folder / "all.json", same, options.run_id or record.new_run_id()
        )
        self._benches: dict[str, HeadBench] = {}

    def measure(self) -> int:
        """Measure case after case.

        Returns:
            0; 1 if a case or a path failed.
        """
        progress, say = self._progress, self._say
        work = [
            (stage, case) for stage in stages(quick=self._options.quick) for case in stage.cases
        ]
        todo = [(s, case) for s, case in work if f"{s.name}: {case}" not in progress.finished]
        say(f"run {progress.run_id}: {len(todo)} of {len(work)} cases to measure")
        seconds: list[float] = []
        failed: list[str] = []
        for number, (stage, case) in enumerate(todo):
            name = f"{stage.name}: {case}"
            say(f"{number + 1}/{len(todo)} {name}{_left(seconds, len(todo) - number)}")
            began = time.monotonic()
            try:
                faults = self._measure(stage, case)
            except Exception as error:
                # What was measured so far is kept, whatever happens to this case.
                if not isinstance(error, WalkError):
                    traceback.print_exc()
                failed.append(f"{name}, not measured: {type(error).__name__}: {error}")
                say(f"FAILED {failed[-1]}")
                continue
            failed += [f"{name}, {fault}" for fault in faults]
            seconds.append(time.monotonic() - began)
            progress.keep(name, complete=len(progress.finished) + 1 == len(work))
        for text in failed:
            print(f"FAILED {text}")
        say(f"done, {len(failed)} failures; wts plot --results {self._folder}")
        return 1 if failed else 0

    def _bench_of(self, stage: Stage) -> HeadBench:
        """What measures a stage; the weights of the stage before are let go."""
        if stage.name not in self._benches:
            self._benches.clear()
            self._benches[stage.name] = HeadBench(
                paths=("wts", "probe") if stage.traced else (*self._paths, *stage.more_paths),
                caches=("cold",),
                rounds=_QUICK_ROUNDS if self._options.quick else _ROUNDS,
                whole=False,
                seed=0,
                library=self._library,
                device=run.DEVICE,
                trace=stage.traced,
            )
        return self._benches[stage.name]

    def _measure(self, stage: Stage, case: HeadCase) -> list[str]:
        """Measure a case and append its records; the faults of paths that were not timed."""
        bench, out = self._bench_of(stage), self._options.out
        run_id, environment = self._progress.run_id, self._environment
        if stage.placements:
            for placed in placement.sweep(bench, case, stage.placements, self._say):
                line = placement.record_of(placed, run_id=run_id, environment=environment)
                record.append(out, line)
            return []
        bench.breakdowns.clear()
        rows, faults = bench.measure(case, self._say)
        if stage.traced:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "parts.txt").open("a", encoding="utf-8") as file:
                file.write(f"run {run_id}\n{breakdown_text(bench.breakdowns)}\n")
            return faults
        for row in rows:
            record.append(out, record_of(row, run_id=run_id, environment=environment))
        return faults
