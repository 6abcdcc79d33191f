"""The documents: the example runs, links lead somewhere, commands and files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from wts.bench.report.summary import render_file
from wts.cli import parse
from wts.walk.reference import reference_walk

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
USE = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (second,) = re.findall(r"```python\n(.*?)```", USE, re.DOTALL)
    assert len(first.splitlines()) <= 11
    torch.manual_seed(5)  # of base logits and hidden states
    names: dict[str, Any] = {}
    exec(compile(first, "README.md", "exec"), names)
    assert "resident 100.0%" in capsys.readouterr().out
    exec(compile(second, "use.md", "exec"), names)
    for name in ("tokens", "sampled", "recurrent", "exact", "unquantised"):
        assert (names[name].dtype, tuple(names[name].shape)) == (torch.int64, (2, 7)), name
    assert torch.equal(names["sampled"][0], names["tokens"][0]), "its temperature is 0"
    assert not torch.equal(names["sampled"][1], names["tokens"][1])
    assert names["noise"].offset.item() == 1
    head, base_logits, anchor = (names[name] for name in ("head", "base_logits", "anchor"))
    wanted = reference_walk(head, base_logits.cpu(), anchor.cpu())
    assert torch.equal(names["exact"].cpu(), wanted)
    assert torch.equal(names["unquantised"].cpu(), wanted), "no near-tie with this seed"


@pytest.mark.parametrize(
    ("document", "every_point"), [("README.md", False), ("docs/benchmarks.md", True)]
)
def test_numbers_are_those_of_the_committed_records(
    document: str, every_point: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    (numbers,) = re.findall(r"<!-- numbers:begin -->\n(.*)\n<!-- numbers:end -->", text, re.DOTALL)
    monkeypatch.chdir(ROOT)
    file = Path("benchmarks/results/h200/head.jsonl")
    assert numbers == render_file(file, every_point=every_point)


def test_commands_of_the_shell_are_accepted() -> None:
    text = README + USE
    lines = [line for line in text.splitlines() if line.startswith("wts ")]
    lines += re.findall(r"`(wts [^`]+ [^`]+)`", text)
    assert len(lines) >= 8
    for line in lines:
        parse(shlex.split(line, comments=True)[1:])


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


def test_the_minutes_of_the_tour_add_up() -> None:
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    rooms = re.findall(
        r"^## [^\n]*\((\d+) minutes\)\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL
    )
    totals = [int(total) for total, _ in rooms]
    assert totals == [sum(map(int, re.findall(r"\((\d+)\s+min\)", room))) for _, room in rooms]
    assert len(totals) == 5
    assert sum(totals[:-1]) <= 90, "the path; the last are side rooms"
