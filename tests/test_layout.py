"""The planned shared memory is the kernel's: g++ compiles shared.cuh under drawn plans."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import hopper, plans
from wts.heads.kinds import Shape
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.shared import shared_layout

COMPILER = shutil.which("g++")
CSRC = resources.files("wts") / "csrc"
TYPES, SHARED = (CSRC / "types.cuh").read_text(), (CSRC / "shared.cuh").read_text()
INCLUDES = re.compile(r'^#include "(.*)"\n', re.MULTILINE)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def translation_unit(
    several: Sequence[ResidentPlan], layouts: Sequence[Sequence[tuple[str, int]]]
) -> str:
    """One program that holds the struct under every plan, and asserts every offset."""
    parts = ["#include <cstddef>"]
    for number, (plan, layout) in enumerate(zip(several, layouts, strict=True)):
        header = plan.render_header()
        defined = re.findall(r"^#define (\w+)", header, re.MULTILINE)
        text = INCLUDES.sub("", header + TYPES + SHARED).replace("#pragma once", "")
        parts.append(f"namespace plan_{number} {{\n{text}")
        for member, offset in layout[:-1]:
            found = f"offsetof(wts::Shared, {member})"
            parts.append(f'static_assert({found} == {offset}, "{plan.hash}: {member}");')
        parts.append(f'static_assert(sizeof(wts::Shared) == {layout[-1][1]}, "{plan.hash}: end");')
        parts.append("}")
        parts += [f"#undef {name}" for name in defined]
    return "\n".join(parts)


def complaints(
    several: Sequence[ResidentPlan],
    layouts: Sequence[Sequence[tuple[str, int]]] | None = None,
) -> str:
    """What g++ has to say, "" if all is as planned."""
    assert COMPILER is not None
    layouts = [shared_layout(plan) for plan in several] if layouts is None else layouts
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-x", "c++"]
    run = subprocess.run(
        [*command, "-fsyntax-only", "-"],
        input=translation_unit(several, layouts),
        text=True,
        capture_output=True,
        check=False,
    )
    return run.stderr


def published(**changes: int) -> ResidentPlan:
    fields = {"vocab": 151_936, "rank": 256} | changes
    batch = fields.pop("batch", 1)
    return plan_residency(Shape(**fields), hopper(), batch=batch)


def test_the_layout_includes_the_plan_and_types_and_nothing_else() -> None:
    assert INCLUDES.findall(TYPES) == ["plan_constants.h"]
    assert INCLUDES.findall(SHARED) == ["plan_constants.h", "types.cuh"]


@given(st.lists(plans(), min_size=12, max_size=12))
@settings(
    max_examples=4,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)
def test_kernel_and_planner_agree_on_every_offset(several: list[ResidentPlan]) -> None:
    assert complaints(several) == ""


def test_they_agree_for_published_heads() -> None:
    vocabs, ranks, batches = (1, 32_000, 151_936, 262_144), (64, 512), (1, 2, 4, 5, 64)
    several = [
        published(vocab=vocab, rank=rank, batch=batch)
        for vocab in vocabs
        for rank in ranks
        for batch in batches
    ]
    assert complaints(several) == ""


def test_a_wrong_offset_is_seen() -> None:
    plan = published()
    for at, (name, offset) in enumerate(shared_layout(plan)):
        layout = shared_layout(plan)
        layout[at] = (name, offset + 8)
        assert f"{plan.hash}: {name}" in complaints([plan], [layout])


def test_a_wrong_total_is_seen_by_the_kernel_itself() -> None:
    header = published().render_header()
    size = published().shared_bytes

    class Wrong(ResidentPlan):
        def render_header(self) -> str:
            return header.replace(f"SHARED_BYTES = {size};", f"SHARED_BYTES = {size + 128};")

    fields = {name: getattr(published(), name) for name in ResidentPlan.__dataclass_fields__}
    assert "planner and kernel disagree on shared memory" in complaints([Wrong(**fields)])


def test_a_shard_that_does_not_fit_is_seen_by_the_kernel_itself() -> None:
    plan = published()
    gpu = replace(plan.gpu, shared_bytes_per_block=plan.shared_bytes - 1)
    assert "the shard does not fit in a block" in complaints([plan.replaced(gpu=gpu)])


def test_the_header_is_plain_cpp(tmp_path: Path) -> None:
    (tmp_path / "plan_constants.h").write_text(published(batch=4).render_header())
    (tmp_path / "types.cuh").write_text(TYPES)
    (tmp_path / "shared.cuh").write_text(SHARED)
    (tmp_path / "main.cpp").write_text('#include "shared.cuh"\n#include "shared.cuh"\n')
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-Wall", "-fsyntax-only", "main.cpp"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
