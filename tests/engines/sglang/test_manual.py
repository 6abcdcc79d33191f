"""docs/sglang.md says what the code decides by: releases, kinds of heads, reasons, switches."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from wts.engines.common.reasons import SERVED_GPUS, Kind
from wts.engines.sglang.version import DOMINO, DSPARK, RELEASES, SGLANG

MANUAL = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return MANUAL.split(f"## {title}\n")[1].split("\n## ")[0]


def test_each_kind_of_reason_has_a_row() -> None:
    rows = [
        line.split("|")[1].strip().lower()
        for line in section("What is refused, and why").splitlines()
        if line.startswith("|")
    ]
    assert sorted(rows[2:]) == sorted(get_args(Kind))


def test_releases_and_gpus_that_are_served_are_named() -> None:
    refused = section("What is refused, and why")
    for release in RELEASES:
        assert release.number in refused
    for (major, minor), name in SERVED_GPUS.items():
        assert f"{major}.{minor} ({name})" in refused


def test_heads_that_walk_are_named() -> None:
    beginning = MANUAL.split("\n## ")[0].lower()
    for kind in (*DSPARK.heads, *DOMINO.heads):
        assert {"markov": "vanilla"}.get(kind, kind) in beginning


@pytest.mark.parametrize("variable", [SGLANG.switch, SGLANG.verbose])
def test_switches_are_named(variable: str) -> None:
    assert variable in section("Turn off")


def test_functions_and_methods_that_are_hooked_are_named() -> None:
    hooked = section("How it gets in")
    for release in RELEASES:
        for path in (release.factory, release.rollout):
            assert path.rpartition(".")[2] in hooked
        for methods in (release.updates, release.results, release.staging):
            assert methods.owner.rpartition(".")[2] in hooked
            assert methods.owner.rpartition(".")[0].replace(".", "/") + ".py" in hooked
