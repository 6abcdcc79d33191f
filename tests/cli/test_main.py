"""The command line as a whole: misuse, help, and what belongs to the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import run
from wts.bench.report.summary import render_file


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
        file = Path(__file__).parents[2] / "benchmarks/results/h200/head.jsonl"
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
