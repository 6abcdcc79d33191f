"""The cost model: parts add up, and it is honest about guesses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wts.dtypes import WeightType
from wts.errors import DeviceError
from wts.hardware.gpu import GPUS, GpuSpec, gpu_spec
from wts.heads.kinds import Shape
from wts.kernels.planner import plan_residency
from wts.kernels.resident.cost import Constants, Cost, cost_line, predict


def cost_of(gpu: str = "h200", *, vocab: int = 151_936, batch: int = 1, **more: bool) -> Cost:
    spec = gpu_spec(gpu)
    return predict(plan_residency(Shape(vocab=vocab, rank=256), spec, batch=batch, **more), spec)


def test_fragments_that_stream_cost_a_step_and_no_entry() -> None:
    spec = GPUS["h200"]
    plan = plan_residency(Shape(vocab=151_936, rank=256), spec)
    moved = 24
    placement = replace(
        plan.placement,
        shared_fragments=plan.placement.shared_fragments - moved,
        streamed_fragments=moved + 40,
        register_fragments=plan.placement.register_fragments - 40,
    )
    streaming = plan.replaced(placement=placement)
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
    assert slow.product_us * 1965 * 0.884 == pytest.approx(
        1000 * plan.product.tcgen05_tiles * plan.shard.slabs
    )


def test_an_unknown_gpu_without_rates_is_an_error() -> None:
    spec = driver_spec("NVIDIA X9")
    with pytest.raises(DeviceError, match="clock"):
        predict(plan_residency(Shape(vocab=9999, rank=256), spec), spec)
