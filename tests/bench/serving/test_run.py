"""Runs of `wts bench serving`: turns, proofs, resuming, time limits, and what records hold.

The engine is a stand-in (`engine`), in processes of its own as in a real run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.records import environment
from bench.serving import engine
from bench.serving.engine import ROUND_MS
from wts.bench import record
from wts.bench.serving import greedy_only, run, table
from wts.bench.serving.models import GEOMETRIES, write_drafter, write_target
from wts.cli import bench_serving

TINY = ("--model", "tiny", "--rank", "64", "--concurrency", "1,2", "--temperature", "0,1")

SMALL = (*TINY, "--starts", "2", "--repeats", "2", "--tokens", "12,72", "--prompt-tokens", "4")

Bench = Callable[..., int]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run the benchmark with the stand-in, results in tmp_path / "out"; faults by path."""
    folder = engine.install(tmp_path / "fake")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAKE_STARTS", str(tmp_path / "starts.jsonl"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "_DEVICE", "cpu")
    monkeypatch.setattr(record, "installed_version", lambda name: "0.5.23")
    monkeypatch.setattr(record, "capture_environment", lambda described: environment())
    monkeypatch.setattr(greedy_only, "_has_flashinfer", lambda: False)

    def command(*options: str, faults: dict[str, str] | None = None) -> int:
        monkeypatch.setenv("FAKE_FAULTS", json.dumps(faults or {}))
        folders = ("--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "scratch"))
        return bench_serving.main([*SMALL, *folders, *options])

    return command


def records_in(tmp_path: Path) -> list[record.Record]:
    path = tmp_path / "out" / "h200" / "serving.jsonl"
    return record.read(path) if path.is_file() else []


def starts_in(tmp_path: Path) -> list[dict[str, object]]:
    return engine.starts(tmp_path / "starts.jsonl")


class TestRun:
    def test_paths_take_turns_and_every_point_is_recorded(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert bench("--null-head") == 0
        started = starts_in(tmp_path)
        assert [start["path"] for start in started] == [
            *("sglang", "wts", "null_head"),
            *("null_head", "wts", "sglang"),
        ]
        arguments = [{**start, "path": ""} for start in started]
        assert all(other == arguments[0] for other in arguments)  # only the environment differs
        records = records_in(tmp_path)
        points = Counter((r["path"], r["repeat"], r["concurrency"], r["T"]) for r in records)
        assert set(points) == {
            (path, repeat, concurrency, temperature)
            for path in ROUND_MS
            for repeat in (0, 1)
            for concurrency in (1, 2)
            for temperature in (0, 1)
        }
        assert set(points.values()) == {2}  # repeats
        assert len({line["run_id"] for line in records}) == 1
        text = capsys.readouterr().out
        assert "+6.6%" in text  # 6.5 / 6.1
        assert "79%" in text  # of 6.5 / 6.0
        assert "simulated acceptance" in text
        assert "texts: wts" not in text

    def test_starts_that_get_ready_together_take_turns_at_every_point(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        assert bench("--null-head", "--together", "--time-limit", "300") == 0
        calls = (tmp_path / "starts.jsonl.calls").read_text().splitlines()
        measuring = calls[::3]  # a run to warm up, a short one and a long one
        assert calls == [call for call in measuring for _ in range(3)]
        turns = [("sglang", "wts", "null_head"), ("null_head", "wts", "sglang")]
        assert measuring == [
            f"{turn[(first + place) % 3]} {3 * (number + 1)}"  # of so many starts
            for number, turn in enumerate(turns)
            for first in range(2 * 2 * 2)  # concurrencies, temperatures, repeats
            for place in range(3)
        ]
        assert len(records_in(tmp_path)) == 2 * 3 * 4 * 2
        engine = starts_in(tmp_path)[0]
        assert engine["max_total_tokens"] == 2 * (4 + 72 + 256)
        assert engine["sleep_on_idle"], "while others are measured"

    def test_a_start_that_fails_does_not_keep_the_others_of_its_turn(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        assert bench("--together", "--starts", "1", faults={"sglang": "crash"}) == 1
        assert Counter(line["path"] for line in records_in(tmp_path)) == {"wts": 4 * 2}

    def test_a_start_that_falls_out_keeps_what_it_measured(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert bench("--together", "--starts", "1", faults={"wts": "fall"}) == 1
        assert "illegal memory access" in capsys.readouterr().out
        assert Counter((r["path"], r["concurrency"], r["T"]) for r in records_in(tmp_path)) == {
            ("wts", 1, 0): 2,
            **{("sglang", c, t): 2 for c in (1, 2) for t in (0, 1)},
        }
        assert bench("--together", "--starts", "1") == 0  # of wts only what is missing
        assert len(records_in(tmp_path)) == 2 * 4 * 2

    @pytest.mark.parametrize(
        ("fault", "last", "kept"),
        [
            # The walk hangs in the first measurement of two requests: sglang's has nobody beside it
            ("hang", ["sglang 2"] * 3 + ["wts 2"], {1: 2}),
            # It hangs in the second one, of which it is the first.
            ("hang later", ["wts 2"] * 4, {1: 2, 2: 1}),
        ],
    )
    def test_of_a_turn_that_ran_out_of_time_what_all_measured_is_kept(
        self, bench: Bench, tmp_path: Path, fault: str, last: list[str], kept: dict[int, int]
    ) -> None:
        options = ("--together", "--starts", "1", "--start-limit", "6")
        assert bench(*options, faults={"wts": fault}) == 1
        calls = (tmp_path / "starts.jsonl.calls").read_text().splitlines()
        assert calls[-4:] == last
        assert Counter((r["path"], r["concurrency"]) for r in records_in(tmp_path)) == {
            (path, concurrency): times
            for path in ("sglang", "wts")
            for concurrency, times in kept.items()
        }
        assert bench("--together", "--starts", "1") == 0
        assert len(records_in(tmp_path)) == 2 * 4 * 2

    def test_what_a_record_holds(self, bench: Bench, tmp_path: Path) -> None:
        assert bench("--starts", "1") == 0
        ours, again = [
            r
            for r in records_in(tmp_path)
            if (r["path"], r["concurrency"], r["T"]) == ("wts", 2, 1)
        ]
        assert {**again, "time": ""} == {**ours, "time": ""}
        wanted = {
            "bench": "serving",
            "head": "markov",
            "weights": "int8",
            "V": 8192,
            "r": 64,
            "B": 2,
            "K": 16,
            "n": 1,
            "inputs": "random",
            "model": "tiny geometry, dummy weights",
            "block": 16,
            "accept": "simulated",
            "round_us": 6100.0,
            "p50_us": 6100.0,
            "tokens_per_s": 1967.21,  # 2 requests, 6 tokens a round
            "accepted_length": 6.0,
            "repeat": 0,
            "resident_share": 0.98,
        }
        assert {name: ours[name] for name in wanted} == wanted
        theirs = [r for r in records_in(tmp_path) if r["path"] == "sglang"]
        assert {(r["weights"], r["resident_share"]) for r in theirs} == {("bf16", 0)}

    def test_a_second_command_does_what_is_left(self, bench: Bench, tmp_path: Path) -> None:
        assert bench("--starts", "1", faults={"wts": "crash"}) == 1
        assert {r["path"] for r in records_in(tmp_path)} == {"sglang"}
        assert bench("--starts", "1") == 0
        assert [start["path"] for start in starts_in(tmp_path)] == ["sglang", "wts", "wts"]
        assert len({r["run_id"] for r in records_in(tmp_path)}) == 1
        assert bench("--starts", "1") == 0  # nothing is left
        assert len(starts_in(tmp_path)) == 3
        assert bench("--starts", "1", "--seed", "5") == 0  # another setting is another run
        assert len({r["run_id"] for r in records_in(tmp_path)}) == 2

    def test_points_before_a_time_out_are_kept(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--starts", "1", "--paths", "wts", "--start-limit", "8")
        assert bench(*options, faults={"wts": "hang"}) == 1
        assert "FAILED start 1 of wts: ended after 8 s" in capsys.readouterr().out
        assert {(r["concurrency"], r["T"]) for r in records_in(tmp_path)} == {(1, 0)}
        assert bench("--starts", "1", "--paths", "wts") == 0
        assert len(records_in(tmp_path)) == 4 * 2

    def test_no_start_begins_that_would_not_end_in_time(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        # Every start takes 100 s: the third would begin at 200 and end at 300.
        clock = SimpleNamespace(monotonic=lambda: 100.0 * len(starts_in(tmp_path)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "time", clock)
            assert bench("--time-limit", "250") == 1
        assert len(starts_in(tmp_path)) == 2
        assert "2 starts are left" in capsys.readouterr().err
        assert bench() == 0
        assert len(starts_in(tmp_path)) == 4

    @pytest.mark.parametrize(
        ("path", "fault", "words"),
        [
            ("wts", "mute", "the log does not say"),
            ("wts", "off", "our plugin stayed off: off for SGLang: no Hopper GPU"),
            ("wts", "crash", "out of memory, says the stand-in"),
        ],
    )
    def test_a_start_that_proves_nothing_is_no_record(
        self,
        bench: Bench,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        path: str,
        fault: str,
        words: str,
    ) -> None:
        assert bench("--starts", "1", faults={path: fault}) == 1
        assert words in capsys.readouterr().out
        assert {r["path"] for r in records_in(tmp_path)} == {"sglang"}

    def test_greedy_texts_are_compared_where_a_verifier_decides(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--accept-length", "0", "--null-head")
        assert bench(*options) == 0
        text = capsys.readouterr().out
        assert "wts, start 2, concurrency 2: 2 of 2 greedy texts equal those of sglang" in text
        assert "null_head, start" not in text
        assert {r["accept"] for r in records_in(tmp_path)} == {"random"}
        assert {r["accepted_length"] for r in records_in(tmp_path)} == {2.0}

    def test_texts_that_differ_fail_the_run(
        self, bench: Bench, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert bench("--accept-length", "0", "--starts", "1", faults={"wts": "texts"}) == 1
        text = capsys.readouterr().out
        assert "FAILED texts: wts, start 1, concurrency 2: 1 of 2" in text
        assert "the first at 7" in text

    def test_domino_drafters_are_served_with_the_whole_vocabulary(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        greedy = ("--starts", "1", "--drafter", "domino", "--temperature", "0", "--null-head")
        assert bench(*greedy) == 0
        for start in starts_in(tmp_path):
            assert start["speculative_algorithm"] == "DFLASH"
            assert start["speculative_domino_candidate_pool_size"] == 0
        assert {(r["head"], r["K"], r["block"]) for r in records_in(tmp_path)} == {
            ("domino", 15, 16)
        }

    def test_domino_drafters_without_flashinfer_are_served_greedily_in_every_path(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--starts", "1", "--drafter", "domino", "--null-head")
        assert bench(*options) == 2
        assert "temperature: wanted 0: SGLang verifies sampled" in capsys.readouterr().err
        assert bench(*options, "--temperature", "0") == 0
        started = {start["path"]: start["greedy"] for start in starts_in(tmp_path)}
        assert started == dict.fromkeys(ROUND_MS, True)
        assert all(greedy_only.NOTE in str(line["draft"]) for line in records_in(tmp_path))

    def test_with_flashinfer_servers_are_as_sglang_has_them(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(greedy_only, "_has_flashinfer", lambda: True)
        assert bench("--starts", "1", "--drafter", "domino") == 0
        assert {start["greedy"] for start in starts_in(tmp_path)} == {False}
        assert {line["T"] for line in records_in(tmp_path)} == {0, 1}
        assert not any(greedy_only.NOTE in str(line["draft"]) for line in records_in(tmp_path))

    def test_given_models_and_prompts_are_served(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tiny = GEOMETRIES["tiny"]
        target = write_target(tmp_path / "target", tiny)
        draft = write_drafter(tmp_path / "draft", tiny, "dspark-gated", block=7, rank=64, seed=0)
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('[5, 6, 7]\n{"tokens": [8, 9]}\n')
        given = ("--target", str(target), "--draft", str(draft), "--accept", "trained")
        assert bench(*given, "--prompts", str(prompts), "--starts", "1") == 0
        assert starts_in(tmp_path)[0]["load_format"] == "auto"
        (kept,) = (tmp_path / "out" / "serving-runs").glob("*/sglang-0.jsonl")
        texts = [json.loads(line)["texts"] for line in kept.read_text().splitlines()]
        firsts = [[text[0] for text in point] for point in texts]
        assert firsts == [[5], [], [5, 8], [], [5], [], [5, 8], []]
        (line,) = {
            (r["model"], r["draft"], r["head"], r["K"], r["inputs"], r["accept"])
            for r in records_in(tmp_path)
        }
        assert line == ("target", "draft", "gated", 7, "recorded", "trained")
        assert bench(*given, "--prompts", str(prompts), "--concurrency", "3") == 2
        assert "prompts: wanted 3" in capsys.readouterr().err
        prompts.write_text('{"words": 1}\n')
        assert bench(*given, "--prompts", str(prompts)) == 2
        assert "prompts.jsonl, line 1" in capsys.readouterr().err
        assert bench("--target", str(target)) == 2
        assert "target, draft" in capsys.readouterr().err

    def test_a_figure_is_drawn_of_a_results_file(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("matplotlib")
        assert bench("--null-head", "--starts", "1") == 0
        file = tmp_path / "out" / "h200" / "serving.jsonl"
        assert bench_serving.main(["--draw", str(file)]) == 0
        assert "tiny geometry" in capsys.readouterr().out
        run_id = records_in(tmp_path)[0]["run_id"]
        drawn = (file.parent / f"serving-{run_id}.svg").read_text()
        assert drawn.startswith("<?xml")
        gains = table.rows(records_in(tmp_path))
        assert {row.path for row in gains if row.gain} == {"wts", "null_head"}


def test_a_length_that_no_round_has_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--accept-length", "18") == 2
    assert "accept-length: wanted 1..17" in capsys.readouterr().err
