"""The documents: the example runs, links lead somewhere, commands and files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from wts.bench.summary import render_file
from wts.cli import _parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(example.splitlines()) <= 11
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    tokens = names["tokens"]
    assert isinstance(tokens, torch.Tensor)
    assert (tokens.dtype, tuple(tokens.shape)) == (torch.int64, (2, 7))
    assert "resident 100.0%" in capsys.readouterr().out


def test_numbers_are_those_of_the_committed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    (numbers,) = re.findall(
        r"<!-- numbers:begin -->\n(.*)\n<!-- numbers:end -->", README, re.DOTALL
    )
    monkeypatch.chdir(ROOT)
    assert numbers == render_file(Path("benchmarks/results/h200/head.jsonl"))


def test_commands_of_the_shell_are_accepted() -> None:
    commands = [line for line in README.splitlines() if line.startswith("wts ")]
    assert len(commands) >= 4
    for command in commands:
        _parser().parse_args(shlex.split(command, comments=True)[1:])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_source_files_exist(document: Path) -> None:
    package = ROOT / "src" / "wts"
    for name in re.findall(r"`((?:[\w-]+/)*\w+\.(?:py|cu|cuh))`", document.read_text()):
        if name.startswith("sglang/"):  # of the wheel that the contract was read in
            continue
        places = (ROOT / name, package / name, package / "bench" / name)
        assert any(place.exists() for place in places), name
