"""The cost model: near the committed measurements, and honest about guesses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wts import cli
from wts.bench.record import read
from wts.bench.report.cost_fit import fit
from wts.bench.report.predicted import Predicted, mean_error, predictions
from wts.dtypes import WeightType
from wts.errors import DeviceError
from wts.hardware.gpu import GPUS, GpuSpec, gpu_spec
from wts.heads.kinds import Shape
from wts.kernels.planner import plan_residency
from wts.kernels.resident.cost import Constants, Cost, cost_line, predict

RECORDS = Path(__file__).parents[1] / "benchmarks" / "results" / "h200" / "head.jsonl"


@pytest.fixture(scope="module")
def points() -> list[Predicted]:
    return predictions(read(RECORDS))


def cost_of(gpu: str = "h200", *, vocab: int = 151_936, batch: int = 1, **more: bool) -> Cost:
    spec = gpu_spec(gpu)
    return predict(plan_residency(Shape(vocab=vocab, rank=256), spec, batch=batch, **more), spec)


def test_stays_near_the_committed_measurements(points: list[Predicted]) -> None:
    assert len(points) >= 72
    assert mean_error(points) < 0.06
    assert max(abs(point.error()) for point in points) < 0.25


def test_the_largest_walk_of_the_case_makes_the_plan(points: list[Predicted]) -> None:
    assert {point.plan.steps for point in points} == {16}
    assert {point.plan.batch for point in points} == {point.batch for point in points}


def test_fit_finds_the_constants_that_made_the_times(points: list[Predicted]) -> None:
    made_with = replace(Constants(), launch_us=5.0, greedy_exchange_cycles=1000.0, hbm_share=0.6)
    made = [replace(p, measured_us=p.predicted_us(made_with)) for p in points]
    assert fit(made).fitted() == pytest.approx(made_with.fitted(), rel=0.01)


def test_committed_constants_are_the_fitted_ones(points: list[Predicted]) -> None:
    # Wide enough for a later run's records; a model that no longer fits shows in the errors above.
    found = fit(points)
    assert mean_error(points) < mean_error(points, found) + 0.02


def test_fragments_that_stream_cost_a_step_and_no_entry() -> None:
    spec = GPUS["h200"]
    plan = plan_residency(Shape(vocab=151_936, rank=256), spec)
    moved = 24
    streaming = replace(
        plan,
        shared_fragments=plan.shared_fragments - moved,
        streamed_fragments=moved + 40,
        register_fragments=plan.register_fragments - 40,
    )
    assert predict(streaming, spec).step_us > predict(plan, spec).step_us
    assert predict(streaming, spec).entry_us == predict(plan, spec).entry_us
    assert predict(plan, spec).stream_us == 0


@pytest.mark.parametrize("sampled", [False, True])
def test_more_requests_never_take_less(sampled: bool) -> None:
    times = [cost_of(batch=b, sampled=sampled).walk_us(16) for b in (1, 2, 4, 8, 16, 32, 64)]
    assert times == sorted(times)


def test_groups_hide_exchanges() -> None:
    assert cost_of(batch=8).exchange_us > 0
    assert cost_of(batch=16).exchange_us == 0


def test_parts_add_up() -> None:
    cost = cost_of(vocab=248_320, batch=8)
    assert cost.walk_us(7) == pytest.approx(cost.entry_us + 7 * cost.step_us)
    assert min(cost.product_us, cost.stream_us, cost.judge_us, cost.exchange_us) > 0


@pytest.mark.parametrize(
    ("gpu", "blocks", "kind"),
    [("h200", 132, True), ("h200", 100, False), ("h100", 132, False), ("h20", 78, False)],
)
def test_only_the_measured_kind_is_called_measured(gpu: str, blocks: int, kind: bool) -> None:
    spec = gpu_spec(gpu).with_blocks(blocks)
    assert predict(plan_residency(Shape(vocab=9999, rank=256), spec), spec).measured_kind is kind


def driver_spec(name: str) -> GpuSpec:
    return replace(GPUS["h200"], name=name, clock_mhz=0, dram_bytes_per_s=0)


@pytest.mark.parametrize(
    ("name", "like"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 80GB HBM3", "h100")],
)
def test_what_a_driver_leaves_out_is_looked_up(name: str, like: str) -> None:
    spec = driver_spec(name)
    plan = plan_residency(Shape(vocab=9999, rank=256), spec)
    known = replace(
        spec, clock_mhz=GPUS[like].clock_mhz, dram_bytes_per_s=GPUS[like].dram_bytes_per_s
    )
    assert predict(plan, spec).walk_us(7) == predict(plan, known).walk_us(7)


@pytest.mark.parametrize(
    ("gpu", "weights", "vocab", "words"),
    [
        ("b200", "int8", 151_936, ["data sheets", "two dies"]),
        ("b200", "int8", 248_320, ["data sheets", "two dies", "35 bytes a cycle"]),
        ("b300", "bf16", 151_936, ["data sheets", "two dies", "a product of tcgen05 takes 32"]),
        ("h200", "int8", 151_936, []),
    ],
)
def test_what_is_assumed_of_gpus_that_no_walk_was_run_on_is_said(
    gpu: str, weights: WeightType, vocab: int, words: list[str]
) -> None:
    spec = gpu_spec(gpu)
    plan = plan_residency(Shape(vocab=vocab, rank=256), spec, weights=weights)
    cost = predict(plan, spec)
    assert len(cost.assumptions) == len(words)
    for word, assumption in zip(words, cost.assumptions, strict=True):
        assert word in assumption
        assert f"assumed: {assumption}" in cost_line(cost, gpu, 1)


def test_tiles_of_tcgen05_cost_the_time_of_the_slower_unit() -> None:
    spec = gpu_spec("b200")
    plan = plan_residency(Shape(vocab=151_936, rank=256), spec, tensor_memory=True)
    free = predict(plan, spec, replace(Constants(), tensor_cycles=0.0))
    slow = predict(plan, spec, replace(Constants(), tensor_cycles=1000.0))
    assert free.product_us < slow.product_us
    assert slow.product_us * 1965 * 0.884 == pytest.approx(1000 * plan.async_tiles * plan.slabs)


def test_an_unknown_gpu_without_rates_is_an_error() -> None:
    spec = driver_spec("NVIDIA X9")
    with pytest.raises(DeviceError, match="clock"):
        predict(plan_residency(Shape(vocab=9999, rank=256), spec), spec)


@pytest.mark.parametrize(
    ("gpu", "head", "options", "words"),
    [
        ("h200", "markov", [], "a measured kind of GPU)"),
        ("b200", "markov", [], "an estimate"),
        ("h20", "markov", [], "an estimate"),
        ("h200", "markov", ["--weights", "bf16"], "an estimate"),
        ("h200", "rnn", [], "what latents cost is not in it"),
        ("h200", "markov", ["--exact"], "what exact logits cost is not in it"),
        ("h200", "rnn", ["--exact"], "what latents and exact logits cost is not in it"),
    ],
)
def test_plan_prints_it(
    gpu: str, head: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--vocab", "32000", "--gpu", gpu, "--head-kind", head, *options]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "predicted:" in x]
    assert words in line
    assert f"us a step on {gpu}" in line
    assert ("latents" in line) == (head != "markov")
