"""The benchmark's arithmetic, records, options, baselines and gate. Nothing here takes a time."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wts.bench import clock, record
from wts.bench.baselines import sglang_steps, torch_steps
from wts.bench.baselines.inputs import WalkInputs
from wts.bench.baselines.torch_steps import latent_in_torch, step_torch
from wts.bench.compare import (
    Twin,
    Walk,
    WalkFault,
    agreement,
    check_judged,
    check_walk,
    compare,
    compared_steps,
)
from wts.bench.head import breakdown, every, ours, placement, run, theirs
from wts.bench.head.cases import GOALS, HeadCase, Point, grid_cases, product_cases
from wts.bench.head.session import HeadBench
from wts.bench.head.table import Measured, table
from wts.bench.inputs import (
    constant_latent_head,
    draw,
    draw_head,
    draw_lm_head,
    draw_weights,
)
from wts.bench.report.summary import render, render_short
from wts.cli import bench_all, bench_head
from wts.errors import DeviceError, InputError, PlanError
from wts.heads.domino import DominoHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.args import EVENTS, TRACED_ROUNDS
from wts.walk.reference import reference_walk
from wts.walk.walker import Walker

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


# ---- statistics --------------------------------------------------------------------------------


def test_quantiles_of_a_hand_worked_sample() -> None:
    samples = [40.0, 10.0, 30.0, 20.0, 50.0]
    assert clock.quantile(samples, 0.5) == 30.0
    assert clock.quantile(samples, 0.0) == 10.0
    assert clock.quantile(samples, 1.0) == 50.0
    # Place 0.05 * 4 = 0.2 between 10 and 20; place 3.8 between 40 and 50.
    assert clock.quantile(samples, 0.05) == pytest.approx(12.0)
    assert clock.quantile(samples, 0.95) == pytest.approx(48.0)
    assert clock.quantile([7.0], 0.95) == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_quantiles_are_in_order_and_inside_the_samples(samples: list[float]) -> None:
    timing = clock.Timing(name="any", samples_us=tuple(samples))
    assert min(samples) <= timing.p05_us <= timing.p50_us <= timing.p95_us <= max(samples)
    assert timing.num_samples == len(samples)


def test_quantile_refuses_what_has_no_answer() -> None:
    with pytest.raises(InputError, match="at least one"):
        clock.quantile([], 0.5)
    with pytest.raises(InputError, match=r"0\.\.1"):
        clock.quantile([1.0], 50)


def test_the_fit_finds_slope_and_entry() -> None:
    fit = clock.fit_steps({steps: 14.0 + 2.5 * steps for steps in (1, 7, 16)})
    assert fit is not None
    assert fit.step_us == pytest.approx(2.5)
    assert fit.entry_us == pytest.approx(14.0)


def test_the_fit_is_least_squares() -> None:
    # Normal equations by hand: slope = ((-1)(1 - 3) + 0 + (1)(4 - 3)) / 2 = 1.5.
    fit = clock.fit_steps({1: 1.0, 2: 4.0, 3: 4.0})
    assert fit is not None
    assert fit.step_us == pytest.approx(1.5)
    assert fit.entry_us == pytest.approx(0.0)


def test_one_length_has_no_slope() -> None:
    assert clock.fit_steps({7: 30.0}) is None


# ---- the stopwatch -----------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the stream, in order, with events and kernels replaced by their names."""
    queued: list[str] = []

    class Event:
        def record(self) -> None:
            queued.append("event")

        def elapsed_time(self, end: object) -> float:
            return 0.025

    monkeypatch.setattr(clock, "_event", Event)
    monkeypatch.setattr(clock, "_spin", lambda cycles: queued.append("spin"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return queued


def replayed(log_: list[str], *, cache: clock.Cache, rounds: int) -> dict[str, clock.Timing]:
    def graph(name: str) -> Any:
        return SimpleNamespace(replay=lambda: log_.append(name))

    control: Any = object.__new__(clock.CacheControl)
    control._buffer = SimpleNamespace(add_=lambda _: log_.append("write"))
    captured = {
        name: clock.Captured(graph=graph(name), output=torch.zeros(1)) for name in ("a", "b", "c")
    }
    return clock.time_replays(captured, cache=cache, control=control, rounds=rounds)


def test_only_the_replay_lies_between_the_events(log: list[str]) -> None:
    timings = replayed(log, cache="cold", rounds=1)
    assert log[:4] == ["write", "event", "a", "event"]
    assert timings["a"].samples_us == (25.0,)


def test_a_warm_replay_follows_one_of_the_same_graph(log: list[str]) -> None:
    replayed(log, cache="warm", rounds=1)
    assert log[:5] == ["a", "spin", "event", "a", "event"]


def test_variants_take_turns(log: list[str]) -> None:
    timings = replayed(log, cache="cold", rounds=4)
    turns = [name for name in log if name in "abc"]
    assert "".join(turns) == "abc" + "bca" + "cab" + "abc"
    assert {timing.num_samples for timing in timings.values()} == {4}


def test_no_rounds_are_refused(log: list[str]) -> None:
    with pytest.raises(InputError, match="rounds"):
        replayed(log, cache="cold", rounds=0)


# ---- records -----------------------------------------------------------------------------------


def environment(**changes: Any) -> record.Environment:
    fields: dict[str, Any] = {
        "gpu": "h200",
        "sms": 132,
        "driver": "580.1",
        "cuda": "13.0",
        "torch": "2.11.0",
        "sglang": None,
        "commit": "0" * 40,
        "dirty": False,
        "clock_mhz": 1755.0,
        "max_clock_mhz": None,
    }
    return record.Environment(**(fields | changes))


def head_record(**changes: Any) -> record.Record:
    fields: dict[str, Any] = {
        "bench": "head",
        "run_id": "20260101T000000Z-abcdef",
        "path": "wts",
        "head": "markov",
        "weights": "int8",
        "V": 151_936,
        "r": 256,
        "B": 1,
        "K": 16,
        "T": 0,
        "cache": "cold",
        "p50_us": 50.0,
        "p05_us": 49.0,
        "p95_us": 52.5,
        "n": 60,
        "inputs": "random",
        "excludes": "",
        "resident_share": 1.0,
        "plan": "abc123",
    }
    return record.build(environment(), **(fields | changes))


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    first, second = head_record(), head_record(path="sglang", weights="bf16", plan="")
    path = record.append(tmp_path, first)
    assert record.append(tmp_path, second) == path == tmp_path / "h200" / "head.jsonl"
    assert record.read(path) == [first, second]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2),
        ("bench", "speed"),
        ("run_id", ""),
        ("path", "rival"),
        ("V", 0),
        ("V", 151_936.0),
        ("B", True),
        ("T", -1.0),
        ("T", float("inf")),
        ("T", "0"),
        ("H", 0),
        ("G", 1024.0),
        ("excluded_us", -1.0),
        ("cache", "hot"),
        ("p50_us", float("nan")),
        ("p50_us", 48.0),
        ("p95_us", None),
        ("n", 0),
        ("resident_share", 1.5),
        ("plan", None),
        ("sms", "132"),
        ("dirty", 0),
        ("dirty", "no"),
    ],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    bad = head_record() | {field: value}
    with pytest.raises(InputError, match=field):
        record.validate(bad)


@pytest.mark.parametrize("field", sorted(head_record().keys() - {"clock_mhz", "max_clock_mhz"}))
def test_a_missing_field_is_named(field: str) -> None:
    bad = head_record()
    del bad[field]
    with pytest.raises(InputError, match=field):
        record.validate(bad)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(InputError, match="p99_us"):
        record.validate(head_record() | {"p99_us": 60.0})
    with pytest.raises(InputError, match="concurrency"):
        record.validate(head_record() | {"concurrency": 1})


def serving_record(**changes: Any) -> record.Record:
    fields: dict[str, Any] = {
        "bench": "serving",
        "cache": "warm",
        "model": "qwen3-4b",
        "draft": "dspark",
        "block": 16,
        "concurrency": 4,
        "accept": "simulated",
        "tokens_per_s": 3748.0,
        "round_us": 6404.0,
        "accepted_length": 6,
        "repeat": 0,
    }
    return head_record() | fields | changes


SERVING_FIELDS = sorted(serving_record().keys() - head_record().keys())


@pytest.mark.parametrize("field", SERVING_FIELDS)
def test_a_serving_record_needs_its_own_fields(field: str) -> None:
    record.validate(serving_record())
    bad = serving_record()
    del bad[field]
    with pytest.raises(InputError, match=field):
        record.validate(bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("draft", 16),
        ("block", 0),
        ("concurrency", 0),
        ("accept", "guessed"),
        ("tokens_per_s", -1.0),
        ("round_us", float("nan")),
        ("accepted_length", "6"),
        ("repeat", -1),
    ],
)
def test_a_bad_field_of_a_serving_record_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        record.validate(serving_record(**{field: value}))


@pytest.mark.parametrize("accept", ["trained", "checkpoint", "random", "simulated"])
def test_a_serving_record_says_who_accepts(accept: str) -> None:
    record.validate(serving_record(accept=accept))


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "head.jsonl"
    good = json.dumps(head_record())
    for bad in ("{", "[]", json.dumps(head_record() | {"n": -1})):
        path.write_text(f"{good}\n{bad}\n")
        with pytest.raises(InputError, match=r"head\.jsonl, line 2"):
            record.read(path)


def test_committed_results_follow_the_schema() -> None:
    for path in sorted(RESULTS.rglob("*.jsonl")):
        for line in record.read(path):
            assert path == RESULTS / str(line["gpu"]) / f"{line['bench']}.jsonl"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100-SXM5-80GB", "h100"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("", "unknown"),
    ],
)
def test_gpu_folders(name: str, folder: str) -> None:
    assert record.gpu_folder(name) == folder


def test_source_version_of_a_copy_without_repository() -> None:
    assert record.source_version("abc-dirty") == ("abc", True)
    assert record.source_version("abc") == ("abc", False)
    assert record.source_version("") == ("unknown", True)


# ---- cases and options -------------------------------------------------------------------------


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_head.configure(parser)
    return parser.parse_args(arguments)


def test_default_cases() -> None:
    cases = bench_head.cases_of(parse())
    assert [(case.vocab, case.batch, case.steps, case.temperature) for case in cases] == [
        (151_936, 4, (1, 7, 16), 0.0),
        (151_936, 1, (1, 7, 16), 0.0),
    ]
    assert bench_head.caches_of(parse()) == ("cold", "warm")
    assert bench_head.rounds_of(parse()) == 60


def test_options_are_lists() -> None:
    args = parse("--vocab", "1000,2000", "--batch=8,2,8", "--steps", "7,1", "--temperature", "0,.5")
    cases = bench_head.cases_of(args)
    assert len(cases) == 2 * 2 * 2
    assert all(case.steps == (1, 7) for case in cases)
    assert [case.batch for case in cases[:2]] == [8, 2]
    assert bench_head.caches_of(parse("--cache", "warm,cold_read")) == ("warm", "cold_read")


def test_quick_takes_fewer_samples_unless_told() -> None:
    assert bench_head.rounds_of(parse("--quick")) == 20
    assert bench_head.rounds_of(parse("--quick", "--rounds", "5")) == 5
    assert bench_head.caches_of(parse("--quick")) == ("cold",)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch", "0"),
        ("--batch", "1.5"),
        ("--steps", ""),
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--cache", "hot"),
        ("--paths", "wts,rival"),
        ("--gate", "none"),
        ("--head", "markov,lstm"),
        ("--hidden-size", "0"),
        ("--state-size", "many"),
    ],
)
def test_bad_options_are_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


def test_the_grid_covers_every_goal() -> None:
    cases = grid_cases()
    points = {case.point(steps) for case in cases for steps in case.steps}
    assert set(GOALS) <= points
    assert all(len(case.steps) >= 2 for case in cases), "a slope needs two lengths"
    keys = {(case.head, case.vocab, case.batch, case.temperature) for case in cases}
    assert len(keys) == len(cases)


def test_the_grid_can_be_filtered() -> None:
    cases = bench_head.cases_of(parse("--grid", "--vocab", "248320", "--temperature", "1"))
    assert [(case.batch, case.steps) for case in cases] == [(64, (1, 7)), (8, (1, 7)), (1, (1, 7))]
    assert bench_head.cases_of(parse("--grid", "--batch", "3")) == ()
    assert {case.head for case in bench_head.cases_of(parse("--grid"))} == {"markov"}
    cases = bench_head.cases_of(parse("--grid", "--head", "rnn,domino"))
    assert [(case.head, case.batch, case.steps) for case in cases] == [
        ("rnn", 1, (1, 7, 15)),
        ("domino", 1, (1, 7, 15)),
    ]


def test_heads_and_their_sizes_are_options() -> None:
    (markov,) = bench_head.cases_of(parse("--batch", "1"))
    assert (markov.head, markov.hidden_size, markov.state_size) == ("markov", 2560, 1024)
    args = parse("--head", "domino,gated", "--hidden-size", "4096", "--state-size", "512")
    cases = bench_head.cases_of(args)
    assert [(case.head, case.batch) for case in cases] == [
        ("gated", 4),
        ("gated", 1),
        ("domino", 4),
        ("domino", 1),
    ]
    assert str(cases[-1]) == "domino H=4096 G=512 V=151936 r=256 B=1 K=1,7,16 T=0"
    assert str(cases[0]) == "gated H=4096 V=151936 r=256 B=4 K=1,7,16 T=0"
    assert cases[0].point(7) == Point(
        head="gated", vocab=151_936, batch=4, steps=7, temperature=0.0
    )


def test_without_a_gpu_the_benchmark_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_head.main(["--quick"]) == 2
    assert "wanted an NVIDIA GPU" in capsys.readouterr().err


# ---- baselines ---------------------------------------------------------------------------------


def inputs_of(table: Any, projection: Any, base: Any, anchor: Any, **more: Any) -> WalkInputs:
    head_: Any = SimpleNamespace(
        kind="markov",
        table=torch.tensor(table).bfloat16(),
        projection=torch.tensor(projection).bfloat16(),
    )
    return WalkInputs(
        head=head_,
        base_logits=torch.tensor(base).bfloat16(),
        anchor=torch.tensor(anchor),
        **more,
    )


def test_step_torch_on_a_hand_worked_walk() -> None:
    # Three tokens of rank 2. E = (1,0), (0,1), (1,1); W rows (2,0), (0,3), (1,1).
    # Row 0, anchor 0: e = (1,0), bias = (2,0,1); + (0,1,0) = (2,1,1) -> 0.
    #   step 1: prev 0, bias (2,0,1) + (0,2,1) = (2,2,2): all tie -> the lowest id, 0.
    #   step 2: prev 0, bias (2,0,1) + (-1,0,1) = (1,0,2) -> 2.
    # Row 1, anchor 1: e = (0,1), bias = (0,3,1); + (4,0,0) = (4,3,1) -> 0.
    #   step 1: prev 0, bias (2,0,1) + (0,0,5) = (2,0,6) -> 2.
    #   step 2: prev 2, e = (1,1), bias (2,3,2) + (2,0,0) = (4,3,2) -> 0.
    walk = step_torch(
        inputs_of(
            [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
            [[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]],
            [
                [[0.0, 1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.0, 1.0]],
                [[4.0, 0.0, 0.0], [0.0, 0.0, 5.0], [2.0, 0.0, 0.0]],
            ],
            [0, 1],
        )
    )
    assert walk().tolist() == [[0, 0, 2], [0, 2, 0]]
    assert walk().tolist() == [[0, 0, 2], [0, 2, 0]], "a call leaves its inputs alone"


def test_step_torch_rounds_the_bias_and_then_the_sum() -> None:
    # bf16 has 8 significant bits. The bias 257 becomes 256 (ties to even), and 256 - 256 = 0 loses
    # to 0.5; one rounding of 257 - 256 = 1 would win.
    walk = step_torch(
        inputs_of([[1.0, 1.0]] * 2, [[256.0, 1.0], [0.0, 0.0]], [[[-256.0, 0.5]]], [0])
    )
    assert walk().tolist() == [[1]]


def test_step_torch_draws_from_the_softmax() -> None:
    torch.manual_seed(0)
    rows = 20_000
    logits = torch.tensor([1.0, 0.0, -1.0])
    zeros: Any = SimpleNamespace(
        kind="markov",
        table=torch.zeros(3, 2).bfloat16(),
        projection=torch.zeros(3, 2).bfloat16(),
    )
    walk = step_torch(
        WalkInputs(
            head=zeros,
            base_logits=logits.bfloat16().expand(rows, 1, 3).contiguous(),
            anchor=torch.zeros(rows, dtype=torch.int64),
            temperatures=torch.full((rows,), 2.0),
        )
    )
    shares = torch.bincount(walk().flatten(), minlength=3) / rows
    # A share deviates by at most 0.0036; noise of the other sign is off by ten times that.
    assert torch.allclose(shares, torch.softmax(logits / 2.0, dim=0), atol=0.015)


def test_walk_inputs_that_do_not_fit_are_refused() -> None:
    weights: dict[str, Any] = {"table": [[1.0, 0.0]] * 3, "projection": [[1.0, 0.0]] * 3}
    base = [[[0.0, 0.0, 0.0]]]
    with pytest.raises(InputError, match="base_logits"):
        inputs_of(**weights, base=[[[0.0, 0.0]]], anchor=[0])
    with pytest.raises(InputError, match="anchor"):
        inputs_of(**weights, base=base, anchor=[3])
    with pytest.raises(InputError, match="anchor"):
        inputs_of(**weights, base=base, anchor=[0, 1])
    with pytest.raises(InputError, match="temperatures"):
        inputs_of(**weights, base=base, anchor=[0], temperatures=torch.zeros(1))


@pytest.mark.parametrize(
    ("version", "found"), [(None, "found none installed"), ("0.5.22", r"found SGLang 0\.5\.22")]
)
def test_another_sglang_is_refused_by_name(
    version: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_steps, "installed_version", lambda _: version)
    with pytest.raises(DeviceError, match=found):
        sglang_steps.load_sglang()


def test_an_sglang_that_does_not_import_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ImportError(f"no {name} here")

    monkeypatch.setattr(sglang_steps, "installed_version", lambda _: sglang_steps.SGLANG_VERSION)
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(DeviceError, match=r"ImportError: no sglang\.srt"):
        sglang_steps.load_sglang()


def module_of(given_: Any = None, linear: str = "unused") -> Any:
    """A stand-in for a module of SGLang, with what it was made of."""
    names = ("markov_w1", "markov_w2", linear)
    return SimpleNamespace(made_of=given_, **{name: SimpleNamespace() for name in names})


def test_sglang_paths_run_its_own_block() -> None:
    """Against a stand-in for the pieces of SGLang: what they are given, and that tokens return."""
    calls: list[dict[str, Any]] = []

    def draft_markov_block(**given_: Any) -> tuple[torch.Tensor, None]:
        calls.append(given_)
        return torch.full(given_["base_logits"].shape[:2], 5), None

    library = sglang_steps.Sglang(
        version=sglang_steps.SGLANG_VERSION,
        draft_markov_block=draft_markov_block,
        draft_noise=SimpleNamespace,
        vanilla_markov=lambda **_: module_of(),
        gated_markov=lambda **given_: module_of(given_, "gate_proj"),
        rnn=lambda **given_: module_of(given_, "joint_proj"),
        domino_rollout=lambda **_: None,
        tp_sync=lambda group: group,
    )
    inputs = inputs_of(
        [[1.0, 0.0]] * 3,
        [[1.0, 0.0]] * 3,
        [[[0.0, 0.0, 0.0]] * 2],
        [0],
        noise_offset=torch.zeros(1, dtype=torch.int64),
        logits_out=torch.zeros(1, 2, 3).bfloat16(),
    )
    assert sglang_steps.sglang(inputs, library=library)().tolist() == [[5, 5]]
    assert sglang_steps.sglang_greedy(inputs, library=library)().tolist() == [[5, 5]]
    default, fused = calls
    assert default["greedy_draft"] is False
    assert default["logits_out"] is inputs.logits_out
    assert default["step_temperatures"].tolist() == [0.0]
    assert default["markov_head"].markov_w1.weight.data_ptr() == inputs.table.data_ptr()
    assert fused["greedy_draft"] is True
    assert fused["logits_out"] is None


# ---- baselines of heads that read hidden states -------------------------------------------------

RECURRENT = ("gated", "rnn", "domino")
each_kind = pytest.mark.parametrize("kind", RECURRENT)


def small_case(kind: Any, **changes: Any) -> HeadCase:
    fields: dict[str, Any] = {
        "head": kind,
        "hidden_size": 48,
        "state_size": 32,
        "vocab": 200,
        "rank": 64,
        "batch": 4,
        "temperature": 0.0,
        "steps": (1, 3),
    }
    return HeadCase(**(fields | changes))


def recurrent_inputs(kind: Any, steps: int, **changes: Any) -> WalkInputs:
    case = small_case(kind, **changes)
    lm_head = draw_lm_head(case, device="cpu", seed=4) if kind == "domino" else None
    drawn = draw(
        vocab=case.vocab,
        batch=case.batch,
        steps=steps,
        temperature=case.temperature,
        device="cpu",
        seed=5,
        hidden_size=case.hidden_size,
        lm_head=lm_head,
    )
    return WalkInputs(
        head=draw_head(case, device="cpu", seed=6),
        base_logits=drawn.base_logits,
        anchor=drawn.anchor,
        hidden=drawn.hidden,
        lm_head=lm_head,
        temperatures=drawn.temperatures,
        noise_offset=torch.zeros(1, dtype=torch.int64),
        logits_out=torch.zeros_like(drawn.base_logits),
    )


@each_kind
def test_step_torch_is_the_formula_of_each_head(kind: Any) -> None:
    """Its sums are in another order, and on a CPU torch's GRU rounds more often."""
    inputs = recurrent_inputs(kind, 6, batch=30)
    tokens = step_torch(inputs)()
    wanted = reference_walk(inputs.head, inputs.base_logits, inputs.anchor, hidden=inputs.hidden)
    # A walk that went another way once stays there: first steps only.
    assert torch.equal(tokens[:, 0], wanted[:, 0])
    assert (tokens[:, :3] == wanted[:, :3]).double().mean() > 0.8
    assert len(wanted[:, 1:].unique()) > 20, "a walk that stands still says little"
    plain = inputs.base_logits.argmax(2)
    assert (wanted[:, 1:] == plain[:, 1:]).double().mean() < 0.7, "the head has its say"


@each_kind
def test_latents_and_states_of_step_torch_are_near_those_of_the_formula(kind: Any) -> None:
    inputs = recurrent_inputs(kind, 6)
    assert inputs.hidden is not None
    latent_of, state = latent_in_torch(inputs)
    wanted_state = inputs.head.initial_state(inputs.batch)
    for step in range(6):
        token, hidden = inputs.anchor + step, inputs.hidden[:, step]
        state, latent = latent_of(state, inputs.table[token % 200], hidden)
        wanted_state, wanted = inputs.head.latent(wanted_state, token % 200, hidden)
        assert (latent is None) == (wanted is None) == (kind == "domino" and step == 0)
        for found, right in ((latent, wanted), (state, wanted_state)):
            if isinstance(found, torch.Tensor) and isinstance(right, torch.Tensor):
                assert torch.allclose(found.float(), right.float(), rtol=0.05, atol=0.05)


@each_kind
def test_drawn_heads_have_biases_like_those_of_a_markov_head(kind: Any) -> None:
    drawn = draw_head(small_case(kind, vocab=3000, rank=128), device="cpu", seed=0)
    hidden = torch.randn(64, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    state, _ = drawn.latent(drawn.initial_state(64), torch.arange(64), hidden)
    latent = drawn.latent(state, torch.arange(64, 128), hidden)[1]
    assert latent is not None
    bias = latent.float() @ drawn.projection.float().T
    assert float(bias.std()) == pytest.approx(1.5, rel=0.15)


def test_base_logits_of_an_lm_head_are_its_product() -> None:
    inputs = recurrent_inputs("domino", 3, vocab=4000)
    assert inputs.hidden is not None
    assert inputs.lm_head is not None
    wanted = inputs.hidden.float() @ inputs.lm_head.float().T
    assert torch.allclose(inputs.base_logits.float(), wanted, rtol=0.01, atol=0.01)
    assert float(inputs.base_logits.float().std()) == pytest.approx(2.0, rel=0.1)


def test_hidden_states_are_for_the_heads_that_read_them() -> None:
    inputs = recurrent_inputs("gated", 3)
    for changes in ({"hidden": None}, {"hidden": inputs.hidden[:, :2]}):  # type: ignore[index]
        with pytest.raises(InputError, match=r"^hidden: wanted \[4, 3, 48\]"):
            replace(inputs, **changes)
    with pytest.raises(InputError, match=r"^hidden: wanted None"):
        replace(inputs, head=constant_latent_head(inputs.head))


def stand_in_library(calls: list[dict[str, Any]]) -> sglang_steps.Sglang:
    """SGLang's pieces, which note what they are given and draft fives."""

    def draft_markov_block(**given_: Any) -> tuple[torch.Tensor, None]:
        calls.append(given_)
        return torch.full(given_["base_logits"].shape[:2], 5), None

    def domino_rollout(**given_: Any) -> torch.Tensor:
        calls.append(given_)
        batch, positions, _ = given_["draft_hidden"].shape
        return torch.full((batch, positions - 1), 5)

    return sglang_steps.Sglang(
        version=sglang_steps.SGLANG_VERSION,
        draft_markov_block=draft_markov_block,
        draft_noise=SimpleNamespace,
        vanilla_markov=lambda **given_: module_of(given_),
        gated_markov=lambda **given_: module_of(given_, "gate_proj"),
        rnn=lambda **given_: module_of(given_, "joint_proj"),
        domino_rollout=domino_rollout,
        tp_sync=lambda group: group,
    )


@pytest.mark.parametrize(("kind", "linear"), [("gated", "gate_proj"), ("rnn", "joint_proj")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sglang_is_given_its_own_module_of_a_head(
    kind: Any, linear: str, temperature: float
) -> None:
    calls: list[dict[str, Any]] = []
    inputs = recurrent_inputs(kind, 3, temperature=temperature)
    tokens = sglang_steps.sglang(inputs, library=stand_in_library(calls))()
    assert tokens.shape == (4, 3)
    (call,) = calls
    module = call["markov_head"]
    assert module.made_of == {"vocab_size": 200, "markov_rank": 64, "hidden_size": 48}
    names = ("gate_weight", "gate_bias") if kind == "gated" else ("joint_weight", "joint_bias")
    held = getattr(module, linear)
    for part, name in zip((held.weight, held.bias), names, strict=True):
        assert part.data_ptr() == getattr(inputs.head, name).data_ptr()
    assert module.markov_w2.weight.data_ptr() == inputs.projection.data_ptr()
    assert call["draft_hidden"] is inputs.hidden
    assert call["step_temperatures"].tolist() == [temperature] * 4
    with pytest.raises(InputError, match="one greedy row of a Markov head"):
        sglang_steps.sglang_greedy(recurrent_inputs(kind, 2, batch=1), library=stand_in_library([]))


@pytest.mark.parametrize("shift_label", [False, True])
def test_sglang_is_given_a_domino_block(shift_label: bool) -> None:
    calls: list[dict[str, Any]] = []
    inputs = recurrent_inputs("domino", 3)
    assert isinstance(inputs.head, DominoHead)
    inputs = replace(inputs, head=replace(inputs.head, shift_label=shift_label))
    tokens = sglang_steps.sglang_domino(inputs, library=stand_in_library(calls))()
    assert tokens.shape == (4, 3)
    (call,) = calls
    assert isinstance(inputs.head, DominoHead)
    assert call["draft_hidden"].shape == (4, 4, 48)
    assert torch.equal(inputs.head.drafting_hidden(call["draft_hidden"]), inputs.hidden)
    assert (call["vocab_size"], call["candidate_pool_size"]) == (200, 0)
    assert call["shift_label"] is shift_label
    assert call["lm_head_weight"] is inputs.lm_head
    assert torch.equal(call["bonus_tokens"], inputs.anchor)
    assert torch.equal(call["prefix_gru"].weight_ih_l0, inputs.head.gru_input_weight)
    assert torch.equal(call["prefix_gru"].weight_hh_l0, inputs.head.gru_state_weight)
    assert torch.equal(call["embed_proj"][0].weight, inputs.head.projector_weight)
    assert torch.equal(call["embed_proj"][2].weight, inputs.projection)
    assert torch.equal(call["target_embedding"](inputs.anchor), inputs.table[inputs.anchor])


def test_sglang_rolls_out_greedy_domino_heads_only() -> None:
    library = stand_in_library([])
    inputs = recurrent_inputs("domino", 2)
    for other in (
        recurrent_inputs("domino", 2, temperature=1.0),
        recurrent_inputs("gated", 2),
        replace(inputs, lm_head=None),
    ):
        with pytest.raises(InputError, match="a greedy walk of a Domino head"):
            sglang_steps.sglang_domino(other, library=library)


# ---- the gate ----------------------------------------------------------------------------------


def test_gate_steps() -> None:
    assert compared_steps(batch=4, steps=16, whole=False) == 16
    assert compared_steps(batch=8, steps=16, whole=False) == 8
    assert compared_steps(batch=64, steps=16, whole=False) == 2
    assert compared_steps(batch=64, steps=1, whole=False) == 1
    assert compared_steps(batch=64, steps=16, whole=True) == 16


def test_compare_looks_at_bits() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    compare("x", nan, nan.clone())
    with pytest.raises(WalkFault, match=r"x: 1 of 2 differ, first at \[1\]"):
        compare("x", torch.tensor([0.0, 0.0]), torch.tensor([0.0, -0.0]))
    with pytest.raises(WalkFault, match="int32"):
        compare("x", torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))


VOCAB = 96


class TinyWalker:
    """A walk of small weights on the CPU, for either side of the gate; optionally with a fault."""

    def __init__(self, head_: Any, plan: Any = None, *, backend: str = "device") -> None:
        self.head, self.plan, self.backend = head_, plan, backend

    def check(self) -> None:
        pass

    def hidden_term(self) -> None:
        pass

    def twin(self) -> Twin:
        return self

    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden_term: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Any = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tokens = step_torch(
            WalkInputs(
                head=self.head,
                base_logits=base_logits,
                anchor=anchor,
            )
        )()
        if logits_out is not None:
            logits_out.copy_(base_logits)
        return tokens


class FaultyWalker(TinyWalker):
    """Right but for the last row of the given step, as a stale candidate would make it."""

    step = 1

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        tokens = super().__call__(*args, **kwargs)
        if self.backend == "device" and tokens.shape[1] > self.step:
            tokens[-1, self.step] += 1
        return tokens


def tiny_head() -> Any:
    table, projection = draw_weights(vocab=VOCAB, rank=64, device="cpu", seed=0)
    return SimpleNamespace(kind="markov", table=table, projection=projection)


def checked(walk: Walk, *, batch: int, temperature: float, whole: bool = False) -> int:
    drawn = draw(vocab=VOCAB, batch=batch, steps=16, temperature=temperature, device="cpu", seed=1)
    return check_walk(
        walk,
        TinyWalker(tiny_head(), backend="emulator"),
        drawn,
        whole=whole,
    )


def test_equal_walks_pass_the_gate() -> None:
    walk = TinyWalker(tiny_head())
    assert checked(walk, batch=4, temperature=0.0) == 4 * 16
    assert checked(walk, batch=64, temperature=0.0) == 64 * 2 + 3 * 16
    assert checked(walk, batch=64, temperature=0.0, whole=True) == 64 * 16
    assert checked(walk, batch=64, temperature=1.0) == 64 * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fault", ["", "token", "logits"])
def test_walks_with_bf16_weights_are_followed(temperature: float, fault: str) -> None:
    """A token where one only is allowed, and each step logit of sampled rows."""
    case = HeadCase(vocab=VOCAB, rank=64, batch=4, temperature=temperature, steps=(16,))
    made_of = draw_head(case, device="cpu", seed=0)
    plan = plan_residency(
        made_of, "h200", batch=4, steps=16, sampled=temperature > 0, weights="bf16"
    )
    walker = Walker(made_of, plan, backend="emulator")

    def walk(*args: Any, **kwargs: Any) -> torch.Tensor:
        tokens = walker(*args, **kwargs)
        if fault == "token":
            tokens[2] = (tokens[2] + 1) % VOCAB
        if fault == "logits" and temperature > 0:
            kwargs["logits_out"][1, 3, 5] += 1.0
        return tokens

    def checked() -> int:
        return check_judged(
            cast("Walk", walk),
            walker.twin(),
            draw(vocab=VOCAB, batch=4, steps=16, temperature=temperature, device="cpu", seed=1),
            whole=False,
        )

    if fault == "token" or (fault == "logits" and temperature > 0):
        with pytest.raises(WalkFault, match="tokens" if fault == "token" else "step logits"):
            checked()
    else:
        assert checked() > 4 * 16 * 0.8


@pytest.mark.parametrize("step", [0, 1, 15])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_a_wrong_token_is_caught(batch: int, step: int) -> None:
    walk = FaultyWalker(tiny_head())
    walk.step = step
    with pytest.raises(WalkFault, match="tokens"):
        checked(walk, batch=batch, temperature=0.0)


def test_wrong_step_logits_are_caught() -> None:
    class WrongLogits(TinyWalker):
        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            tokens = super().__call__(*args, **kwargs)
            if kwargs.get("logits_out") is not None:
                kwargs["logits_out"][0, 0, 3] += 1
            return tokens

    with pytest.raises(WalkFault, match=r"step logits.*\[0, 0, 3\]"):
        checked(WrongLogits(tiny_head()), batch=2, temperature=1.0)


def test_drawn_inputs_are_as_said() -> None:
    table, projection = draw_weights(vocab=4096, rank=256, device="cpu", seed=0)
    bias = table[:64].float() @ projection.float().T
    assert float(bias.std()) == pytest.approx(1.5, rel=0.1)
    drawn = draw(vocab=4096, batch=2, steps=3, temperature=0.0, device="cpu", seed=0)
    assert float(drawn.base_logits.float().std()) == pytest.approx(2.0, rel=0.1)
    assert drawn.base_logits.dtype == torch.bfloat16
    assert drawn.temperatures is None
    again = draw(vocab=4096, batch=2, steps=3, temperature=0.0, device="cpu", seed=0)
    assert torch.equal(again.base_logits, drawn.base_logits)


# ---- a whole run, with a stand-in for the GPU --------------------------------------------------


@pytest.fixture
def no_stopwatch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace graphs, events and the questions to the GPU; everything is computed on the CPU."""

    def replay(launch: Any, output: torch.Tensor) -> None:
        output.copy_(launch())

    def capture(variants: dict[str, Any]) -> dict[str, clock.Captured]:
        made = {}
        for name, launch in variants.items():
            output = launch()
            graph: Any = SimpleNamespace(replay=partial(replay, launch, output))
            made[name] = clock.Captured(graph=graph, output=output)
        return made

    def time_replays(
        captured: dict[str, clock.Captured], *, cache: str, control: Any, rounds: int
    ) -> dict[str, clock.Timing]:
        return {
            name: clock.Timing(name=name, samples_us=tuple(float(n + 10) for n in range(rounds)))
            for name in captured
        }

    monkeypatch.setattr(clock, "capture", capture)
    monkeypatch.setattr(clock, "time_replays", time_replays)
    monkeypatch.setattr(clock, "CacheControl", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(record, "capture_environment", lambda described: environment())
    monkeypatch.setattr(run, "DEVICE", "cpu")
    return monkeypatch


@pytest.fixture
def no_gpu(no_stopwatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace the walker and its plan too. The rest of the benchmark is real."""
    plan = SimpleNamespace(resident_share=1.0, hash="feed")
    no_stopwatch.setattr(ours, "Walker", TinyWalker)
    no_stopwatch.setattr(ours, "plan_residency", lambda *_args, **_kwargs: plan)
    return no_stopwatch


SMALL = ("--vocab", "96", "--rank", "64", "--batch", "2,1", "--steps", "1,3", "--quick")


def test_a_run_writes_a_record_per_point(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_head.main([*SMALL, "--paths", "wts,step_torch", "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {(line["B"], line["K"], line["path"]) for line in records} == {
        (batch, steps, path)
        for batch in (1, 2)
        for steps in (1, 3)
        for path in ("wts", "step_torch")
    }
    assert len({line["run_id"] for line in records}) == 1
    ours = [line for line in records if line["path"] == "wts"]
    theirs = [line for line in records if line["path"] == "step_torch"]
    assert {(line["plan"], line["weights"], line["resident_share"]) for line in ours} == {
        ("feed", "int8", 1.0)
    }
    assert {(line["plan"], line["weights"], line["resident_share"]) for line in theirs} == {
        ("", "bf16", 0.0)
    }
    assert {line["first_token_agreement"] for line in theirs} == {1.0}
    assert "step_torch / path" in capsys.readouterr().out


@pytest.fixture
def emulated(no_stopwatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The real planner and Walker, with the emulator in the place of the device."""

    def plan_for_h200(made_of: Any, device: str, **given_: Any) -> Any:
        assert device == "LOCAL"
        return plan_residency(made_of, "h200", **given_)

    def emulator(made_of: Any, plan_: Any, *, backend: str) -> Any:
        return Walker(made_of, plan_, backend="emulator")

    no_stopwatch.setattr(ours, "plan_residency", plan_for_h200)
    no_stopwatch.setattr(ours, "Walker", emulator)
    return no_stopwatch


def test_the_walker_itself_goes_through_a_run(
    emulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_head.main([*SMALL, "--paths", "wts,step_torch"]) == 0
    assert "100%" in capsys.readouterr().out


RECURRENT_SMALL = (*SMALL, "--hidden-size", "40", "--state-size", "32")


@each_kind
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_of_a_head_that_reads_hidden_states(
    kind: Any, temperature: float, emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Records say the head and its sizes; its probe is timed beside it."""
    arguments = [*RECURRENT_SMALL, "--head", kind, "--temperature", str(temperature)]
    paths = ("wts", "probe", "step_torch")
    assert bench_head.main([*arguments, "--paths", ",".join(paths), "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {(line["B"], line["K"], line["path"]) for line in records} == {
        (batch, steps, path) for batch in (1, 2) for steps in (1, 3) for path in paths
    }
    for line in records:
        assert (line["head"], line["H"]) == (kind, 40)
        assert line.get("G") == (32 if kind == "domino" else None)
        assert line["excludes"] == ("lm_head" if kind == "domino" else "")
        assert line.get("excluded_us") == (0.0 if kind == "domino" else None)
        ours = line["path"] in ("wts", "probe")
        assert line["weights"] == ("int8" if ours else "bf16")
        assert bool(line["plan"]) is ours
    plans = {path: {line["plan"] for line in records if line["path"] == path} for path in paths}
    assert not plans["wts"] & plans["probe"]
    out = capsys.readouterr()
    assert out.out.count(" tokens of") == 0
    assert out.err.count("tokens of wts equal the emulator's") == 2
    assert out.err.count("tokens of probe equal the emulator's") == 2


def test_a_run_of_bf16_weights(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*RECURRENT_SMALL, "--head", "markov,gated", "--weights", "bf16"]
    assert bench_head.main([*arguments, "--paths", "wts,step_torch", "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {line["weights"] for line in records} == {"bf16"}
    assert {bool(line["plan"]) for line in records if line["path"] == "wts"} == {True}
    assert capsys.readouterr().err.count("tokens of wts are the only ones allowed") == 4


def test_a_head_may_be_one_of_several(emulated: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = [*RECURRENT_SMALL, "--head", "markov,gated", "--paths", "wts,probe"]
    assert bench_head.main([*arguments, "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {(line["head"], line["path"]) for line in records} == {
        ("markov", "wts"),
        ("gated", "wts"),
        ("gated", "probe"),
    }
    assert all("H" not in line for line in records if line["head"] == "markov")


def test_a_streaming_walk_is_timed_where_it_is_named(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = ("--rank", "256", "--out", str(tmp_path))
    given_ = [*SMALL, *wide, "--head", "markov,gated", "--hidden-size", "40"]
    assert bench_head.main([*given_, "--paths", "wts,wts_streaming"]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    streaming = [line for line in records if line["path"] == "wts_streaming"]
    assert {(line["head"], line["weights"], line["resident_share"]) for line in streaming} == {
        ("markov", "int8", 0.0)
    }
    assert {(line["B"], line["K"]) for line in streaming} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert "tokens of wts_streaming equal the emulator's" in capsys.readouterr().err
    assert "wts_streaming" not in theirs.choose_paths(None, print)[0]


def test_an_exact_walk_says_what_it_decided_by_exact_logits(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given_ = [*SMALL, "--out", str(tmp_path), "--temperature", "0,1"]
    assert bench_head.main([*given_, "--paths", "wts,wts_exact"]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    exact = [line for line in records if line["path"] == "wts_exact"]
    assert {line["T"] for line in exact} == {0.0}
    assert {(line["B"], line["K"]) for line in exact} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert all(0 <= line["rescored_share"] <= 1 <= 1 + line["rescored_rows"] for line in exact)
    assert all("rescored_share" not in line for line in records if line["path"] == "wts")
    said = capsys.readouterr()
    assert "tokens of wts_exact equal the emulator's" in said.err
    assert "of the exact walk's steps" in said.out
    assert "wts_exact" not in theirs.choose_paths(None, print)[0]


def test_a_case_that_no_path_exists_for_has_no_rows(
    emulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def capture(variants: dict[str, Any]) -> dict[str, clock.Captured]:
        raise AssertionError("there is nothing to time")

    emulated.setattr(clock, "capture", capture)
    assert bench_head.main([*SMALL, "--paths", "probe"]) == 0
    assert "done, 0 points" in capsys.readouterr().err


def test_the_lm_head_product_is_subtracted_from_sglang_alone(
    emulated: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def time_replays(
        captured: dict[str, clock.Captured], *, cache: str, control: Any, rounds: int
    ) -> dict[str, clock.Timing]:
        us = {"wts": 50.0, "probe": 30.0, "step_torch": 500.0, "sglang": 700.0, "lm_head": 190.0}
        return {
            name: clock.Timing(name=name, samples_us=(us[name.split("@")[0]],) * 3)
            for name in captured
        }

    def sglang_domino(inputs: WalkInputs, *, library: Any) -> Any:
        return step_torch(inputs)

    emulated.setattr(clock, "time_replays", time_replays)
    emulated.setattr(sglang_steps, "load_sglang", lambda: stand_in_library([]))
    emulated.setattr(sglang_steps, "sglang_domino", sglang_domino)
    arguments = [*RECURRENT_SMALL, "--head", "domino", "--batch", "1", "--steps", "3"]
    assert bench_head.main([*arguments, "--out", str(tmp_path)]) == 0
    records = record.read(tmp_path / "h200" / "head.jsonl")
    found = {line["path"]: (line["p50_us"], line["excluded_us"]) for line in records}
    assert found == {
        "wts": (50.0, 0.0),
        "probe": (30.0, 0.0),
        "step_torch": (500.0, 0.0),
        "sglang": (510.0, 190.0),
    }
    assert "190.0 us alone, is subtracted from sglang" in capsys.readouterr().out


@each_kind
def test_a_wrong_token_of_a_head_that_reads_hidden_states_is_caught(
    kind: Any, emulated: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the emulator is given is the device's own hidden term, and a wrong one is found out."""
    real = Walker.hidden_term

    def wrong(walker: Walker) -> torch.Tensor | None:
        term = real(walker)
        return None if term is None else term + 3

    emulated.setattr(Walker, "hidden_term", wrong)
    assert bench_head.main([*RECURRENT_SMALL, "--head", kind, "--paths", "wts"]) == 1
    assert "WalkFault: tokens" in capsys.readouterr().out


def test_parts_of_a_step_are_between_the_events_of_a_round() -> None:
    """Two groups take turns, two steps: the last step's rounds are left out."""
    names, traced = EVENTS, TRACED_ROUNDS
    assert names[:2] == ("LATENT_SEEN", "SWEPT")
    stamps = torch.zeros(3, traced, len(names), dtype=torch.int64)
    for block in range(3):
        for round_ in range(4):
            begin = 1000 * (block + 1) + 70 * (round_ // 2) + 5 * (round_ % 2)
            stamps[block, round_] = begin + torch.tensor([0, 10, 13, 15, 20, 50, 65])
    stamps[:, 2:, 1:] -= torch.arange(1, len(names)) * 100
    found = breakdown.parts_of(stamps, steps=2, groups=2)
    assert list(found.values()) == [10, 3, 2, 5, 30, 15, 5, 70]
    assert list(found) == list(breakdown.PARTS)
    stamps[:, :, names.index("LATENT_SENT")] = 0  # a kernel of many groups does not mark it
    found = breakdown.parts_of(stamps, steps=2, groups=2)
    assert set(breakdown.PARTS) - set(found) == {"latent and state", "seen"}
    text = breakdown.parts_text([("gated V=9, wts", found)])
    assert "gated V=9, wts: sweep 10, " in text


def test_parts_are_of_a_traced_build_that_gives_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = recurrent_inputs("rnn", 3)
    plan = plan_residency(inputs.head, "h200", batch=4, steps=3)
    walker = Walker(inputs.head, plan, backend="emulator")
    wrong = 0

    class Traced:
        def __init__(self, *_: Any, trace: bool) -> None:
            assert trace
            self.plan = plan
            shape = (plan.num_blocks, TRACED_ROUNDS, len(EVENTS))
            self.stamps = torch.zeros(shape, dtype=torch.int64)

        def launch(self, call: Any, tokens: torch.Tensor) -> None:
            self.stamps.copy_(torch.arange(self.stamps.numel()).view_as(self.stamps))
            tokens.copy_(walker(call.base_logits, call.anchor, hidden=call.hidden) + wrong)

        def check(self) -> None:
            pass

    monkeypatch.setattr(breakdown, "LoadedKernel", Traced)

    class Stand(SimpleNamespace):
        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            tokens: torch.Tensor = walker(*args, **kwargs)
            return tokens

    stand: Any = Stand(head=inputs.head, plan=plan)
    assert breakdown.traced_parts(stand, inputs)["sweep"] == 1
    wrong = 1
    with pytest.raises(WalkFault, match="traced"):
        breakdown.traced_parts(stand, inputs)


def test_agreement_is_of_last_tokens_where_the_earlier_ones_agree() -> None:
    ours = torch.tensor([[1, 2], [1, 3], [4, 5], [6, 7]])
    theirs = torch.tensor([[1, 2], [1, 4], [0, 5], [6, 7]])
    assert agreement(ours, theirs) == pytest.approx(2 / 3)
    assert agreement(ours[:, :1], theirs[:, :1]) == 0.75
    assert agreement(ours, ours + 1) == 0.0


def test_the_table_of_other_heads_names_them_and_their_probes() -> None:
    def line(kind: str, path: str, us: float, temperature: float = 0.0) -> record.Record:
        return head_record(
            head=kind, path=path, p50_us=us, p05_us=us, p95_us=us, T=temperature, run_id="one"
        )

    paths = {"wts": 50.0, "sglang": 600.0, "step_torch": 700.0}
    markov = [line("markov", path, us) for path, us in paths.items()]
    (row,) = [text for text in render(markov, source="x").splitlines() if "600.0" in text]
    assert row == "| 151,936 | 1 | 0 | 16 | 50.0 | 600.0 | 700.0 | 12.0 x |"
    gated = [line("gated", path, us + 10) for path, us in {**paths, "probe": 45.0}.items()]
    sampled = [line("domino", path, paths[path], 1.0) for path in ("wts", "step_torch")]
    unpaired = [line("rnn", "wts", 1.0), line("rnn", "step_torch", 1.0)]
    text = render([*sampled, *gated, *unpaired, *markov], source="x")
    rows = [row for row in text.splitlines() if "151,936" in row]
    assert rows == [
        "| markov | 151,936 | 1 | 0 | 16 | 50.0 | 600.0 | 700.0 | 12.0 x |  |",
        "| gated | 151,936 | 1 | 0 | 16 | 60.0 | 610.0 | 710.0 | 10.2 x | 55.0 |",
        "| domino | 151,936 | 1 | 1 | 16 | 50.0 |  | 700.0 |  |  |",
    ]
    widths = {row.count("|") for row in text.splitlines() if row.startswith("|")}
    assert len(widths) == 1
    assert "Domino without the product" in text


def test_the_short_table_has_temperatures_side_by_side() -> None:
    def lines(kind: str, batch: int, us: float, steps: int = 7, temperature: float = 0.0) -> Any:
        paths = {"wts": us, "sglang": 4 * us, "step_torch": 5 * us}
        if kind == "domino" and temperature:
            del paths["sglang"]
        return [
            head_record(
                head=kind, path=path, p50_us=t, p05_us=t, p95_us=t, B=batch, T=temperature, K=steps
            )
            for path, t in paths.items()
        ]

    markov = [*lines("markov", 2, 20.0), *lines("markov", 2, 30.0, temperature=1.0)]
    markov += [*lines("markov", 1, 10.0), *lines("markov", 1, 99.0, steps=16)]
    unpaired = lines("markov", 4, 50.0)[:1]
    rows = render_short([*markov, *unpaired], source="x").splitlines()
    assert rows[0].count("T = ") == 2
    assert rows[2:4] == [
        "| 151,936 | 1 | 10.0 | 40.0 | 4.0 x |  |  |  |",
        "| 151,936 | 2 | 20.0 | 80.0 | 4.0 x | 30.0 | 120.0 | 4.0 x |",
    ]
    assert rows[4] == ""
    assert rows[5].startswith("K = 7 steps. Medians")
    domino = lines("domino", 1, 15.0, temperature=1.0)
    rows = render_short([*markov, *domino], source="x").splitlines()
    assert rows[4] == "| domino | 151,936 | 1 |  |  |  | 15.0 |  |  |"
    assert len({row.count("|") for row in rows if row.startswith("|")}) == 1
    with pytest.raises(InputError, match="name one of 7, 16"):
        render_short(markov, source="x", steps=5)


def test_a_case_that_fails_its_gate_is_not_timed(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu.setattr(ours, "Walker", FaultyWalker)
    assert bench_head.main([*SMALL, "--paths", "wts", "--out", str(tmp_path)]) == 1
    assert not (tmp_path / "h200").exists()
    assert capsys.readouterr().out.count("FAILED V=96") == 2


def test_a_case_without_a_plan_fails_alone(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan_without(*_args: Any, batch: int, **_kwargs: Any) -> Any:
        if batch == 2:
            raise PlanError("batch: too large")
        return SimpleNamespace(resident_share=0.5, hash="feed")

    no_gpu.setattr(ours, "plan_residency", plan_without)
    assert bench_head.main([*SMALL, "--paths", "wts", "--out", str(tmp_path)]) == 1
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {line["B"] for line in records} == {1}
    assert "PlanError: batch: too large" in capsys.readouterr().out


def test_a_baseline_that_computes_something_else_is_not_timed(
    no_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def zeros(inputs: WalkInputs) -> Any:
        return lambda: torch.zeros(inputs.batch, inputs.steps, dtype=torch.int64)

    no_gpu.setattr(torch_steps, "step_torch", zeros)
    assert bench_head.main([*SMALL, "--paths", "wts,step_torch"]) == 1
    assert "computes something else" in capsys.readouterr().out


def test_a_baseline_that_raises_does_not_cost_our_times(
    no_gpu: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(inputs: WalkInputs) -> Any:
        raise RuntimeError("no compiler")

    no_gpu.setattr(torch_steps, "step_torch", broken)
    arguments = [*SMALL, "--paths", "wts,step_torch", "--out", str(tmp_path)]
    assert bench_head.main(arguments) == 1
    assert "step_torch: RuntimeError: no compiler" in capsys.readouterr().out
    records = record.read(tmp_path / "h200" / "head.jsonl")
    assert {line["path"] for line in records} == {"wts"}


def test_sglang_left_out_says_why_and_asked_for_by_name_fails(
    no_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu.setattr(sglang_steps, "installed_version", lambda _: None)
    assert bench_head.main([*SMALL]) == 0
    assert "left out. sglang: wanted SGLang 0.5.23" in capsys.readouterr().err
    assert bench_head.main([*SMALL, "--paths", "wts,sglang"]) == 2
    assert "wanted SGLang 0.5.23" in capsys.readouterr().err


def test_the_table_shows_ratios_goals_and_slopes() -> None:
    def row(path: str, steps: int, us: float) -> Measured:
        return Measured(
            point=Point(vocab=151_936, batch=1, steps=steps, temperature=0.0),
            rank=256,
            path=path,
            cache="cold",
            timing=clock.Timing(name=path, samples_us=(us,)),
            agreement=None,
            resident_share=1.0,
            plan="feed",
        )

    rows = [
        row("wts", 7, 27.0),
        row("wts", 16, 45.0),
        row("probe", 7, 20.0),
        row("probe", 16, 33.5),
    ]
    rows += [row("sglang", 7, 216.0), row("sglang", 16, 486.0)]
    text = table(rows, gpu="h200")
    ours = [line.split() for line in text.splitlines() if " wts " in line]
    assert ours[0][-4:] == ["8.00", "x", "8", "x"]
    assert ours[1][-4:] == ["10.80", "x", "11.5", "x"]
    assert ours[2][-4:] == ["2.000", "13.00", "1.33", "x"]
    assert "11.5 x" not in table(rows, gpu="h100")


def test_product_cases_put_the_largest_batch_first() -> None:
    cases = product_cases(
        vocabs=(10,), ranks=(64,), batches=(1, 4, 2), temperatures=(1.0, 0.0), steps=(3, 1)
    )
    assert [(case.temperature, case.batch) for case in cases] == [
        (0.0, 4),
        (0.0, 2),
        (0.0, 1),
        (1.0, 4),
        (1.0, 2),
        (1.0, 1),
    ]
    assert str(cases[0]) == "V=10 r=64 B=4 K=1,3 T=0"
    assert isinstance(cases[0], HeadCase)


# ---- wts bench all -----------------------------------------------------------------------------


def small_stages(*, quick: bool) -> tuple[every.Stage, ...]:
    def cases(kind: Any = "markov") -> Any:
        return product_cases(
            heads=(kind,),
            hidden_size=40,
            vocabs=(96,),
            ranks=(256,),
            batches=(1, 2),
            temperatures=(0.0,),
            steps=(1, 3),
        )

    return (
        every.Stage(name="residency", cases=cases(), more_paths=("wts_streaming",)),
        every.Stage(name="heads", cases=cases("gated")),
        every.Stage(name="placement", cases=cases()[:1], placements=(2, 5)),
    )


@pytest.fixture
def all_small(emulated: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def placed(made_of: Any, plan: Any) -> Any:
        walker = ours.Walker(made_of, plan, backend="device")
        return walker, 8 if plan.register_fragments == 5 else 0

    def no_sglang(wanted: Any, say: Any) -> Any:
        return ("wts", "probe", "step_torch"), None

    emulated.setattr(every, "stages", small_stages)
    emulated.setattr(theirs, "choose_paths", no_sglang)
    emulated.setattr(placement, "placed_walker", placed)
    return emulated


def measured_points(folder: Path, bench: str) -> list[tuple[object, ...]]:
    fields = ("head", "path", "B", "K", "run_id")
    lines = record.read(folder / "h200" / f"{bench}.jsonl")
    return [tuple(line[name] for name in fields) for line in lines]


def test_all_measures_every_stage(all_small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert bench_all.main(["--out", str(tmp_path), "--run-id", "one"]) == 0
    points = measured_points(tmp_path, "head")
    assert set(points) == {
        (kind, path, batch, steps, "one")
        for kind, paths in (
            ("markov", ("wts", "wts_streaming", "step_torch")),
            ("gated", ("wts", "probe", "step_torch")),
        )
        for path in paths
        for batch in (1, 2)
        for steps in (1, 3)
    }
    assert len(points) == len(set(points))
    placed = record.read(tmp_path / "h200" / "placement.jsonl")
    found = {(line["register_fragments"], line["K"], line["spill_bytes"]) for line in placed}
    assert found == {(2, 1, 0), (2, 3, 0), (5, 1, 8), (5, 3, 8)}
    assert {line["run_id"] for line in placed} == {"one"}


def test_all_goes_on_where_it_was_stopped(
    all_small: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = HeadBench.measure

    def stopped(self: Any, case: Any, say: Any) -> Any:
        if case.head == "gated":
            raise KeyboardInterrupt
        return real(self, case, say)

    with all_small.context() as patched:
        patched.setattr(HeadBench, "measure", stopped)
        with pytest.raises(KeyboardInterrupt):
            bench_all.main(["--out", str(tmp_path), "--run-id", "one"])
    before = measured_points(tmp_path, "head")
    assert {point[0] for point in before} == {"markov"}
    assert bench_all.main(["--out", str(tmp_path), "--run-id", "two"]) == 0
    after = measured_points(tmp_path, "head")
    assert after[: len(before)] == before
    assert {point[0] for point in after[len(before) :]} == {"gated"}
    assert {point[-1] for point in after} == {"one"}
    assert "run one: 3 of 5 cases to measure" in capsys.readouterr().err
    # What is complete is not gone on with.
    assert bench_all.main(["--out", str(tmp_path), "--run-id", "three"]) == 0
    assert "run three: 5 of 5 cases" in capsys.readouterr().err


def test_all_begins_anew_where_something_else_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "h200" / "all.json"
    first = every.Progress(path, {"commit": "a"}, "one")
    first.keep("grid: x", complete=False)
    same = every.Progress(path, {"commit": "a"}, "two")
    assert (same.run_id, same.finished) == ("one", {"grid: x"})
    other = every.Progress(path, {"commit": "b"}, "two")
    assert (other.run_id, other.finished) == ("two", set())
    path.write_text("{ torn")
    assert every.Progress(path, {"commit": "a"}, "two").run_id == "two"


def test_all_keeps_what_a_failing_case_leaves_and_tries_it_again(
    all_small: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = HeadBench.measure

    def failing(self: Any, case: Any, say: Any) -> Any:
        if (case.head, case.batch) == ("gated", 2):
            raise WalkFault("tokens differ")
        return real(self, case, say)

    with all_small.context() as patched:
        patched.setattr(HeadBench, "measure", failing)
        assert bench_all.main(["--out", str(tmp_path), "--run-id", "one"]) == 1
    out = capsys.readouterr()
    assert "FAILED heads: gated" in out.out
    assert "tokens differ" in out.out
    assert " min left" in out.err
    assert bench_all.main(["--out", str(tmp_path)]) == 0
    assert "run one: 1 of 5 cases to measure" in capsys.readouterr().err


def test_all_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_all.main(["--out", str(tmp_path)]) == 2
    assert "wanted an NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize("quick", [False, True])
def test_stages_hold_what_the_figures_need(quick: bool) -> None:
    found = every.stages(quick=quick)
    names = [f"{stage.name}: {case}" for stage in found for case in stage.cases]
    assert len(names) == len(set(names))
    (residency,) = [stage for stage in found if stage.name == "residency"]
    assert residency.more_paths == ("wts_streaming",)
    assert (151_936, 1, 0.0) in {(c.vocab, c.batch, c.temperature) for c in residency.cases}
    kinds = {case.head for stage in found for case in stage.cases}
    assert kinds == ({"markov"} if quick else {"markov", "gated", "rnn", "domino"})
    assert all(len(case.steps) > 1 for stage in found for case in stage.cases)
    assert len(names) <= 3 if quick else len(names) >= 30
