"""The lab on a GPU: it trains there, and compares with the walk of the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.acceptance import ExactBeside, compare, draw_prompts
from lab.checkpoints import load_drafter, load_target
from lab.data import Tokens
from lab.fidelity import record_whole
from lab.generate import Block
from lab.run import run_recipe
from lab.timing import time_walks
from lab_case import NAMES, SMOKE, save_pair, write_data
from wts.fidelity import examine
from wts.hardware.gpu import LOCAL
from wts.heads.load import read_head
from wts.kernels.planner import plan_residency
from wts.walk.walker import Walker

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


def text() -> Tokens:
    generator = np.random.default_rng(1)
    return Tokens(
        ids=generator.integers(0, 256, 1200).astype(np.int32),
        starts=np.arange(8) * 150,
        domains=np.arange(8) % 4,
    )


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_equal_and_sampled_runs_come_to_an_end(name: str, tmp_path: Path) -> None:
    folder, target_folder = save_pair(tmp_path, name)
    target, drafter = load_target(target_folder, GPU), load_drafter(folder, GPU)
    domino = name.startswith("domino")
    head = read_head(folder, target=target_folder if domino else None, device=GPU)
    prompts = draw_prompts(text(), per_domain=2, shortest=4, longest=40, seed=0)
    greedy = compare(target, drafter, head, prompts, new_tokens=16, temperature=0.0)
    # A product of the target may round differently in another row of a batch, and turn a near-tie.
    assert greedy["same_text"] >= 0.75
    assert greedy["domains"]["all"]["prompts"] == 8
    assert greedy["exact"]["wrong"] == 0
    sampled = compare(target, drafter, head, prompts, new_tokens=16, temperature=1.0)
    for row in sampled["per_prompt"]:
        for tokens, rounds in (row["bf16"], row["int8"]):
            assert tokens >= 16
            assert rounds <= tokens <= 4 * rounds
    recorded = record_whole(target, drafter, text(), requests=3)
    timings, numbers, _ = time_walks(head, recorded, rounds=2, checked=2)
    assert {path: one.num_samples for path, one in timings.items()} == {"wts": 6, "wts_exact": 6}
    assert 0 <= numbers["rescored_share"] <= 1
    report = examine(head, record_whole(target, drafter, text(), requests=4))
    assert report["steps"]["flips_where_decided"] == 0
    assert report["steps"]["logit_error"]["largest_share_of_bound"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_an_exact_walk_is_the_formula_s(name: str, tmp_path: Path) -> None:
    folder, target_folder = save_pair(tmp_path, name)
    domino = name.startswith("domino")
    head = read_head(folder, target=target_folder if domino else None, device=GPU)
    walker = Walker(
        head, plan_residency(head, LOCAL, batch=5, steps=3, exact=True), backend="device"
    )
    generator = torch.Generator(GPU).manual_seed(4)

    def normal(size: int) -> torch.Tensor:
        return torch.randn(5, 3, size, generator=generator, device=GPU).bfloat16()

    block = Block(
        base_logits=normal(head.vocab),
        anchor=torch.arange(5, device=GPU),
        hidden=normal(head.hidden_size or 1),
    )

    def other(block: Block, *rest: object) -> torch.Tensor:
        tokens = torch.zeros(5, 3, dtype=torch.int64, device=GPU) - 1
        tokens[2] = exact[2]  # this one is not looked into
        return tokens

    beside = ExactBeside(walker, other)
    exact = beside.exact(block, None, None, None)
    beside.bf16(block, None, None, None)
    assert beside.wrong == 0
    beside.tokens = exact + 1
    beside.bf16(block, None, None, None)
    assert beside.wrong == 5


@pytest.mark.parametrize("compiled", [False, True])
def test_a_recipe_trains_in_bf16(compiled: bool, tmp_path: Path) -> None:
    recipe = replace(SMOKE, precision="bf16")
    data = write_data(tmp_path / "data")
    said: list[str] = []
    run_recipe(
        recipe, data, tmp_path / "models", device=GPU, steps=30, compiled=compiled,
        say=said.append,
    )  # fmt: skip
    for name in ("target", *NAMES):
        assert (tmp_path / "models" / name / "model.safetensors").is_file()
    assert not any("nan" in line for line in said)
