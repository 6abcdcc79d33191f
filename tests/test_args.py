"""The kernel's argument and its neighbours: one table each, whose C++ a compiler accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields

import pytest
import torch

from wts.heads.kinds import HeadShape
from wts.kernels.planner import plan_residency
from wts.kernels.resident.args import ARGS, EVENTS, STATUS, Turn, render_args
from wts.kernels.sources import read_sources
from wts.numerics.exact_bounds import screen_of
from wts.selection.exact_head import ExactHead
from wts.selection.exact_source import EXACT_SOURCE
from wts.walk.walker import WalkReport


def program(args: str) -> str:
    """The rendered structs with the types that they are made of."""
    header = plan_residency(HeadShape(vocab=1000, rank=64), "h200").render_header()
    text = header + read_sources()["types.cuh"] + args
    return re.sub(r'^#include ".*"\n|^#pragma once\n', "", text, flags=re.MULTILINE)


def complaints(text: str) -> str:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-x", "c++", "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False).stderr


def test_a_compiler_lays_them_out_as_the_tables_say() -> None:
    assert complaints(program(render_args())) == ""


@pytest.mark.parametrize("record", [ARGS, STATUS, EXACT_SOURCE], ids=lambda record: record.name)
def test_a_field_that_moved_is_seen(record: object) -> None:
    text = render_args()
    last = list(record.offsets)[-1]  # type: ignore[attr-defined]
    declared = next(f for f in record.fields if f.name == last).declaration()  # type: ignore[attr-defined]
    assert text.count(declared) == 1
    moved = complaints(program(text.replace(declared, f"u64 before; {declared}")))
    assert f"{record.name}.{last}" in moved  # type: ignore[attr-defined]


def test_names_count_alike_on_both_sides() -> None:
    text = render_args()
    counted = [f"static_assert(int(wts::Turn::{turn.name}) == {int(turn)});" for turn in Turn]
    counted += [f"static_assert(wts::{name} == {i});" for i, name in enumerate(EVENTS)]
    assert complaints(program(text) + "\n".join(counted)) == ""


def test_a_report_has_the_counters_of_a_walk() -> None:
    assert {field.name for field in fields(WalkReport)} <= set(STATUS.offsets)


def test_an_exact_head_is_found_in_memory_as_the_table_says() -> None:
    weight = torch.randn(40, 64).bfloat16()
    scale = torch.rand(40) + 0.5
    screen = screen_of(weight, scale, torch.ones(40, 64, dtype=torch.int8))
    head = ExactHead(projection=weight, table=None, screen=screen)
    found = EXACT_SOURCE.unpack(head.source().numpy().tobytes())
    assert (found["weight"], found["table"]) == (weight.data_ptr(), 0)
    names = ("largest_scale", "spread", "growth", "smallest", "longest")
    assert [found[name] for name in names] == screen.tolist()
