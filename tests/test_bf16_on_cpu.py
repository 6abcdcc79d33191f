"""The kernel of bf16 weights, its own source executed on the CPU: the emulator's bits.

The simulator sums the 16 products of an instruction as the emulator does; the hardware has an order
of its own (tests/gpu/test_device_bf16.py). As test_kernel_on_cpu.py otherwise.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated import KEY, OFFSET, WHOLE, check_greedy, check_sampled, inputs, plan_of
from simulator import Simulator, step_dtype
from strategies import RecurrentHead, hidden_states, recurrent_head, silent_head
from wts.dtypes import NumberType
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.resident.variants import streaming_plan, with_tcgen05_tiles
from wts.numerics.gumbel import Noise
from wts.walk.walker import Walker

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch", "shared_bytes"),
    [
        pytest.param(1, 64, 1, 1, WHOLE, id="one row"),
        pytest.param(500, 256, 1, 1, WHOLE, id="registers and shared memory, one request"),
        pytest.param(700, 128, 2, 2, WHOLE, id="two requests share accumulators"),
        pytest.param(1100, 128, 1, 4, WHOLE, id="four requests in two phases"),
        pytest.param(500, 128, 2, 8, WHOLE, id="eight requests"),
        pytest.param(1150, 128, 1, 7, WHOLE, id="seven of eight requests in two phases"),
        pytest.param(500, 64, 2, 16, WHOLE, id="two groups"),
        pytest.param(333, 64, 3, 30, WHOLE, id="four groups, latents fetched later"),
        pytest.param(500, 512, 2, 2, WHOLE, id="long latents"),
        pytest.param(800, 256, 1, 1, 100_000, id="streamed, one request"),
        pytest.param(900, 256, 1, 2, 120_000, id="streamed, two requests"),
        pytest.param(900, 256, 1, 4, 130_000, id="streamed, four requests"),
        pytest.param(900, 256, 1, 8, 150_000, id="streamed, eight requests"),
        pytest.param(900, 256, 1, 11, 150_000, id="streamed, two groups"),
        pytest.param(500, 512, 1, 3, 130_000, id="streamed, long latents"),
    ],
)
def test_greedy_plans(vocab: int, rank: int, blocks: int, batch: int, shared_bytes: int) -> None:
    head = MarkovHead.random(vocab=vocab, rank=rank, seed=vocab)
    plan = plan_of(head, batch=batch, blocks=blocks, shared_bytes=shared_bytes, weights="bf16")
    assert (
        (plan.placement.streamed_fragments > 0)
        == (plan.placement.ring_slots > 0)
        == (shared_bytes < WHOLE)
    )
    assert (plan.product.instruction, plan.product.columns) == (
        "mma",
        {1: 1, 2: 2, 3: 4, 4: 4}.get(batch, 8),
    )
    check_greedy(head, plan, batch, 5, padding=3)
    check_greedy(head, plan, max(1, batch - 1), 2, seed=1)


@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("copied", [1, 2, 4])
@pytest.mark.parametrize("rounds", [2, 3])
def test_rings_of_any_copies(batch: int, copied: int, rounds: int) -> None:
    """Copies of each lane, and bulk copies through slots used an odd or even number of times."""
    head = MarkovHead.random(vocab=500, rank=256, seed=9)
    plan = plan_of(head, batch=batch, weights="bf16")
    fragments = plan.shard.warp_fragments
    streamed = rounds * 4 * copied - 3 if copied > 1 else 24  # some copies are shorter
    assert fragments > streamed
    placement = replace(
        plan.placement,
        register_fragments=fragments - streamed - 1,
        shared_fragments=1,
        streamed_fragments=streamed,
        ring_slots=8 if copied == 1 else 4,
        copied_together=copied,
    )
    plan = plan.replaced(placement=placement)
    for seed in range(3):
        check_greedy(head, plan, batch, 4, seed=seed, padding=3)


@pytest.mark.parametrize("operands", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 4])
def test_operands_loaded_a_few_slabs_ahead(operands: int, batch: int) -> None:
    head = MarkovHead.random(vocab=1100, rank=128, seed=9)
    plan = plan_of(head, batch=batch, weights="bf16")
    plan = plan.replaced(product=replace(plan.product, operand_slabs=operands))
    check_greedy(head, plan, batch, 4)


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_nothing_resident(batch: int) -> None:
    head = MarkovHead.random(vocab=700, rank=256, seed=9)
    plan = streaming_plan(plan_of(head, batch=batch, weights="bf16"))
    assert plan.placement.resident_share == 0
    check_greedy(head, plan, batch, 4, padding=3)


@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch", "shared_bytes"),
    [
        pytest.param(700, 128, 1, 1, WHOLE, id="one request"),
        pytest.param(700, 128, 2, 2, WHOLE, id="two requests"),
        pytest.param(700, 128, 2, 4, WHOLE, id="four requests"),
        pytest.param(700, 128, 2, 6, WHOLE, id="eight columns"),
        pytest.param(500, 64, 2, 13, WHOLE, id="two groups"),
        pytest.param(300, 64, 1, 26, WHOLE, id="four groups"),
        pytest.param(900, 256, 1, 2, 130_000, id="streamed"),
        pytest.param(900, 256, 1, 8, 190_000, id="streamed, eight columns"),
    ],
)
def test_sampled_plans(vocab: int, rank: int, blocks: int, batch: int, shared_bytes: int) -> None:
    head = MarkovHead.random(vocab=vocab, rank=rank, seed=vocab)
    plan = plan_of(
        head, batch=batch, blocks=blocks, sampled=True, shared_bytes=shared_bytes, weights="bf16"
    )
    assert (plan.placement.streamed_fragments > 0) == (shared_bytes < WHOLE)
    check_sampled(head, plan, batch, 3, padding=5)


@pytest.mark.parametrize("batch", [1, 2, 4, 6, 11])
@pytest.mark.parametrize("value", [20.0, 1000.0, math.inf, -math.inf])
def test_scores_too_close_for_approximations(batch: int, value: float) -> None:
    """Cold rows of equal logits need precise scores: a sweep is done twice, its ring goes on."""
    head = silent_head(700, rank=256)
    plan = plan_of(head, batch=batch, sampled=True, shared_bytes=150_000, weights="bf16")
    assert plan.placement.streamed_fragments > 0
    base = torch.full((batch, 3, 700), value).bfloat16()
    anchor = torch.zeros(batch, dtype=torch.int64)
    temperatures = torch.tensor([1e-5, 1.0, 3e-5, 1e-3, 0.0, 1e-4, 2e-5, 1e-2] * 2)[:batch].clone()
    tokens = []
    for walk in (Simulator(head, plan), Walker(head, plan, backend="emulator")):
        noise = Noise(key=KEY, offset=torch.tensor([OFFSET]))
        tokens.append(walk(base, anchor, temperatures=temperatures, noise=noise))
    assert torch.equal(*tokens)


@pytest.mark.parametrize("base_type", ["fp16", "fp32"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("batch", [3, 8])
def test_number_types(base_type: NumberType, sampled: bool, batch: int) -> None:
    head = MarkovHead.random(vocab=333, rank=64, seed=1)
    plan = plan_of(
        head, batch=batch, blocks=2, sampled=sampled, base_type=base_type, weights="bf16"
    )
    (check_sampled if sampled else check_greedy)(head, plan, batch, 3, padding=3)


def test_a_draft_vocabulary() -> None:
    head = MarkovHead.random(vocab=900, rank=64, seed=2, draft_vocab=333)
    check_greedy(head, plan_of(head, batch=2, blocks=2, weights="bf16"), 2, 6)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
@pytest.mark.parametrize("sampled", [False, True])
def test_rows_that_are_not_finite(batch: int, sampled: bool) -> None:
    """Their logits are NaN; of the tiles that share their accumulators nothing is."""
    head = MarkovHead.random(vocab=300, rank=64, seed=3)
    for row, value in ((299, math.nan), (123, math.inf), (130, -math.inf)):
        head.projection[row, row % 64] = value
    plan = plan_of(head, batch=batch, sampled=sampled, weights="bf16")
    base, anchor = inputs(head, plan, batch, 3, 0)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    found = []
    for walk in (simulator, walker):
        logits = torch.zeros(batch, 3, 300, dtype=step_dtype(plan))
        noise = Noise(key=KEY, offset=torch.tensor([OFFSET]))
        arguments = {"temperatures": torch.ones(batch), "noise": noise, "logits_out": logits}
        found.append((walk(base, anchor, **(arguments if sampled else {})), logits))
    assert torch.equal(found[0][0], found[1][0])
    assert bool((found[0][0] == 123).all()), "the lowest of them wins"
    for logits in (found[0][1], found[1][1]) if sampled else ():
        assert logits.isnan().nonzero()[:, 2].unique().tolist() == [123, 130, 299]


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_latents_that_are_not_finite(batch: int, value: float) -> None:
    """Padding rows, whose weights are 0, do not win with a NaN; others have what the sum gives."""
    head = MarkovHead.random(vocab=300, rank=64, seed=3)
    head.table[:, 7] = value
    head.projection[:, 7] = head.projection[:, 7].abs() + 1.0
    plan = plan_of(head, batch=batch, blocks=2, weights="bf16")
    assert plan.shard.padded_vocab > plan.request.shape.vocab
    base, anchor = inputs(head, plan, batch, 3, 0)
    tokens = Simulator(head, plan)(base, anchor)
    assert torch.equal(tokens, Walker(head, plan, backend="emulator")(base, anchor))
    assert torch.equal(tokens, Walker(head, plan, backend="reference")(base, anchor.clamp(0, 299)))


HEAD = MarkovHead.random(vocab=300, rank=64, seed=3)
PLANS = {batch: plan_of(HEAD, batch=batch, blocks=3, weights="bf16") for batch in (4, 8)}


@given(st.integers(0, 1 << 30), st.sampled_from(sorted(PLANS)), st.integers(1, 8))
@settings(max_examples=12, deadline=None)
def test_nan_and_infinity_in_any_schedule(seed: int, batch: int, steps: int) -> None:
    plan, generator = PLANS[batch], torch.Generator().manual_seed(seed)
    base, anchor = inputs(HEAD, plan, batch, steps, seed, padding=seed % 7)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    chosen = torch.randint(0, 5, base.shape, generator=generator)
    often = torch.tensor([0.01, 0.5, 1.0, 0.0] * 2)[:batch, None, None]
    replaced = torch.rand(base.shape, generator=generator) < often
    base = torch.where(replaced, special[chosen].to(base.dtype), base)
    base[-1] = -math.inf
    tokens = Simulator(HEAD, plan)(base, anchor, seed=seed)
    assert torch.equal(tokens, Walker(HEAD, plan, backend="emulator")(base, anchor))


KINDS: list[type[RecurrentHead]] = [GatedHead, RnnHead, DominoHead]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch"),
    [
        pytest.param(500, 128, 2, 1, id="one request"),
        pytest.param(500, 128, 3, 2, id="two requests"),
        pytest.param(500, 128, 3, 7, id="eight columns"),
        pytest.param(300, 64, 2, 11, id="two groups"),
        pytest.param(300, 64, 2, 30, id="four groups, latents fetched later"),
    ],
)
@pytest.mark.parametrize("sampled", [False, True])
def test_heads_that_read_hidden_states(
    kind: Any, vocab: int, rank: int, blocks: int, batch: int, sampled: bool
) -> None:
    head: Any = recurrent_head(kind, vocab=vocab, rank=rank)
    plan = plan_of(head, batch=batch, blocks=blocks, sampled=sampled, weights="bf16")
    base, anchor = inputs(head, plan, batch, 4, 0, padding=3)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(batch, 4, head.hidden_size, generator=generator).bfloat16()
    found = []
    for walk in (Simulator(head, plan), Walker(head, plan, backend="emulator")):
        logits = torch.zeros(batch, 4, vocab, dtype=step_dtype(plan))
        noise = Noise(key=KEY, offset=torch.tensor([OFFSET]))
        arguments = {"temperatures": torch.ones(batch), "noise": noise, "logits_out": logits}
        tokens = walk(base, anchor, hidden=hidden, **(arguments if sampled else {}))
        found.append((tokens, logits))
    for simulated, emulated in zip(*found, strict=True):
        assert torch.equal(simulated, emulated)


@pytest.mark.parametrize(
    ("vocab", "rank", "batch", "sampled", "tensor", "matrix"),
    [
        pytest.param(700, 256, 1, False, 2, 1, id="three tiles in one accumulator"),
        pytest.param(1000, 64, 2, True, 2, 2, id="two accumulators"),
        pytest.param(700, 64, 4, True, 2, 1, id="four requests"),
        pytest.param(900, 128, 8, False, 2, 2, id="eight requests"),
        pytest.param(900, 128, 13, True, 2, 1, id="two groups of eight"),
        pytest.param(400, 512, 2, False, 1, 1, id="long latents"),
    ],
)
def test_tensor_memory(
    vocab: int, rank: int, batch: int, sampled: bool, tensor: int, matrix: int
) -> None:
    """Tiles of all warps by tcgen05, which the simulator sums as it sums mma.sync's."""
    head = MarkovHead.random(vocab=vocab, rank=rank, seed=vocab)
    plan = plan_of(head, gpu="b300", batch=batch, sampled=sampled, weights="bf16")
    plan = with_tcgen05_tiles(plan, tensor, matrix)
    check = check_sampled if sampled else check_greedy
    check(head, plan, batch, 3, padding=3)


@pytest.mark.parametrize("kind", [GatedHead, RnnHead, DominoHead])
@pytest.mark.parametrize("batch", [1, 2, 6])
def test_tensor_memory_of_heads_that_read_hidden_states(kind: Any, batch: int) -> None:
    """Runs of latents of all team sizes, where tcgen05 reads them."""
    head = recurrent_head(kind, vocab=700)
    plan = plan_of(head, gpu="b300", batch=batch, weights="bf16")
    plan = with_tcgen05_tiles(plan, plan.product.tiles_per_accumulator, 0)
    base, anchor = inputs(head, plan, batch, 3, 0)
    hidden = hidden_states(head, batch=batch, steps=3, seed=1)
    tokens = Simulator(head, plan)(base, anchor, hidden=hidden)
    assert torch.equal(tokens, Walker(head, plan, backend="emulator")(base, anchor, hidden=hidden))
