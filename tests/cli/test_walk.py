"""`wts walk` prints the tokens of a Walker, and refuses files that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cli.commands import error_line, run
from drafters import head_tensors, write_drafter, write_target
from strategies import KINDS, RecurrentHead, hidden_states, recurrent_head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.planner import plan_residency
from wts.walk.walker import Walker


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
