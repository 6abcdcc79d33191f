"""`wts bench serving`: alternation, proofs, resuming, time limits, texts and what records hold.

The engine is a stand-in (`serving_engine`), in processes of its own as in a real run.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import serving_engine
from serving_engine import ROUND_MS
from test_bench import environment
from wts.bench import record
from wts.bench.serving import greedy_only, null_head, paths, run, table
from wts.bench.serving.models import GEOMETRIES, Drafter, steps_of, write_drafter, write_target
from wts.bench.serving.texts import first_difference
from wts.cli import bench_serving
from wts.errors import InputError
from wts.heads.checkpoint import TensorFolder
from wts.heads.config import read_config
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead

TINY = ("--model", "tiny", "--rank", "64", "--concurrency", "1,2", "--temperature", "0,1")
SMALL = (*TINY, "--starts", "2", "--repeats", "2", "--tokens", "12,72", "--prompt-tokens", "4")

VOCAB = 10
"""That of the null head's tests, so small that 120 tokens of a draw hold all of it."""

Bench = Callable[..., int]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run the benchmark with the stand-in, results in tmp_path / "out"; faults by path."""
    folder = serving_engine.install(tmp_path / "fake")
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
    return serving_engine.starts(tmp_path / "starts.jsonl")


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


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--tokens", "72,12"), "short and a long"),
        (("--engine", "mem_fraction_static"), "NAME=JSON"),
        (("--paths", "rival"), "rival"),
    ],
)
def test_bad_options_are_refused(
    options: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench_serving.main(list(options))
    assert word in capsys.readouterr().err


def test_a_length_that_no_round_has_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--accept-length", "18") == 2
    assert "accept-length: wanted 1..17" in capsys.readouterr().err


def test_no_gpu_is_an_error_that_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_serving.main(["--out", str(tmp_path)]) == 2
    assert "gpu: wanted an NVIDIA GPU" in capsys.readouterr().err


class TestPaths:
    def test_a_source_tree_stands_in_for_a_distribution(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paths.metadata, "entry_points", lambda group: [])
        monkeypatch.setattr(paths, "_SOURCE", tmp_path / "src")
        with pytest.raises(InputError, match="paths: wanted an entry point"):
            paths.plugin_folders(tmp_path / "plugins", needed=True)
        assert paths.plugin_folders(tmp_path / "plugins", needed=False).ours is None
        (tmp_path / "pyproject.toml").write_text(
            '[project]\nname = "x"\n[project.entry-points."sglang.srt.plugins"]\nwts = "wts.p:f"\n'
        )
        plugins = paths.plugin_folders(tmp_path / "plugins", needed=True)
        assert plugins.ours is not None
        points = [
            file.read_text()
            for folder in (plugins.ours, plugins.null, plugins.greedy)
            for file in folder.glob("*.dist-info/entry_points.txt")
        ]
        assert points == [
            "[sglang.srt.plugins]\nwts = wts.p:f\n",
            "[sglang.srt.plugins]\nwts_null_head = wts.bench.serving.null_head:install\n",
            "[sglang.srt.plugins]\nwts_greedy = wts.bench.serving.greedy_only:install\n",
        ]

    def test_plugins_of_the_benchmark_do_not_stand_in_for_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        values = ["wts.bench.serving.null_head:install", "wts.bench.serving.greedy_only:install"]
        points = [SimpleNamespace(value=value) for value in values]
        monkeypatch.setattr(paths.metadata, "entry_points", lambda group: points)
        assert paths.plugin_folders(tmp_path, needed=True).ours is not None
        points.append(SimpleNamespace(value="wts.engines.sglang.plugin:register"))
        assert paths.plugin_folders(tmp_path, needed=True).ours is None

    @pytest.mark.parametrize("greedy_only", [False, True])
    def test_only_the_environment_tells_paths_apart(
        self, tmp_path: Path, greedy_only: bool
    ) -> None:
        plugins = paths.Plugins(
            ours=tmp_path / "ours", null=tmp_path / "null", greedy=tmp_path / "greedy"
        )
        made = {
            path: paths.environment_of(
                path,
                {"PYTHONPATH": "/before", "SGLANG_SIMULATE_ACC_LEN": "3", "HOME": "/h"},
                plugins=plugins,
                greedy_only=greedy_only,
                accept_length=0.0,
                scratch=tmp_path,
            )
            for path in paths.PATHS
        }
        assert {path: one["WTS_SGLANG"] for path, one in made.items()} == {
            "sglang": "0",
            "wts": "1",
            "null_head": "0",
        }
        folders = {path: one["PYTHONPATH"].split(":") for path, one in made.items()}
        assert folders["sglang"] == folders["wts"] == folders["null_head"][1:]
        assert folders["null_head"][0] == str(tmp_path / "null")
        assert (str(tmp_path / "greedy") in folders["sglang"]) == greedy_only
        assert folders["wts"][-1] == "/before"
        assert all("SGLANG_SIMULATE_ACC_LEN" not in one for one in made.values())

    @pytest.mark.parametrize(
        ("path", "lines", "fault"),
        [
            ("sglang", ["folded"], None),
            ("sglang", ["folded", "off"], None),
            ("sglang", ["folded", "serves"], "our plugin serves"),
            ("sglang", ["folded, other"], "another sampler"),
            ("sglang", ["folded", "null"], "null head serves"),
            ("sglang", [], "does not say"),
            ("wts", ["folded, other", "serves"], None),
            ("wts", ["folded, other", "off", "serves"], None),
            ("wts", ["folded", "serves"], "took no sampler"),
            ("wts", ["folded, other"], "no line of our plugin"),
            ("wts", ["folded", "off"], "stayed off"),
            ("wts", ["folded, other", "serves", "given up"], "walks were given up"),
            ("wts", ["serves"], "does not say"),
            ("null_head", ["folded, other", "null"], None),
            ("null_head", ["folded, other"], "no line of the null head"),
            ("null_head", ["folded, other", "null", "serves"], "our plugin serves"),
        ],
    )
    def test_a_log_proves_its_path_or_says_what_is_wrong(
        self, path: str, lines: list[str], fault: str | None
    ) -> None:
        texts = {
            "folded": "DSpark draft proposal (sampling) folded into the draft cuda graph.",
            "folded, other": "DSpark draft proposal (greedy draft) folded into the draft cuda "
            "graph; the NVIDIA megakernel may run it.",
            "serves": "[10:00:00 TP0] wts: on for SGLang's DSpark draft: markov head, V 151936; "
            "batch 1 to 4: 1 kernel a block, 98.5 % resident; batch 5: 1 kernel a block, 90 % "
            "resident; batch 6 and above: SGLang's own steps (set off); 9 MiB held",
            "off": "[10:00:00] wts: off for SGLang: WTS_SGLANG=0",
            "given up": "[10:00:09] wts: walk 3 waited too long. Drafts since the last look may be "
            "wrong: greedy output is not affected",
            "null": f"[10:00:00] {null_head.LOG_PREFIX}DSpark blocks",
        }
        found = paths.prove(path, "\n".join(texts[line] for line in lines), "dspark")
        if fault is not None:
            assert isinstance(found, str)
            assert fault in found
            return
        assert isinstance(found, paths.Proof)
        shares = [found.resident_share(batch) for batch in (1, 4, 5, 6, 64)]
        assert shares == ([0.985, 0.985, 0.9, 0, 0] if path == "wts" else [0] * 5)


class TestNullHead:
    def test_it_is_hooked_around_both_kinds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hooked: dict[str, Any] = {}

        def register(target: str, hook: Any, kind: str) -> None:
            assert kind == "around"
            hooked[target.rpartition(".")[2]] = hook

        registry = SimpleNamespace(
            HookRegistry=SimpleNamespace(register=register),
            HookType=SimpleNamespace(AROUND="around"),
        )
        monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
        null_head.install()
        assert set(hooked) == {"megakernel_draft_sampler", "domino_greedy_rollout"}

    @pytest.mark.parametrize("padding", [0, 3])
    def test_dspark_blocks_are_a_fixed_draw_behind_real_base_logits(
        self, padding: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(null_head, "_told", set())
        asked: list[torch.Tensor] = []

        def compute_base_logits(hidden: torch.Tensor) -> tuple[torch.Tensor, str]:
            asked.append(hidden)
            return hidden, "features"

        lm_head = SimpleNamespace(weight=torch.zeros(VOCAB + padding, 8))
        if padding:
            lm_head.org_vocab_size = VOCAB
        model = SimpleNamespace(compute_base_logits=compute_base_logits, lm_head=lm_head)

        def steps_into(drafted: torch.Tensor) -> Any:
            factory = null_head._sampler_factory(lambda model: None, model)
            return factory(gamma=3, max_bs=40, draft_tokens=drafted, step_logits=None, noise=None)

        drafted, again = torch.full((2, 40 * 3), -1)
        with caplog.at_level(logging.INFO, logger=null_head.__name__):
            steps = steps_into(drafted)
        drawn = drafted.clone()
        assert_draw(drawn.view(40, 3))
        hidden = torch.zeros(2 * 3, 8)
        for _ in range(2):
            tokens, features = steps(2)(hidden, torch.zeros(2, dtype=torch.int64))
            assert torch.equal(tokens, drawn[:6].view(2, 3))
            assert tokens.data_ptr() == drafted.data_ptr()
            assert features == "features"
        assert len(asked) == 2
        assert all(given is hidden for given in asked)
        steps_into(again)
        assert torch.equal(again, drawn)
        line = f"{null_head.LOG_PREFIX}DSpark blocks of 3 are a fixed random draw"
        assert caplog.messages == [line]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_domino_blocks_are_a_fixed_draw_behind_real_base_logits(
        self,
        dtype: torch.dtype,
        rollout: Callable[..., torch.Tensor],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        products = []
        linear = torch.nn.functional.linear

        def counted(*operands: torch.Tensor) -> torch.Tensor:
            products.append([tuple(operand.shape) for operand in operands])
            return linear(*operands)

        monkeypatch.setattr(torch.nn.functional, "linear", counted)
        with caplog.at_level(logging.INFO, logger=null_head.__name__):
            tokens = rollout(40, dtype=dtype)
        drawn = tokens.clone()
        assert tokens.dtype == dtype
        assert_draw(drawn)
        tokens.fill_(-1)  # the caller's own
        assert torch.equal(rollout(40, dtype=dtype), drawn)
        null_head._blocks.clear()
        assert torch.equal(rollout(40, dtype=dtype), drawn)
        assert products == [[(120, 8), (VOCAB, 8)]] * 3
        line = f"{null_head.LOG_PREFIX}Domino blocks of 4 are a fixed random draw"
        assert caplog.messages == [line]

    def test_domino_draws_before_a_capture_only(
        self, rollout: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn = rollout(2)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert torch.equal(rollout(2), drawn)
        with pytest.raises(RuntimeError, match="no draw of 3 x 3 tokens before its graph"):
            rollout(3)
        assert len(null_head._blocks) == 1

    @pytest.fixture
    def rollout(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.Tensor]:
        """Roll out a batch in blocks of 4, its lm_head padded; nothing has been drawn before."""
        monkeypatch.setattr(null_head, "_told", set())
        monkeypatch.setattr(null_head, "_blocks", {})

        def run(batch: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return null_head._rollout(
                lambda **_: None,
                draft_hidden=torch.zeros(batch, 4, 8),
                bonus_tokens=torch.zeros(batch, dtype=dtype),
                lm_head_weight=torch.zeros(VOCAB + 2, 8),
                vocab_size=VOCAB,
                shift_label=False,
                in_cuda_graph=True,
            )

        return run


def assert_draw(tokens: torch.Tensor) -> None:
    """Check 40 blocks of 3: every token of the vocabulary and no other, and few blocks alike."""
    assert tokens.shape == (40, 3)
    assert set(tokens.flatten().tolist()) == set(range(VOCAB))
    assert len(tokens.unique(dim=0)) > 30


class TestGreedy:
    def test_sglangs_own_switch_is_set_and_said_once(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hooked: dict[str, Any] = {}

        def register(target: str, hook: Any, kind: str) -> None:
            hooked[f"{kind} {target.rpartition('.')[2]}"] = hook

        registry = SimpleNamespace(
            HookRegistry=SimpleNamespace(register=register),
            HookType=SimpleNamespace(REPLACE="replace"),
        )
        monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
        greedy_only._unavailable.cache_clear()
        greedy_only.install()
        (switch,) = hooked.values()
        assert set(hooked) == {"replace is_dflash_sampling_verify_available"}
        with caplog.at_level(logging.INFO, logger=greedy_only.__name__):
            assert [switch(), switch()] == [False, False]
        assert caplog.messages == [greedy_only.LOG_LINE]

    def test_only_dominos_worker_wants_flashinfer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(greedy_only, "_has_flashinfer", lambda: False)
        assert greedy_only.is_needed("domino")
        assert not greedy_only.is_needed("dspark")
        monkeypatch.setattr(greedy_only, "_has_flashinfer", lambda: True)
        assert not greedy_only.is_needed("domino")


class TestGeometry:
    def test_published_layers_are_read(self) -> None:
        assert GEOMETRIES["qwen3-4b"].target_layers == (1, 9, 17, 25, 33)
        assert GEOMETRIES["tiny"].target_layers == (1, 5)

    def test_a_block_has_as_many_steps_as_its_drafter_walks(self) -> None:
        assert (steps_of("dspark", 16), steps_of("domino", 16)) == (16, 15)

    @pytest.mark.parametrize(
        ("drafter", "kind"),
        [("dspark", MarkovHead), ("dspark-gated", GatedHead), ("dspark-rnn", RnnHead)],
    )
    def test_a_dspark_folder_is_a_head(self, tmp_path: Path, drafter: Drafter, kind: Any) -> None:
        tiny = GEOMETRIES["tiny"]
        write_drafter(tmp_path, tiny, drafter, block=7, rank=64, seed=3)
        head = kind.from_checkpoint(tmp_path)
        assert (head.vocab, head.rank) == (tiny.vocab, 64)
        assert not torch.equal(head.table, head.projection)
        assert read_config(tmp_path).block_size == 7
        norm = TensorFolder.open(tmp_path).load("norm.weight").float()
        # Hidden states of that size, through a dummy lm_head, have base logits of deviation 2.
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(tiny.hidden, generator=generator) * norm
        lm_head = torch.empty(4096, tiny.hidden).uniform_(-1e-3, 1e-3, generator=generator)
        assert (lm_head @ hidden).std().item() == pytest.approx(2.0, rel=0.15)
        # What a head makes of them is what it would of hidden states of deviation 1.
        if isinstance(head, GatedHead):
            made = head.gate_weight[:, : tiny.hidden].float() @ hidden
            assert made.std().item() == pytest.approx(1.0, rel=0.3)
        if isinstance(head, RnnHead):
            made = head.joint_weight[:, 2 * 64 :].float() @ hidden
            assert made.std().item() == pytest.approx(0.5, rel=0.3)

    def test_a_domino_folder_has_its_projector(self, tmp_path: Path) -> None:
        tiny = GEOMETRIES["tiny"]
        write_drafter(tmp_path, tiny, "domino", block=16, rank=64, seed=3)
        config = read_config(tmp_path)
        assert config.domino is not None
        assert (config.domino.emb_dim, config.domino.gru_hidden_dim) == (64, 1024)
        folder = TensorFolder.open(tmp_path)
        shapes = {
            name: tuple(folder.load(name).shape)
            for name in ("prefix_gru.weight_ih_l0", "embed_proj.0.weight", "embed_proj.2.weight")
        }
        assert shapes == {
            "prefix_gru.weight_ih_l0": (3072, 256),
            "embed_proj.0.weight": (64, 256 + 1024),
            "embed_proj.2.weight": (8192, 64),
        }

    def test_what_is_there_is_not_written_again(self, tmp_path: Path) -> None:
        tiny = GEOMETRIES["tiny"]
        write_drafter(tmp_path, tiny, "dspark", block=7, rank=64, seed=3)
        before = (tmp_path / "model.safetensors").stat().st_mtime_ns
        write_drafter(tmp_path, tiny, "dspark", block=7, rank=64, seed=3)
        assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before


def serving_line(**changes: Any) -> record.Record:
    fields: dict[str, Any] = {
        "run_id": "one",
        "time": "2026-01-01T00:00:00Z",
        "bench": "serving",
        "path": "sglang",
        "T": 0.0,
        "concurrency": 1,
        "repeat": 0,
        "round_us": 6500.0,
        "tokens_per_s": 900.0,
        "accepted_length": 6.0,
    }
    return fields | changes


def headline() -> record.Record:
    names = ("model", "draft", "accept", "gpu", "sglang", "torch", "commit")
    return {name: name for name in names}


class TestTable:
    def test_gains_are_of_medians_and_range_over_starts(self) -> None:
        lines = [
            serving_line(path=path, repeat=repeat, round_us=us)
            for path, times in (("sglang", (6600, 6500, 6400)), ("wts", (6000, 6100, 6400)))
            for repeat, us in enumerate(times)
        ]
        base, ours = table.rows(lines)
        assert (base.path, base.gain, base.num_starts) == ("sglang", None, 3)
        assert ours.gain == pytest.approx(6500 / 6100 - 1)
        assert ours.gain_low == pytest.approx(0.0)
        assert ours.gain_high == pytest.approx(0.1)

    def test_gains_are_medians_of_what_was_measured_side_by_side(self) -> None:
        # A machine that gets slower, and starts that differ: no two times are the same.
        slower = (1.0, 1.1, 1.2, 1.0)
        shares = {0: (1.05, 1.06, 1.07, 1.08), 1: (1.02, 1.03, 1.04)}
        lines = [
            serving_line(path=path, repeat=start, n=1, round_us=6000.0 * slow * share)
            for path in ("sglang", "wts")
            for start in shares
            for slow, share in zip(
                slower, shares[start] if path == "sglang" else (1.0,) * 4, strict=False
            )
        ]
        _, ours = table.rows(lines)  # the eighth of wts has nobody beside it
        assert (ours.num_starts, ours.num_times) == (2, 8)
        assert ours.gain == pytest.approx(0.05)
        assert (ours.gain_low, ours.gain_high) == (pytest.approx(0.02), pytest.approx(0.08))
        assert "+5.0%" in table.table([{**headline(), **line} for line in lines])

    def test_gains_of_records_that_hold_a_start_each_are_ratios_of_medians(self) -> None:
        lines = [
            serving_line(path=path, repeat=repeat, n=3, round_us=us)
            for path, times in (("sglang", (6000, 6600)), ("wts", (5800, 6200)))
            for repeat, us in enumerate(times)
        ]
        _, ours = table.rows(lines)
        assert ours.gain == pytest.approx(0.05)  # the median over pairs is 0.0495

    def test_nothing_is_gained_over_what_was_not_measured(self) -> None:
        (row,) = table.rows([serving_line(path="wts")])
        assert (row.gain, row.gain_low) == (None, None)

    def test_runs_stay_apart(self) -> None:
        lines = [serving_line(), serving_line(run_id="two"), serving_line(path="wts")]
        assert table.runs(lines) == [[lines[0], lines[2]], [lines[1]]]
        with pytest.raises(InputError, match="bench serving"):
            table.runs([serving_line(bench="head")])


def test_a_first_difference_is_the_place_of_the_token_or_of_the_end() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
