"""`wts plan` prints the plan that was asked for, without torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cli.commands import error_line, run
from wts import cli


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
