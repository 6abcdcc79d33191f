"""`wts demo` walks on what there is, and says whether the tokens are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cli.commands import error_line, run
from drafters import write_drafter
from wts.cli import demo
from wts.errors import CompileError
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.walk import shipped
from wts.walk.walker import Walker


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
