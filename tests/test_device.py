"""GPU descriptions: the table, the local GPU, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wts.errors import DeviceError
from wts.hardware.gpu import GPUS, GpuSpec, _spec_of_properties, gpu_spec


def spec(**changes: Any) -> GpuSpec:
    fields: dict[str, Any] = {
        "name": "test",
        "compute_capability": (9, 0),
        "num_sms": 4,
        "max_blocks": 4,
    }
    return GpuSpec(**(fields | changes))


@pytest.mark.parametrize(
    ("name", "num_sms", "capability"),
    [
        ("h100", 132, (9, 0)),
        ("h100-pcie", 114, (9, 0)),
        ("h20", 78, (9, 0)),
        ("h200", 132, (9, 0)),
        ("b200", 148, (10, 0)),
        ("b300", 148, (10, 3)),
    ],
)
def test_known_gpus(name: str, num_sms: int, capability: tuple[int, int]) -> None:
    found = gpu_spec(name.upper())
    assert found is GPUS[name]
    assert (found.name, found.num_sms, found.max_blocks) == (name, num_sms, num_sms)
    assert found.compute_capability == capability
    assert found.register_bytes_per_sm == 262144
    assert found.shared_bytes_per_block == 232448
    assert found.tensor_bytes_per_sm == (262144 if capability[0] == 10 else 0)


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        GPUS["h300"] = spec()  # type: ignore[index]


def test_architecture_names() -> None:
    assert (gpu_spec("h200").arch, gpu_spec("b200").arch) == ("sm_90a", "sm_100a")
    assert gpu_spec("b300").arch == "sm_103a"
    assert spec(compute_capability=(8, 9)).arch == "sm_89"
    assert gpu_spec("h20").is_hopper
    assert not gpu_spec("b200").is_hopper


@pytest.mark.parametrize(
    ("capability", "walks", "run"),
    [
        ((9, 0), True, True),
        ((10, 0), True, False),
        ((10, 3), True, False),
        ((8, 9), False, True),
        ((12, 0), False, True),
    ],
)
def test_where_there_is_a_kernel_that_was_never_run_it_is_said(
    capability: tuple[int, int], walks: bool, run: bool
) -> None:
    found = spec(compute_capability=capability)
    assert found.walks is walks
    assert (found.caution == "") is run
    assert run or "not yet run" in found.caution


def test_fewer_blocks() -> None:
    fewer = gpu_spec("h200").with_blocks(100)
    assert (fewer.max_blocks, fewer.num_sms, fewer.name) == (100, 132, "h200")
    assert gpu_spec("h200").max_blocks == 132


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_blocks": 5}, ["max_blocks", "at most num_sms = 4", "found 5"]),
        ({"max_blocks": 0}, ["max_blocks", "at least 1", "found 0"]),
        ({"num_sms": True}, ["num_sms", "at least 1", "True"]),
        ({"l2_bytes": -1}, ["l2_bytes", "at least 0", "-1"]),
        ({"clock_mhz": 1.5}, ["clock_mhz", "integer", "1.5"]),
    ],
)
def test_refuses(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DeviceError) as caught:
        spec(**changes)
    for word in words:
        assert word in str(caught.value)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        DeviceError, match=r"h100, h100-pcie, h20, h200, b200, b300 or LOCAL.*'a100'"
    ):
        gpu_spec("a100")


@pytest.mark.parametrize("found", [5, None, b"h200"])
def test_what_is_no_name_is_refused(found: Any) -> None:
    with pytest.raises(DeviceError, match=rf"^gpu: wanted one of h100, .*found {found!r}; "):
        gpu_spec(found)


def test_local_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"wanted an NVIDIA GPU.*found none.*name a GPU"):
        gpu_spec("local")


def test_local_asks_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def properties(index: int) -> SimpleNamespace:
        asked.append(index)
        return SimpleNamespace(name="X", major=9, minor=0, multi_processor_count=60)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert gpu_spec("LOCAL").max_blocks == 60
    assert gpu_spec("LOCAL", index=0).name == "X"
    assert asked == [1, 0]
    with pytest.raises(DeviceError, match="index: wanted a CUDA device below 2, found 2"):
        gpu_spec("LOCAL", index=2)


def test_properties_of_an_h200() -> None:
    reported = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        L2_cache_size=62914560,
        clock_rate=1980000,
        memory_clock_rate=3201000,
        memory_bus_width=6144,
        shared_memory_per_block_optin=232448,
        regs_per_multiprocessor=65536,
    )
    found = _spec_of_properties(reported)
    table = gpu_spec("h200")
    assert found.name == "NVIDIA H200"
    assert found.compute_capability == table.compute_capability
    for field in ("num_sms", "register_bytes_per_sm", "shared_bytes_per_block", "l2_bytes"):
        assert getattr(found, field) == getattr(table, field)
    assert found.clock_mhz == table.clock_mhz
    assert found.dram_bytes_per_s == pytest.approx(table.dram_bytes_per_s, rel=0.05)


def test_figures_that_an_older_torch_lacks_are_unknown() -> None:
    found = _spec_of_properties(SimpleNamespace(major=9, minor=0, multi_processor_count=132))
    assert (found.l2_bytes, found.dram_bytes_per_s, found.clock_mhz) == (0, 0, 0)
    assert found.shared_bytes_per_block == 232448


def test_known_gpus_need_no_torch(run_python: Callable[[str], int]) -> None:
    use = "import sys; import wts.hardware.gpu as d; d.gpu_spec('h200').with_blocks(3); "
    assert run_python(use + "sys.exit('torch' in sys.modules)") == 0
