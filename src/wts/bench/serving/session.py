"""A run of the serving benchmark: its starts, and what of them is kept.

A run may take several commands. Its records, with its own id, say which points it has; beside them
are a folder of raw results and logs, and a small file that ties the id to a setting.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from wts.bench import record
from wts.bench.record import Environment, Record
from wts.bench.serving.paths import Plugins, Proof, environment_of, plugin_folders, prove
from wts.bench.serving.setting import Setting
from wts.bench.serving.starts import Point, Start, orders_of, run_turn
from wts.bench.serving.texts import Verdict, compare_texts

__all__ = ["Outcome", "ServingRun"]

# Lines of a log that are shown where a start failed.
_TAIL_LINES = 12

Measured = Mapping[str, Any]
"""A line of results: a point, measured once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a start.

    Args:
        num_recorded: measurements that were recorded.
        faults: what went wrong.
        proof: the line of the log that proves the path, where there is one.
    """

    num_recorded: int
    faults: tuple[str, ...]
    proof: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A run: a setting on a machine, its id and its files.

    Args:
        setting: what is served.
        environment: the machine.
        run_id: of its records.
        out: root of the results.
        folder: of raw results and logs.
        scratch: of what starts share.
        inherited: environment that starts inherit.
        plugins: of the starts.
    """

    setting: Setting
    environment: Environment
    run_id: str
    out: Path
    folder: Path
    scratch: Path
    inherited: Mapping[str, str]
    plugins: Plugins

    @classmethod
    def open(
        cls,
        setting: Setting,
        *,
        environment: Environment,
        out: Path,
        scratch: Path,
        inherited: Mapping[str, str],
        needs_plugin: bool,
    ) -> Self:
        """Go on with the run of this setting, machine and commit in a folder, or begin one.

        Raises:
            InputError: the plugin is needed and not to be found.
        """
        measured = asdict(environment)
        for varying in ("clock_mhz", "max_clock_mhz"):
            del measured[varying]
        folder = out / "serving-runs" / setting.key(measured)
        about = folder / "run.json"
        folder.mkdir(parents=True, exist_ok=True)
        if about.is_file():
            run_id = str(json.loads(about.read_text(encoding="utf-8"))["run_id"])
        else:
            run_id = record.new_run_id()
            about.write_text(
                json.dumps({"run_id": run_id, "setting": asdict(setting), "machine": measured})
                + "\n",
                encoding="utf-8",
            )
        return cls(
            setting=setting,
            environment=environment,
            run_id=run_id,
            out=out,
            folder=folder,
            scratch=scratch,
            inherited=inherited,
            plugins=plugin_folders(scratch / "plugins", needed=needs_plugin),
        )

    def records(self) -> list[Record]:
        """The records of this run so far."""
        path = self.out / self.environment.gpu / "serving.jsonl"
        if not path.is_file():
            return []
        return [line for line in record.read(path) if line["run_id"] == self.run_id]

    def missing(self, path: str, number: int, points: Sequence[Point]) -> dict[Point, int]:
        """How often a start still has to measure each point, where it does."""
        had: Counter[Point] = Counter()
        for line in self.records():
            if line["path"] == path and line["repeat"] == number:
                had[_point(line)] += int(str(line["n"]))
        left = {point: self.setting.repeats - had[point] for point in points}
        return {point: times for point, times in left.items() if times > 0}

    def turn(
        self, starts: Sequence[tuple[str, int, Mapping[Point, int]]], *, limit_s: float
    ) -> list[Outcome]:
        """Start engines, measure points, and record what is whole and proved.

        Args:
            starts: whose head, the number of the start from 0, and how often to measure what. They
                get ready side by side and take turns at measuring, see `orders_of`.
            limit_s: after which they and all their processes are ended.
        """
        made = [self._job(path, number) for path, number, _ in starts]
        wanted = [points for _, _, points in starts]
        orders = orders_of(wanted, repeats=self.setting.repeats)
        statuses = run_turn(made, orders, limit_s=limit_s)
        measured = [
            [line for line in _lines(start.results) if line.get("event") == "measured"]
            for start in made
        ]
        kept = _measured_by_all(measured, wanted, statuses)
        return [
            self._outcome(path, number, start, status, lines, limit_s)
            for (path, number, _), start, status, lines in zip(
                starts, made, statuses, kept, strict=True
            )
        ]

    def _job(self, path: str, number: int) -> Start:
        name = f"{path}-{number}"
        job = {
            "engine": self.setting.engine,
            "prompts": self.setting.prompts,
            "short": self.setting.short,
            "long": self.setting.long,
        }
        file = self.folder / f"{name}.job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        return Start(
            job=file,
            results=self.folder / f"{name}.new.jsonl",
            log=self.folder / f"{name}.log",
            environment=environment_of(
                path,
                self.inherited,
                plugins=self.plugins,
                greedy_only=self.setting.greedy_only,
                accept_length=self.setting.accept_length,
                scratch=self.scratch,
            ),
        )

    def _outcome(
        self,
        path: str,
        number: int,
        start: Start,
        status: int | None,
        measured: Sequence[Measured],
        limit_s: float,
    ) -> Outcome:
        text = start.log.read_text(encoding="utf-8", errors="replace")
        faults = []
        if status is None:
            faults.append(f"ended after {limit_s:.0f} s, its time limit; see {start.log}")
        elif status != 0:
            faults.append(f"ended with status {status}:\n{_tail(text)}")
        if not measured:
            faults = faults or ["nothing measured"]
            return Outcome(num_recorded=0, faults=tuple(faults), proof=None)
        proof = prove(path, text, self.setting.drafter)
        if isinstance(proof, str):
            faults.append(f"not recorded: {proof}; see {start.log}")
            return Outcome(num_recorded=0, faults=tuple(faults), proof=None)
        num_recorded = 0
        for line in measured:
            try:
                made = self._record(path, number, line, proof)
            except ValueError as error:
                faults.append(f"concurrency {line['concurrency']}: {error}")
                continue
            with (self.folder / f"{path}-{number}.jsonl").open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(line) + "\n")
            record.append(self.out, made)
            num_recorded += 1
        start.results.unlink(missing_ok=True)
        return Outcome(num_recorded=num_recorded, faults=tuple(faults), proof=proof.line.strip())

    def _record(self, path: str, number: int, line: Measured, proof: Proof) -> Record:
        short, long = line["short"], line["long"]
        seconds = long["seconds"] - short["seconds"]
        rounds = max(long["rounds"]) - max(short["rounds"])
        tokens = sum(long["tokens"]) - sum(short["tokens"])
        drafts = sum(long["rounds"]) - sum(short["rounds"])
        if min(seconds, rounds, tokens, drafts) <= 0:
            raise ValueError(
                f"the long run has {seconds:.4f} s, {rounds} rounds and {tokens} tokens more "
                "than the short one, wanted more of all; pass lengths further apart"
            )
        round_us = round(seconds / rounds * 1e6, 2)
        setting = self.setting
        return record.build(
            self.environment,
            bench="serving",
            run_id=self.run_id,
            path=path,
            head=setting.head,
            weights="int8" if path == "wts" else "bf16",
            V=setting.vocab,
            r=setting.rank,
            B=line["concurrency"],
            K=setting.steps,
            T=line["temperature"],
            cache="warm",
            p50_us=round_us,
            p05_us=round_us,
            p95_us=round_us,
            n=1,  # a record for every measurement: those of a turn are compared one by one
            inputs=setting.inputs,
            excludes="",
            resident_share=proof.resident_share(line["concurrency"]),
            plan="",  # the plugin makes one for every few batches; its line has no hashes
            model=setting.model,
            draft=setting.draft,
            block=setting.block,
            concurrency=line["concurrency"],
            accept=setting.accept,
            tokens_per_s=round(tokens / seconds, 2),
            round_us=round_us,
            accepted_length=round(tokens / drafts, 4),
            repeat=number,
        )

    def texts(self) -> list[Verdict]:
        """Compare the greedy texts of all starts with those of SGLang's own head.

        Returns:
            No verdict where acceptance is simulated, which commits tokens that nobody verified;
            where the null head proposes; and before SGLang's own head was started.
        """
        if not self.setting.judges_texts:
            return []
        texts: dict[tuple[str, int, int], list[list[int]]] = {}
        for file in sorted(self.folder.glob("*-[0-9]*.jsonl")):
            path, _, start = file.stem.rpartition("-")
            if path == "null_head" or not start.isdecimal():
                continue
            for line in _lines(file):
                if line["temperature"] == 0 and line["texts"]:
                    texts[path, int(start), line["concurrency"]] = line["texts"]
        return compare_texts(texts)


def _measured_by_all(
    measured: Sequence[Sequence[Measured]],
    wanted: Sequence[Mapping[Point, int]],
    statuses: Sequence[int | None],
) -> list[list[Measured]]:
    """What starts measured, as far as all that did not fall out came: more is not compared."""
    counts = [Counter(map(_point, lines)) for lines in measured]
    most: dict[Point, int] = {}
    for count, points, status in zip(counts, wanted, statuses, strict=True):
        for point, times in points.items():
            if status in (0, None) and count[point] < times:
                most[point] = min(count[point], most.get(point, times))
    kept: list[list[Measured]] = []
    for lines in measured:
        seen: Counter[Point] = Counter()
        kept.append([])
        for line in lines:
            point = _point(line)
            seen[point] += 1
            if seen[point] <= most.get(point, seen[point]):
                kept[-1].append(line)
    return kept


def _point(line: Mapping[str, Any]) -> Point:
    """Of a record or a line of results."""
    return int(line["concurrency"]), float(line["T"] if "T" in line else line["temperature"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file; one cut short, of a process that was ended, is left out."""
    if not path.is_file():
        return
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            return


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])
