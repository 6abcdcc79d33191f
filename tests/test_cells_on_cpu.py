"""Heads that read hidden states, the kernel's own source executed on the CPU: the emulator's bits.

As test_kernel_on_cpu.py, whose simulator this uses.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from simulator import Simulator, step_dtype
from strategies import RecurrentHead
from wts.bench.compare import WalkFault, check_walk
from wts.bench.head.cases import HeadCase
from wts.bench.inputs import draw, draw_head
from wts.hardware.gpu import gpu_spec
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.rnn import RnnHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.variants import with_tcgen05_tiles
from wts.numerics.gumbel import Noise
from wts.walk.emulator import Emulator
from wts.walk.walker import Walker

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

HEADS = [GatedHead, RnnHead, DominoHead]
HIDDEN = 40


def head_of(kind: Any, vocab: int, rank: int, **others: Any) -> RecurrentHead:
    if kind is DominoHead:
        others["state_size"] = 96
    head: RecurrentHead = kind.random(
        vocab=vocab, rank=rank, hidden_size=HIDDEN, seed=vocab, **others
    )
    return head


def plan_of(head: RecurrentHead, *, batch: int, blocks: int, **others: Any) -> ResidentPlan:
    gpu = replace(gpu_spec("h200").with_blocks(blocks))
    return plan_residency(head, gpu, batch=batch, steps=32, **others)


def inputs(
    head: RecurrentHead, batch: int, steps: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Base logits, anchors (one of them outside) and hidden states."""
    generator = torch.Generator().manual_seed(seed)
    base = (torch.randn(batch, steps, head.vocab + 3, generator=generator) * 2).bfloat16()
    anchor = torch.randint(0, head.table_rows, (batch,), generator=generator)
    anchor[-1] = 1 << 40
    hidden = torch.randn(batch, steps, HIDDEN, generator=generator).bfloat16()
    return base[:, :, 3:], anchor, hidden


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch"),
    [
        pytest.param(1, 64, 1, 1, id="one row"),
        pytest.param(700, 256, 2, 1, id="one request"),
        pytest.param(500, 128, 3, 2, id="two requests"),
        pytest.param(1500, 512, 12, 2, id="long latents"),
        pytest.param(500, 128, 3, 7, id="a warpgroup's requests"),
        pytest.param(300, 64, 2, 16, id="two groups"),
        pytest.param(300, 64, 2, 30, id="four groups, latents fetched later"),
    ],
)
def test_greedy_walks(kind: Any, vocab: int, rank: int, blocks: int, batch: int) -> None:
    head = head_of(kind, vocab, rank)
    plan = plan_of(head, batch=batch, blocks=blocks)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    for seed, requests in enumerate((batch, max(1, batch - 1))):  # one workspace, two walks
        base, anchor, hidden = inputs(head, requests, 4, seed)
        tokens = simulator(base, anchor, hidden=hidden, seed=seed)
        assert torch.equal(tokens, walker(base, anchor, hidden=hidden))
    assert simulator.status.tolist()[:5] == [2 + 8, 0, 0, 0, 2]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("batch", [1, 3, 6, 10])
def test_sampled_walks(kind: Any, batch: int) -> None:
    head = head_of(kind, 400, 128)
    plan = plan_of(head, batch=batch, blocks=2, sampled=True)
    base, anchor, hidden = inputs(head, batch, 3)
    temperatures = torch.tensor([1.0, 0.0, 0.6, 2.0, 1.0, 0.8] * 2)[:batch].clone()
    results = []
    for walk in (Simulator(head, plan), Walker(head, plan, backend="emulator")):
        noise = Noise(key=77, offset=torch.tensor([5]))
        logits = torch.zeros(batch, 3, head.vocab, dtype=step_dtype(plan))
        tokens = walk(
            base,
            anchor,
            hidden=hidden,
            temperatures=temperatures,
            noise=noise,
            logits_out=logits,
        )
        results.append((tokens, logits))
    for simulated, emulated in zip(*results, strict=True):
        assert torch.equal(simulated, emulated)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("batch", [1, 2, 6])
def test_tensor_memory(kind: Any, batch: int) -> None:
    """Latents of all team sizes, where tcgen05 reads them."""
    head = head_of(kind, 700, 128)
    gpu = gpu_spec("b200").with_blocks(1)
    plan = plan_residency(head, gpu, batch=batch, steps=4, tensor_memory=True)
    plan = with_tcgen05_tiles(plan, plan.product.tiles_per_accumulator, 0)
    base, anchor, hidden = inputs(head, batch, 4)
    tokens = Simulator(head, plan)(base, anchor, hidden=hidden)
    assert torch.equal(tokens, Walker(head, plan, backend="emulator")(base, anchor, hidden=hidden))


@pytest.mark.parametrize("kind", HEADS)
def test_a_draft_vocabulary(kind: Any) -> None:
    head = head_of(kind, 500, 64, draft_vocab=200)
    plan = plan_of(head, batch=2, blocks=2)
    base, anchor, hidden = inputs(head, 2, 5)
    tokens = Simulator(head, plan)(base, anchor, hidden=hidden)
    assert torch.equal(tokens, Walker(head, plan, backend="emulator")(base, anchor, hidden=hidden))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38, 0.0])
def test_hidden_states_that_are_no_numbers(kind: Any, value: float) -> None:
    """One request's: its tokens are the emulator's, and the others' are not touched."""
    head = head_of(kind, 300, 64)
    plan = plan_of(head, batch=3, blocks=2)
    base, anchor, hidden = inputs(head, 3, 4)
    hidden[1, 1] = value
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    tokens = simulator(base, anchor, hidden=hidden)
    assert torch.equal(tokens, walker(base, anchor, hidden=hidden))
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < head.vocab


@pytest.mark.parametrize("kind", HEADS)
def test_a_block_that_never_comes_is_named(kind: Any) -> None:
    """Whether its products or its candidates are waited for; the walk ends, tokens in range."""
    head = head_of(kind, 300, 64)
    plan = plan_of(head, batch=2, blocks=3)
    base, anchor, hidden = inputs(head, 2, 3)
    simulator = Simulator(head, plan)
    simulator(base, anchor, hidden=hidden, absent=1, timeout_us=200)
    _, error, waiter, step, _ = simulator.status.tolist()[:5]
    assert (error, step) == (1, 0)
    assert waiter in (1, 2)


@pytest.mark.parametrize("kind", HEADS)
def test_any_schedule(kind: Any) -> None:
    head = head_of(kind, 300, 64)
    plan = plan_of(head, batch=4, blocks=3)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    for seed in range(12):
        base, anchor, hidden = inputs(head, 1 + seed % 4, 1 + seed % 7, seed)
        tokens = simulator(base, anchor, hidden=hidden, seed=seed)
        assert torch.equal(tokens, walker(base, anchor, hidden=hidden))


@pytest.mark.parametrize("kind", [RnnHead, DominoHead])
@pytest.mark.parametrize("blocks", [3, 5])
def test_any_schedule_of_groups(kind: Any, blocks: int) -> None:
    """Two groups whose units blocks own; of five blocks the last one has fewer units."""
    head = head_of(kind, 640, 64)
    plan = plan_of(head, batch=10, blocks=blocks)
    assert plan.recurrence.sharded_state
    assert plan.product.groups == 2
    assert (plan.recurrence.neurons % plan.recurrence.block_neurons == 0) == (
        plan.shard.num_blocks == 3 and kind is DominoHead
    )
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    for seed in range(4):
        base, anchor, hidden = inputs(head, 10 - seed, 1 + seed % 4, seed)
        tokens = simulator(base, anchor, hidden=hidden, seed=seed)
        assert torch.equal(tokens, walker(base, anchor, hidden=hidden))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_gate_of_the_benchmark(kind: Any, temperature: float) -> None:
    """As `wts bench head` uses it, of a head as it draws it; what the emulator is given counts."""
    case = HeadCase(
        head=kind.kind,
        hidden_size=HIDDEN,
        state_size=96,
        vocab=300,
        rank=64,
        batch=3,
        temperature=temperature,
        steps=(4,),
    )
    head: Any = draw_head(case, device="cpu", seed=2)
    plan = plan_of(head, batch=3, blocks=2, sampled=temperature > 0)
    simulator: Any = Simulator(head, plan)
    emulator = Emulator(plan=plan, packed=simulator.packed)
    drawn = draw(
        vocab=300,
        batch=3,
        steps=4,
        temperature=temperature,
        device="cpu",
        seed=1,
        hidden_size=HIDDEN,
    )
    checked = partial(
        check_walk,
        simulator,
        emulator,
        drawn,
        whole=True,
    )
    assert checked(hidden_term=lambda: simulator.packed.hidden_term(drawn.hidden)) == 12
    with pytest.raises(WalkFault):
        checked(hidden_term=lambda: simulator.packed.hidden_term(drawn.hidden.flip(0)))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("batch", [1, 5])
def test_a_block_that_never_comes_is_named_and_the_next_walk_is_right(
    kind: Any, batch: int
) -> None:
    """Of a head with a state its products are missed first; sums of old walks are not taken."""
    head = head_of(kind, 300, 64)
    plan = plan_of(head, batch=batch, blocks=3)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    base, anchor, hidden = inputs(head, batch, 3)
    for _ in range(2):  # with words of the walk before in its slots, the second time
        simulator(base, anchor, hidden=hidden, absent=1, timeout_us=200)
        _, error, waiter, step, _ = simulator.status.tolist()[:5]
        assert (error, step) == (1, 0)
        assert waiter in (1, 2)
        simulator.slots.zero_()
        simulator.state_slots.zero_()
        simulator.status[:4] = torch.tensor([2, 0, 0, 0])
        tokens = simulator(base, anchor, hidden=hidden)
        assert torch.equal(tokens, walker(base, anchor, hidden=hidden))


@pytest.mark.parametrize("kind", [RnnHead, DominoHead])
@pytest.mark.parametrize("batch", [2, 4])
def test_products_of_the_exchange_before_are_not_taken(kind: Any, batch: int) -> None:
    """Every slot holds a large sum, whose number is one too small; or states, likewise."""
    head = head_of(kind, 300, 64)
    plan = plan_of(head, batch=batch, blocks=3)
    assert plan.recurrence.sharded_state == (batch > 2)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    for seed in range(6):
        base, anchor, hidden = inputs(head, batch, 4, seed)
        tokens = simulator(base, anchor, hidden=hidden, seed=seed)
        assert torch.equal(tokens, walker(base, anchor, hidden=hidden))
        simulator.state_slots.fill_((0x7149F2CA << 32) | (int(simulator.status[0]) - 1))  # 1e30
