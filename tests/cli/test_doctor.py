"""`wts doctor` says what is missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cli.commands import run
from wts.cli import doctor
from wts.errors import CompileError, DeviceError


class TestDoctor:
    @pytest.mark.usefixtures("no_gpu")
    def test_without_a_gpu(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("doctor") == 0
        out = capsys.readouterr().out
        lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
        assert "no " in lines["gpu"]
        assert "finds no NVIDIA GPU" in lines["gpu"]
        assert "compiles for sm_90a" in lines["nvrtc"]
        assert "0 kernels" in lines["cubin"], "a compiler is tried without the cache"
        assert lines["emulator"].split()[1] == "yes"
        assert lines["device"].split()[1] == "no"
        assert "gpu" in lines["device"]

    def test_says_what_the_compiler_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise CompileError("no NVRTC here")

        monkeypatch.setattr("wts.kernels.compile.compile_walk", broken)
        (finding,) = (finding for finding in doctor.examine() if finding.name == "nvrtc")
        assert not finding.good
        assert finding.detail == "no NVRTC here"

    def test_all_good(self) -> None:
        findings = [doctor.Finding(name="gpu", good=True, detail="fine")]
        assert doctor.report(findings).splitlines()[-1].split() == ["device", "yes"]

    @pytest.mark.usefixtures("a_gpu")
    @pytest.mark.parametrize(
        ("capability", "word"),
        [((9, 0), None), ((8, 0), "8.0"), ((10, 0), None), ((12, 0), "12.0")],
    )
    def test_obstacle_of_a_gpu(
        self, capability: tuple[int, int], word: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        major, minor = capability
        properties = SimpleNamespace(name="X", major=major, minor=minor, multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        obstacle = doctor.device_obstacle()
        assert (obstacle is None) if word is None else (obstacle is not None and word in obstacle)

    @pytest.mark.usefixtures("a_gpu")
    @pytest.mark.parametrize(("capability", "arch"), [((10, 0), "sm_100a"), ((10, 3), "sm_103a")])
    def test_a_gpu_that_no_walk_was_run_on(
        self, capability: tuple[int, int], arch: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        major, minor = capability
        properties = SimpleNamespace(name="X", major=major, minor=minor, multi_processor_count=148)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        finding = doctor._gpu()
        assert finding.good
        assert "not yet run" in finding.detail
        assert "make gpu-test" in finding.detail
        assert f"compiles for {arch}" in doctor._compile_small()

    def test_a_walk_that_fails_is_a_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise DeviceError("too few blocks")

        monkeypatch.setattr("wts.kernels.planner.plan_residency", broken)
        finding = doctor._small_walk()
        assert (finding.good, finding.detail) == (False, "too few blocks")
