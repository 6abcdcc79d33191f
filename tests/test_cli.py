"""The command line, run in process: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from drafters import head_tensors, write_drafter, write_target
from strategies import KINDS, RecurrentHead, hidden_states, recurrent_head
from wts import cli
from wts.bench.report.summary import render_file
from wts.cli import demo, doctor
from wts.errors import CompileError, DeviceError
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.planner import plan_residency
from wts.walk import shipped
from wts.walk.walker import Walker

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def head() -> MarkovHead:
    return MarkovHead.random(vocab=203, rank=64, seed=3)


@pytest.fixture
def base_logits() -> torch.Tensor:
    return torch.randn(2, 5, 203, generator=torch.Generator().manual_seed(1)).to(BF16)


@pytest.fixture
def drafter(tmp_path: Path, head: MarkovHead) -> Path:
    return write_drafter(tmp_path / "drafter", head)


@pytest.fixture
def logits_file(tmp_path: Path, base_logits: torch.Tensor) -> Path:
    path = tmp_path / "base.safetensors"
    save_file({"a": torch.zeros(1), "base_logits": base_logits}, path)
    return path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an error leaves; progress lines before it do not count."""
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if not line.startswith("[")]
    assert len(errors) == 1
    return errors[0]


class TestParser:
    @pytest.mark.parametrize("arguments", [["fly"], ["plan"], ["walk"], ["bench", "fly"]])
    def test_misuse_is_status_2(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            run(*arguments)
        assert caught.value.code == 2

    def test_help_and_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        for argument in ("--help", "--version"):
            with pytest.raises(SystemExit) as caught:
                run(argument)
            assert caught.value.code == 0
        out = capsys.readouterr().out
        for word in ("demo", "plan", "walk", "doctor", "bench", "usage: wts ", "\nwts "):
            assert word in out


class TestPlan:
    def test_prints_the_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("plan", "--vocab", 151936, "--rank", 256, "--gpu", "h200", "--batch", 4) == 0
        out = capsys.readouterr().out
        assert "V = 151936, r = 256" in out
        assert "batch 4" in out
        assert "resident 100.0%" in out

    def test_of_bf16_weights(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("plan", "--vocab", 32000, "--gpu", "h200", "--weights", "bf16") == 0
        out = capsys.readouterr().out
        assert "V = 32000, r = 256, bf16" in out
        assert "an estimate" in out, "no bf16 walk is among the measured ones"

    def test_of_exact_walks(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("plan", "--vocab", 32000, "--gpu", "h200", "--exact") == 0
        assert "greedy, exact, on h200" in capsys.readouterr().out
        assert run("plan", "--vocab", 32000, "--gpu", "h200", "--exact", "--sampled") == 2
        assert "exact" in error_line(capsys)

    def test_fewer_blocks(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("plan", "--vocab", 32000, "--gpu", "H20", "--blocks", 50, "--steps", 7) == 0
        out = capsys.readouterr().out
        assert "50 can be co-resident" in out
        assert "7 steps" in out

    def test_needs_no_torch(self, run_python: Callable[[str], int]) -> None:
        code = (
            "import sys; from wts.cli import main; "
            "assert main(['plan', '--vocab', '99', '--gpu', 'h100']) == 0; "
            "sys.exit('torch' in sys.modules)"
        )
        assert run_python(code) == 0

    @pytest.mark.parametrize(
        ("arguments", "kind", "state"),
        [
            (["--head-kind", "markov"], "markov", None),
            (["--head-kind", "gated"], "gated", None),
            (["--head-kind", "rnn", "--rank", 128], "rnn", 128),
            (["--head-kind", "domino"], "domino", 1024),
            (["--head-kind", "domino", "--state-size", 512], "domino", 512),
        ],
    )
    def test_other_heads(
        self,
        arguments: list[object],
        kind: str,
        state: int | None,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert run("plan", "--vocab", 32000, "--gpu", "h200", *arguments) == 0
        out = capsys.readouterr().out
        assert f": {kind}, V = 32000" in out
        assert f"state: {state} numbers" in out if state else "state:" not in out

    @pytest.mark.usefixtures("no_gpu")
    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["--gpu", "h200", "--head-kind", "rnn", "--state-size", 64], "state-size"),
            (["--gpu", "h200", "--head-kind", "domino", "--state-size", 0], "state"),
            (["--gpu", "a100"], "a100"),
            (["--gpu", "LOCAL"], "found none"),
            ([], "found none"),
            (["--gpu", "h200", "--blocks", 133], "max_blocks"),
            (["--gpu", "h200", "--batch", 0], "batch"),
            (["--gpu", "h200", "--rank", 100], "rank"),
        ],
    )
    def test_errors(
        self, arguments: list[object], word: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("plan", "--vocab", 1000, *arguments) == 2
        line = error_line(capsys)
        assert line.startswith("wts plan: ")
        assert word in line


class TestWalk:
    @pytest.mark.parametrize("backend", ["emulator", "reference"])
    def test_prints_the_tokens_of_the_walker(
        self,
        backend: Any,
        head: MarkovHead,
        base_logits: torch.Tensor,
        drafter: Path,
        logits_file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        status = run(
            *("walk", "--head", drafter, "--base-logits", logits_file),
            *("--anchor", 7, 202, "--backend", backend),
        )
        assert status == 0
        plan = plan_residency(head, "h200", batch=2, steps=5)
        wanted = Walker(head, plan, backend=backend)(base_logits, torch.tensor([7, 202]))
        assert json.loads(capsys.readouterr().out) == {
            "tokens": wanted.tolist(),
            "backend": backend,
            "plan": plan.hash,
            "clamped_anchors": 0,
        }

    def test_an_exact_walk(
        self,
        head: MarkovHead,
        base_logits: torch.Tensor,
        drafter: Path,
        logits_file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        command = ("walk", "--head", drafter, "--base-logits", logits_file, "--anchor", 7, 202)
        assert run(*command, "--backend", "emulator", "--exact") == 0
        plan = plan_residency(head, "h200", batch=2, steps=5, exact=True)
        found = json.loads(capsys.readouterr().out)
        assert found["plan"] == plan.hash
        wanted = Walker(head, plan, backend="reference")(base_logits, torch.tensor([7, 202]))
        assert found["tokens"] == wanted.tolist()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("backend", ["emulator", "reference"])
    def test_heads_that_read_hidden_states(
        self,
        kind: type[RecurrentHead],
        backend: Any,
        tmp_path: Path,
        base_logits: torch.Tensor,
        logits_file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        made = recurrent_head(kind, vocab=203)
        folder = write_drafter(tmp_path / "recurrent", made)
        hidden = hidden_states(made, batch=2, steps=5, seed=4) * 40
        path = tmp_path / "hidden.safetensors"
        save_file({"a": torch.zeros(1), "hidden": hidden}, path)
        command = ["walk", "--head", folder, "--base-logits", logits_file, "--hidden", path]
        if kind is DominoHead:
            command += ["--target", write_target(tmp_path / "target", made)]
        assert run(*command, "--anchor", 7, 202, "--backend", backend) == 0
        plan = plan_residency(made, "h200", batch=2, steps=5)
        anchor = torch.tensor([7, 202])
        walker = Walker(made, plan, backend=backend)
        wanted = walker(base_logits, anchor, hidden=hidden)
        others = walker(base_logits, anchor, hidden=hidden.flip(0))
        assert not torch.equal(wanted, others), "hidden states have their say"
        assert json.loads(capsys.readouterr().out) == {
            "tokens": wanted.tolist(),
            "backend": backend,
            "plan": plan.hash,
            "clamped_anchors": 0,
        }

    def test_hidden_states_of_one_request_in_a_file_with_one_tensor(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = recurrent_head(GatedHead, vocab=203)
        folder = write_drafter(tmp_path / "gated", made)
        base, path = tmp_path / "base.safetensors", tmp_path / "hidden.safetensors"
        save_file({"x": torch.zeros(3, 203).bfloat16()}, base)
        save_file({"y": hidden_states(made, batch=1, steps=3, seed=4)[0]}, path)
        command = ("walk", "--head", folder, "--base-logits", base, "--hidden", path)
        assert run(*command, "--anchor", 1, "--backend", "emulator") == 0
        (row,) = json.loads(capsys.readouterr().out)["tokens"]
        assert len(row) == 3

    @pytest.mark.parametrize(
        ("kind", "tensor", "more", "words"),
        [
            (GatedHead, None, (), ["hidden", "40 elements", "gated", "--hidden FILE"]),
            (None, torch.zeros(2, 5, 40), (), ["hidden", "Markov head reads no"]),
            (RnnHead, torch.zeros(2, 5, 41).bfloat16(), (), ["hidden", "[2, 5, 40]", "[2, 5, 41]"]),
            (RnnHead, torch.zeros(2, 5, 40), (), ["hidden", "bfloat16", "float32"]),
            (RnnHead, torch.zeros(40).bfloat16(), (), ["[B, K, H]", "bfloat16[40]"]),
            (DominoHead, torch.zeros(2, 5, 40).bfloat16(), (), ["target", "--target DIR"]),
            (GatedHead, torch.zeros(2, 5, 40).bfloat16(), ("--target", "."), ["target", "Domino"]),
        ],
    )
    def test_refuses_hidden_states(
        self,
        kind: type[RecurrentHead] | None,
        tensor: torch.Tensor | None,
        more: tuple[str, ...],
        words: list[str],
        head: MarkovHead,
        tmp_path: Path,
        logits_file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        made = head if kind is None else recurrent_head(kind, vocab=203)
        folder = write_drafter(tmp_path / "other", made)
        command: list[object] = ["walk", "--head", folder, "--base-logits", logits_file, *more]
        if tensor is not None:
            path = tmp_path / "hidden.safetensors"
            save_file({"hidden": tensor}, path)
            command += ["--hidden", path]
        assert run(*command, "--anchor", 1, 2, "--backend", "emulator") == 2
        line = error_line(capsys)
        for word in words:
            assert word in line

    def test_clamped_anchors_are_reported(
        self, drafter: Path, logits_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ("walk", "--head", drafter, "--base-logits", logits_file)
        assert run(*command, "--anchor", 203, 2**40, "--backend", "emulator") == 0
        assert json.loads(capsys.readouterr().out)["clamped_anchors"] == 2

    def test_one_request_in_fp32_in_a_file_with_one_tensor(
        self, tmp_path: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "one.safetensors"
        save_file({"logits": torch.zeros(3, 210)}, path)
        command = ("walk", "--head", drafter, "--base-logits", path, "--anchor", 1)
        assert run(*command, "--backend", "reference") == 0
        (row,) = json.loads(capsys.readouterr().out)["tokens"]
        assert len(row) == 3

    def test_plans_for_the_gpu_that_is_named(
        self, drafter: Path, logits_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ("walk", "--head", drafter, "--base-logits", logits_file, "--anchor", 1, 2)
        results = []
        for gpu in ("h200", "h20"):
            assert run(*command, "--backend", "emulator", "--gpu", gpu) == 0
            results.append(json.loads(capsys.readouterr().out))
        assert results[0]["tokens"] == results[1]["tokens"]

    def test_says_how_the_map_is_meant(
        self, tmp_path: Path, logits_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        head = MarkovHead.random(vocab=900, rank=64, seed=3, draft_vocab=203)
        tensors = head_tensors(head) | {"d2t": torch.arange(203) * 2}
        folder = write_drafter(tmp_path / "reduced", head, tensors=tensors)
        command = ("walk", "--head", folder, "--base-logits", logits_file, "--anchor", 1, 2)
        assert run(*command, "--backend", "emulator") == 2
        assert "d2t" in error_line(capsys)
        for reading, factor in (("ids", 2), ("offsets", 3)):
            assert run(*command, "--backend", "emulator", "--d2t", reading) == 0
            tokens = json.loads(capsys.readouterr().out)["tokens"]
            assert all(token % factor == 0 for row in tokens for token in row)

    @pytest.mark.usefixtures("no_gpu")
    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_no_gpu_is_an_error_that_says_so(
        self, backend: str, drafter: Path, logits_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ("walk", "--head", drafter, "--base-logits", logits_file, "--anchor", 1, 2)
        assert run(*command, "--backend", backend) == 2
        line = error_line(capsys)
        assert "wanted an NVIDIA GPU" in line
        assert "--backend emulator" in line
        assert "LOCAL" not in line, "no other GPU's name lets this machine walk"

    @pytest.mark.usefixtures("no_gpu")
    def test_falls_back_when_asked_to(
        self,
        drafter: Path,
        logits_file: Path,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        command = ("walk", "--head", drafter, "--base-logits", logits_file, "--anchor", 1, 2)
        assert run(*command, "--fallback") == 0
        assert json.loads(capsys.readouterr().out)["backend"] == "emulator"
        assert "emulator" in caplog.text

    @pytest.mark.parametrize(
        ("tensors", "anchors", "words"),
        [
            ({"a": torch.zeros(2, 5, 203), "b": torch.zeros(1)}, [1, 2], ["base_logits", "a, b"]),
            ({"a": torch.zeros(203)}, [1], ["[B, K, V]", "float32[203]"]),
            ({"a": torch.zeros(2, 0, 203)}, [1, 2], ["[B, K, V]", "float32[2, 0, 203]"]),
            ({"a": torch.zeros(2, 5, 203).long()}, [1, 2], ["bfloat16", "int64[2, 5, 203]"]),
            ({"a": torch.zeros(2, 5, 202)}, [1, 2], ["base_logits", "203"]),
            ({"a": torch.zeros(2, 5, 203)}, [1, 2, 3], ["anchor", "int64[3]"]),
            ({"a": torch.zeros(2, 99, 203)}, [1, 2], ["steps", "99"]),
        ],
    )
    def test_refuses_base_logits(
        self,
        tensors: dict[str, torch.Tensor],
        anchors: list[int],
        words: list[str],
        tmp_path: Path,
        drafter: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "bad.safetensors"
        save_file(tensors, path)
        command = ("walk", "--head", drafter, "--base-logits", path, "--anchor", *anchors)
        assert run(*command, "--backend", "emulator") == 2
        line = error_line(capsys)
        for word in words:
            assert word in line

    def test_names_files_that_are_missing(
        self,
        tmp_path: Path,
        drafter: Path,
        logits_file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        nowhere = tmp_path / "nowhere"
        for folder, file in ((nowhere, logits_file), (drafter, nowhere)):
            command = ("walk", "--head", folder, "--base-logits", file, "--anchor", 1, 2)
            assert run(*command, "--backend", "emulator") == 2
            assert str(nowhere) in error_line(capsys)


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


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hopper GPU as far as asking torch goes."""
    properties = SimpleNamespace(name="X", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


class TestDemo:
    @pytest.fixture(autouse=True)
    def without_the_sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its walk is tested in test_lab_export.py; here a random or a given head's is."""
        monkeypatch.setattr(shipped, "has_sample", lambda: False)

    @pytest.mark.usefixtures("no_gpu")
    def test_on_the_cpu(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("demo", "--batch", 2, "--steps", 3) == 0
        captured = capsys.readouterr()
        assert "finds no NVIDIA GPU" in captured.out
        assert "resident 100.0%" in captured.out
        assert "agree on 6 of 6 tokens" in captured.out
        assert sum(" -> " in line for line in captured.out.splitlines()) == 2
        assert "walking 2 x 3 tokens" in captured.err

    @pytest.mark.usefixtures("no_gpu")
    @pytest.mark.parametrize("draft_vocab", [None, 99])
    def test_with_a_drafter(
        self, draft_vocab: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        head = MarkovHead.random(vocab=203, rank=64, seed=3, draft_vocab=draft_vocab)
        write_drafter(tmp_path, head)
        assert run("demo", "--head", tmp_path, "--steps", 4) == 0
        out = capsys.readouterr().out
        assert f"V = {head.vocab}, r = 64" in out
        assert "agree on 4 of 4 tokens" in out

    @pytest.mark.usefixtures("no_gpu")
    def test_wrong_tokens_are_status_1(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        walk = Walker.__call__

        def off_by_one(self: Walker, base_logits: torch.Tensor, anchor: torch.Tensor) -> Any:
            tokens = walk(self, base_logits, anchor)
            return tokens + 1 if self.backend == "emulator" else tokens

        monkeypatch.setattr(Walker, "__call__", off_by_one)
        assert run("demo", "--steps", 2) == 1
        assert "2 tokens are further from the reference's best" in capsys.readouterr().out

    @pytest.mark.usefixtures("no_gpu")
    def test_impossible_sizes_are_status_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("demo", "--steps", 33) == 2
        assert "steps" in error_line(capsys)

    @pytest.mark.usefixtures("a_gpu")
    def test_a_gpu_without_a_compiler_is_not_walked_on(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(*_: object) -> None:
            raise CompileError("no NVRTC here")

        monkeypatch.setattr(demo, "_device_walker", broken)
        monkeypatch.setattr(demo, "_REAL_VOCAB", 50)
        assert run("demo", "--steps", 2) == 0
        out = capsys.readouterr().out
        assert "no NVRTC here" in out
        assert "V = 8209" in out

    @pytest.mark.usefixtures("a_gpu")
    @pytest.mark.parametrize(("error", "status"), [(0, 0), (1, 1)])
    def test_on_a_device(
        self,
        error: int,
        status: int,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """With another emulator in the place of the device, which may be off by some tokens."""

        class Stand(Walker):
            def __call__(
                self, base_logits: torch.Tensor, anchor: torch.Tensor, **_: Any
            ) -> torch.Tensor:
                return super().__call__(base_logits, anchor) + error

        def stand(head: MarkovHead, batch: int, steps: int, _: object) -> Walker:
            plan = plan_residency(head, "h200", batch=batch, steps=steps)
            return Stand(head, plan, backend="emulator")

        timed = []
        draw = demo._draw
        monkeypatch.setattr(demo, "_REAL_VOCAB", 50)
        monkeypatch.setattr(demo, "_device_walker", stand)
        monkeypatch.setattr(demo, "_draw", lambda h, b, k, _: draw(h, b, k, "cpu"))
        monkeypatch.setattr(demo, "_time", lambda *_: timed.append(True))
        assert run("demo", "--batch", 2, "--steps", 3) == status
        out = capsys.readouterr().out
        assert "V = 50" in out
        assert f"device and emulator agree on {0 if error else 6} of 6 tokens" in out
        assert len(timed) == 1 - status

    def test_near_ties_are_within_the_bound_and_far_tokens_are_not(self) -> None:
        head = MarkovHead(table=torch.ones(8, 64), projection=torch.zeros(8, 64))
        base = torch.tensor([0.0, 1.0, 1.0, 0.9999999, 0.5, 0.0, 0.0, 0.0]).view(1, 1, 8)
        block = demo._Block(base_logits=base, anchor=torch.tensor([0]))
        beyond = [demo._num_beyond_bound(head, block, torch.tensor([[t]])) for t in range(8)]
        assert beyond == [1, 0, 0, 0, 1, 1, 1, 1]


class TestBench:
    def test_options_go_to_the_benchmark(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            run("bench", "head", "--help")
        assert caught.value.code == 0
        assert "usage: wts bench head" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "shown"),
        [
            ([], ["demo", "plan", "walk", "fidelity", "doctor", "bench", "plot"]),
            (["bench"], ["head", "all", "serving", "table"]),
        ],
    )
    def test_without_a_subcommand_they_are_listed(
        self, arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(*arguments) == 2
        out, misuse = capsys.readouterr()
        assert out == ""
        with pytest.raises(SystemExit) as caught:
            run(*arguments, "--help")
        assert caught.value.code == 0
        assert capsys.readouterr().out == misuse
        for name in shown:
            assert f"\n    {name} " in misuse

    def test_the_table_is_short_or_whole(self, capsys: pytest.CaptureFixture[str]) -> None:
        file = Path(__file__).parents[1] / "benchmarks/results/h200/head.jsonl"
        assert run("bench", "table", file) == 0
        short = capsys.readouterr().out
        assert short == render_file(file) + "\n"
        assert run("bench", "table", "--every-point", file) == 0
        assert capsys.readouterr().out == render_file(file, every_point=True) + "\n"
        with pytest.raises(SystemExit) as caught:
            run("bench", "table")
        assert caught.value.code == 2

    def test_serving_has_options_of_its_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            run("bench", "serving", "--help")
        assert "usage: wts bench serving" in capsys.readouterr().out

    @pytest.mark.usefixtures("no_gpu")
    def test_its_status_is_ours(self) -> None:
        assert run("bench", "head", "--quick") == 2
