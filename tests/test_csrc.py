"""The kernel's files: an entry reaches all of them, there is no circle, and none is long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from wts.kernels.sources import RENDERED, read_sources

HERE = Path(__file__).parent
CSRC = HERE.parent / "src" / "wts" / "csrc"
CODE = (".cu", ".cuh", ".h", ".cpp")


@cache
def included(name: str) -> tuple[str, ...]:
    found = re.findall(r'^#include "(.*)"$', (CSRC / name).read_text(), re.MULTILINE)
    return tuple(other for other in found if other not in RENDERED)


def names() -> list[str]:
    return sorted(path.relative_to(CSRC).as_posix() for path in CSRC.rglob("*") if path.is_file())


def test_every_file_is_compiled_and_the_entry_comes_first() -> None:
    sources = read_sources()
    assert sorted(sources) == names()
    assert next(iter(sources)) == "resident.cu"
    assert sources["ptx/base.cuh"] == (CSRC / "ptx" / "base.cuh").read_text()
    assert list(sources) == list(read_sources())


def test_no_file_includes_itself_on_a_way_round() -> None:
    def ways(name: str, way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if name in way:
            yield (*way[way.index(name) :], name)
        elif name not in seen:
            seen.add(name)
            for other in included(name):
                yield from ways(other, (*way, name))

    seen: set[str] = set()
    assert [way for name in names() for way in ways(name, ())] == []


def test_includes_stand_together_once_each() -> None:
    for name in names():
        text = re.sub(r"^#(if|else|endif).*\n", "", (CSRC / name).read_text(), flags=re.MULTILINE)
        blocks = re.findall(r'(?:^#include ".*"\n)+', text, re.MULTILINE)
        assert len(blocks) <= 1, name
        assert len(set(included(name))) == len(included(name)), name


def test_lines_and_files_are_short() -> None:
    for folder in (CSRC, HERE / "simulator"):
        for path in folder.rglob("*"):
            if path.suffix not in CODE:
                continue
            lines = path.read_text().splitlines()
            assert len(lines) <= 400, path
            assert max(map(len, lines)) <= 100, path


def test_assembly_is_in_one_folder() -> None:
    for name in names():
        assert name.startswith("ptx/") or "asm" not in (CSRC / name).read_text(), name


def test_the_simulator_stands_in_for_every_file_of_assembly() -> None:
    imitated = sorted(path.name for path in (HERE / "simulator" / "ptx").iterdir())
    assert imitated == sorted(path.name for path in (CSRC / "ptx").iterdir())
