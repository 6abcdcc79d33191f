"""The kernel's own source, executed on the CPU, equals the emulator bit for bit.

Only csrc/ptx is imitated (tests/simulator). Threads take turns in a random order, copies land late,
shared memory starts as garbage, and accesses of global memory are checked; so these tests find
wrong indices, missing waits and reads past the end without a GPU. What they cannot find: the memory
model of the real chip, and anything about time.
"""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulated import KEY, OFFSET, WHOLE, check_greedy, check_sampled, inputs, plan_of
from simulator import Simulator
from strategies import silent_head
from wts.dtypes import NumberType
from wts.heads.markov import MarkovHead
from wts.kernels.resident.args import Turn
from wts.kernels.resident.variants import (
    streaming_plan,
    with_register_fragments,
    with_tcgen05_tiles,
)
from wts.numerics.gumbel import Noise
from wts.numerics.torch_dtypes import DTYPE_OF
from wts.walk.walker import Walker

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch", "shared_bytes"),
    [
        pytest.param(1, 64, 1, 1, WHOLE, id="one row"),
        pytest.param(700, 256, 1, 1, WHOLE, id="registers and shared memory, one request"),
        pytest.param(1100, 256, 2, 2, WHOLE, id="two requests share accumulators"),
        pytest.param(1100, 256, 1, 4, WHOLE, id="four requests in two phases"),
        pytest.param(500, 128, 3, 8, WHOLE, id="a warpgroup's requests"),
        pytest.param(1150, 256, 1, 7, WHOLE, id="warpgroups, odd tiles, part in shared memory"),
        pytest.param(500, 64, 2, 9, WHOLE, id="two groups"),
        pytest.param(500, 64, 2, 23, WHOLE, id="three groups, an exchange behind"),
        pytest.param(333, 64, 3, 64, WHOLE, id="eight groups, latents fetched later"),
        pytest.param(1500, 256, 1, 1, 80_000, id="streamed, one request"),
        pytest.param(1500, 256, 1, 2, 100_000, id="streamed, two requests"),
        pytest.param(1500, 256, 1, 5, 110_000, id="streamed, groups"),
        pytest.param(600, 512, 1, 3, 110_000, id="streamed, long latents"),
        pytest.param(1500, 256, 1, 8, 180_000, id="warpgroups stream, one request's slot"),
        pytest.param(1500, 256, 1, 11, 190_000, id="warpgroups stream, two groups"),
        pytest.param(1700, 256, 1, 30, 215_000, id="warpgroups stream odd tiles, four groups"),
    ],
)
def test_greedy_plans(vocab: int, rank: int, blocks: int, batch: int, shared_bytes: int) -> None:
    head = MarkovHead.random(vocab=vocab, rank=rank, seed=vocab)
    plan = plan_of(head, batch=batch, blocks=blocks, shared_bytes=shared_bytes)
    assert (
        (plan.placement.streamed_fragments > 0)
        == (plan.placement.ring_slots > 0)
        == (shared_bytes < WHOLE)
    )
    assert plan.product.warpgroups == (batch > 4 and shared_bytes != 110_000)
    check_greedy(head, plan, batch, 5, padding=3)
    check_greedy(head, plan, max(1, batch - 1), 2, seed=1)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("gpu", "batch"), [("b200", 1), ("b200", 8), ("b300", 13)])
def test_plans_of_blackwell(gpu: str, batch: int, sampled: bool) -> None:
    """Lone warps for any batch: groups of four requests."""
    head = MarkovHead.random(vocab=700, rank=128, seed=4)
    plan = plan_of(head, batch=batch, blocks=2, sampled=sampled, gpu=gpu)
    assert (plan.product.instruction, plan.product.columns) == ("mma", min(batch, 4))
    (check_sampled if sampled else check_greedy)(head, plan, batch, 3, padding=3)


@pytest.mark.parametrize(
    ("vocab", "rank", "batch", "sampled", "tiles", "tensor", "matrix"),
    [
        pytest.param(700, 256, 1, False, 6, 3, 0, id="three tiles in one accumulator"),
        pytest.param(700, 256, 1, False, 6, 2, 1, id="of which one is in shared memory"),
        pytest.param(700, 64, 1, True, 6, 0, 3, id="all of them there"),
        pytest.param(1000, 128, 1, True, 8, 1, 3, id="four tiles in one accumulator"),
        pytest.param(800, 64, 2, False, 7, 2, 1, id="an accumulator that is not full"),
        pytest.param(700, 64, 2, True, 6, 1, 3, id="two accumulators"),
        pytest.param(850, 64, 3, False, 7, 3, 2, id="odd tiles, five accumulators"),
        pytest.param(1150, 256, 4, True, 9, 4, 2, id="judged two by two"),
        pytest.param(1400, 64, 4, False, 11, 9, 1, id="more accumulators than warps"),
        pytest.param(500, 512, 2, False, 4, 1, 1, id="long latents"),
        pytest.param(500, 64, 7, False, 4, 1, 1, id="two groups"),
        pytest.param(500, 64, 7, True, 4, 2, 1, id="two groups, sampled"),
        pytest.param(300, 64, 30, False, 3, 1, 1, id="eight groups, latents fetched later"),
    ],
)
def test_tensor_memory(
    vocab: int, rank: int, batch: int, sampled: bool, tiles: int, tensor: int, matrix: int
) -> None:
    """Tiles of all warps by tcgen05, beside those that each multiplies itself."""
    head = MarkovHead.random(vocab=vocab, rank=rank, seed=vocab)
    plan = plan_of(head, batch=batch, sampled=sampled, gpu="b200", tensor_memory=True)
    plan = with_tcgen05_tiles(plan, tensor, matrix)
    assert (plan.shard.warp_tiles, plan.product.tensor_tiles) == (tiles, tensor)
    assert plan.product.matrix_tiles == matrix
    check = check_sampled if sampled else check_greedy
    check(head, plan, batch, 4, padding=3)
    check(head, plan, max(1, batch - 1), 2, seed=1)


@pytest.mark.parametrize(("batch", "shared_bytes"), [(1, 100_000), (2, 110_000), (4, 120_000)])
def test_tensor_memory_and_what_streams(batch: int, shared_bytes: int) -> None:
    head = MarkovHead.random(vocab=2300, rank=256, seed=6)
    plan = plan_of(head, batch=batch, shared_bytes=shared_bytes, gpu="b200", tensor_memory=True)
    assert plan.product.tensor_tiles > 0
    assert plan.placement.streamed_fragments > 0
    check_greedy(head, plan, batch, 3, padding=3)


@pytest.mark.parametrize(
    ("right", "wrong", "seen"),
    [
        pytest.param(
            "32 * (warp % 4) + 16 * (warp / 4)", "16 * warp", "another warp's", id="its lanes"
        ),
        pytest.param(
            "if (warp_index() == 0) tensor_release(block.shared.tensor_memory, "
            "plan::TENSOR_COLUMNS);",
            "",
            "was not released",
            id="its end",
        ),
        pytest.param("if (round > 0)", "if (false)", "", id="the sums of the round before"),
        pytest.param(" - variant * plan::REQUEST_COLUMNS * plan::COLUMNS", "", "", id="columns"),
        pytest.param("{words[i], words[i + 2]}", "{words[0], words[1]}", "", id="latents"),
    ],
)
def test_a_kernel_that_misuses_tensor_memory_is_found_out(
    right: str, wrong: str, seen: str
) -> None:
    """Of the simulator: what it complains of, or other tokens than the emulator's."""
    head = MarkovHead.random(vocab=700, rank=64, seed=3)
    plan = plan_of(head, gpu="b200", batch=9 if "round" in right else 2, tensor_memory=True)
    plan = with_tcgen05_tiles(plan, 2, 0)
    base, anchor = inputs(head, plan, plan.request.batch, 4, 0)
    wanted = Walker(head, plan, backend="emulator")(base, anchor)

    def outcome(change: tuple[str, str] | None) -> str:
        try:
            found = Simulator(head, plan, change=change)(base, anchor, most_turns=40_000)
        except RuntimeError as error:
            return str(error)
        return "the same" if torch.equal(found, wanted) else "other tokens"

    assert outcome(None) == "the same"
    found = outcome((right, wrong))
    assert found != "the same"
    assert seen in found


@pytest.mark.parametrize(
    ("batch", "sampled"),
    [
        pytest.param(1, False, id="one request"),
        pytest.param(4, False, id="four requests"),
        pytest.param(8, False, id="a warpgroup's requests"),
        pytest.param(17, False, id="three groups"),
        pytest.param(2, True, id="sampled"),
        pytest.param(8, True, id="sampled by warpgroups"),
    ],
)
def test_nothing_resident(batch: int, sampled: bool) -> None:
    head = MarkovHead.random(vocab=700, rank=256, seed=9)
    plan = streaming_plan(plan_of(head, batch=batch, sampled=sampled))
    assert plan.placement.resident_share == 0
    (check_sampled if sampled else check_greedy)(head, plan, batch, 4, padding=3)


@pytest.mark.parametrize("fragments", [1, 20, 44])
def test_other_placements(fragments: int) -> None:
    head = MarkovHead.random(vocab=700, rank=256, seed=9)
    plan = with_register_fragments(plan_of(head), fragments)
    assert plan.placement.register_fragments == fragments
    assert plan.placement.shared_fragments == plan.shard.warp_tiles * plan.shard.slabs - fragments
    check_greedy(head, plan, 1, 3)


@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch", "shared_bytes"),
    [
        pytest.param(900, 256, 1, 1, WHOLE, id="one request"),
        pytest.param(900, 128, 2, 2, WHOLE, id="two requests"),
        pytest.param(900, 128, 2, 4, WHOLE, id="four requests"),
        pytest.param(900, 128, 2, 6, WHOLE, id="a warpgroup's requests"),
        pytest.param(500, 64, 2, 13, WHOLE, id="two groups"),
        pytest.param(300, 64, 1, 40, WHOLE, id="five groups"),
        pytest.param(1500, 256, 1, 2, 110_000, id="streamed"),
        pytest.param(1500, 256, 1, 8, 190_000, id="warpgroups stream, noise parked"),
        pytest.param(1400, 256, 1, 20, 230_000, id="warpgroups stream, three groups"),
    ],
)
def test_sampled_plans(vocab: int, rank: int, blocks: int, batch: int, shared_bytes: int) -> None:
    head = MarkovHead.random(vocab=vocab, rank=rank, seed=vocab)
    plan = plan_of(head, batch=batch, blocks=blocks, sampled=True, shared_bytes=shared_bytes)
    check_sampled(head, plan, batch, 3, padding=5)


@pytest.mark.parametrize("batch", [1, 2, 4, 6, 11])
@pytest.mark.parametrize("base_type", ["bf16", "fp32"])
@pytest.mark.parametrize("value", [20.0, 1000.0, math.inf, -math.inf])
def test_scores_too_close_for_approximations(
    batch: int, base_type: NumberType, value: float
) -> None:
    """Cold rows of equal logits: scores of 2e6 and more, an eighth apart: precise scores."""
    head = silent_head(300, dtype=DTYPE_OF[base_type])
    plan = plan_of(head, batch=batch, blocks=3, sampled=True, base_type=base_type)
    assert plan.selection.score_in_word == (base_type == "bf16")
    base = torch.full((batch, 3, 300), value).to(DTYPE_OF[base_type])
    anchor = torch.zeros(batch, dtype=torch.int64)
    temperatures = torch.tensor([1e-5, 1.0, 3e-5, 1e-3, 0.0, 1e-4, 2e-5, 1e-2] * 2)[:batch].clone()
    tokens = []
    for walk in (Simulator(head, plan), Walker(head, plan, backend="emulator")):
        noise = Noise(key=KEY, offset=torch.tensor([OFFSET]))
        tokens.append(walk(base, anchor, temperatures=temperatures, noise=noise))
    assert torch.equal(*tokens)


@pytest.mark.parametrize("batch", [1, 2, 4, 6])
@pytest.mark.parametrize("temperature", [math.inf, 3e38])
def test_masked_rows_lose_at_any_temperature(batch: int, temperature: float) -> None:
    head = silent_head(300)
    plan = plan_of(head, batch=batch, blocks=2, sampled=True)
    base, anchor = inputs(head, plan, batch, 3, 0)
    base[:, :, ::2] = -math.inf
    tokens = []
    for walk in (Simulator(head, plan), Walker(head, plan, backend="emulator")):
        noise = Noise(key=KEY, offset=torch.tensor([OFFSET]))
        warm = torch.full((batch,), temperature)
        tokens.append(walk(base, anchor, temperatures=warm, noise=noise))
    assert torch.equal(*tokens)
    assert bool((tokens[0] % 2 == 1).all())


@pytest.mark.parametrize("base_type", ["fp16", "fp32"])
@pytest.mark.parametrize("sampled", [False, True])
def test_number_types(base_type: NumberType, sampled: bool) -> None:
    head = MarkovHead.random(vocab=333, rank=64, seed=1)
    plan = plan_of(head, batch=3, blocks=2, sampled=sampled, base_type=base_type)
    (check_sampled if sampled else check_greedy)(head, plan, 3, 3, padding=3)


@pytest.mark.parametrize(("shared_bytes", "columns"), [(60_000, 1), (70_000, 2)])
def test_groups_narrower_than_four_where_memory_is_short(shared_bytes: int, columns: int) -> None:
    head = MarkovHead.random(vocab=3000, rank=64, seed=5)
    plan = plan_of(head, batch=5, shared_bytes=shared_bytes)
    assert (plan.product.columns, plan.product.groups) == (columns, -(-5 // columns))
    check_greedy(head, plan, 5, 3, padding=3)


@pytest.mark.parametrize(
    ("more", "base_type"), [(1, "bf16"), (6, "bf16"), (7, "bf16"), (1, "fp32"), (3, "fp32")]
)
def test_base_logits_that_end_just_behind_a_shard(more: int, base_type: NumberType) -> None:
    """The last block has a few rows: whole 16-byte pieces of the others must end before them."""
    head = MarkovHead.random(vocab=128 + more, rank=64, seed=1)
    plan = plan_of(head, batch=4, blocks=2, base_type=base_type)
    assert (plan.shard.num_blocks, plan.shard.rows) == (2, 128)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    for batch in range(1, 5):  # lines at several distances from multiples of 16 bytes
        base, anchor = inputs(head, plan, batch, 3, batch)
        assert base.is_contiguous(), "nothing lies behind the last line"
        assert torch.equal(simulator(base, anchor), walker(base, anchor))


def test_a_draft_vocabulary() -> None:
    head = MarkovHead.random(vocab=900, rank=64, seed=2, draft_vocab=333)
    check_greedy(head, plan_of(head, batch=2, blocks=2), 2, 6)


HEAD = MarkovHead.random(vocab=300, rank=64, seed=3)
PLAN = plan_of(HEAD, batch=4, blocks=3)


@given(
    st.integers(0, 1 << 30),
    st.integers(1, 4),
    st.integers(1, 32),
    st.integers(0, 9),
    st.sampled_from([2, 3, 32, 33, (1 << 32) - 3, (1 << 32) - 2, (1 << 32) - 1]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schedule_layout_and_sequence_number(
    seed: int, batch: int, steps: int, padding: int, sequence: int
) -> None:
    """One workspace, walk after walk: tags go on from where they are, also over the wrap."""
    simulator = Simulator(HEAD, PLAN, sequence=sequence)
    walker = Walker(HEAD, PLAN, backend="emulator")
    for more in range(2):
        base, anchor = inputs(HEAD, PLAN, batch, steps, seed + more, padding=padding)
        assert torch.equal(simulator(base, anchor, seed=seed), walker(base, anchor))
    assert int(simulator.status[0]) % (1 << 32) == (sequence + 2 * steps) % (1 << 32)


@given(st.integers(0, 1 << 30))
@settings(max_examples=10, deadline=None)
def test_nan_and_infinity(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    base, anchor = inputs(HEAD, PLAN, 4, 4, seed)
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0])
    chosen = torch.randint(0, 5, base.shape, generator=generator)
    often = (
        torch.rand(base.shape, generator=generator)
        < torch.tensor([0.01, 0.5, 1.0, 0.0])[:, None, None]
    )
    base = torch.where(often, special[chosen].to(base.dtype), base)
    base[3] = float("-inf")
    tokens = Simulator(HEAD, PLAN)(base, anchor, seed=seed)
    assert torch.equal(tokens, Walker(HEAD, PLAN, backend="emulator")(base, anchor))
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < HEAD.vocab


@pytest.mark.parametrize("batch", [1, 4])
def test_a_block_that_never_comes_is_named(batch: int) -> None:
    """The walk ends, says for whom it waited, and leaves tokens in range."""
    plan = plan_of(HEAD, batch=batch, blocks=3)
    base, anchor = inputs(HEAD, plan, batch, 3, 0)
    # Block 0 is absent: it also writes the tokens, so they stay as they were.
    simulator = Simulator(HEAD, plan)
    simulator(base, anchor, absent=1, timeout_us=200)
    _, error, waiter, step, _ = simulator.status.tolist()[:5]
    assert (error, step) == (1, 0)
    assert waiter in (1, 2)


def test_a_read_outside_is_caught() -> None:
    """The simulator's own check: base logits shorter than the plan says."""
    base, anchor = inputs(HEAD, PLAN, 1, 1, 0)
    with pytest.raises(RuntimeError, match="outside global memory"):
        Simulator(HEAD, PLAN)(base[:, :, :200].clone(), anchor)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(
    ("temperatures", "walked_by"),
    [
        pytest.param([0.0], Turn.ALL_GREEDY, id="greedy"),
        pytest.param([math.nan, -1.0], Turn.ALL_GREEDY, id="neither is above 0"),
        pytest.param([0.0, 0.7], Turn.ANY_SAMPLED, id="one is sampled"),
    ],
)
def test_one_of_two_plans_walks(batch: int, temperatures: list[float], walked_by: Turn) -> None:
    head = MarkovHead.random(vocab=500, rank=64, seed=2)
    plans = {
        Turn.ALL_GREEDY: plan_of(head, batch=batch, blocks=2),
        Turn.ANY_SAMPLED: plan_of(head, batch=batch, blocks=2, sampled=True),
    }
    # The last request decides; one that is not there does not.
    several = torch.tensor([0.0] * (batch - 1) + temperatures[-1:] + [1.0])
    base, anchor = inputs(head, plans[Turn.ANY_SAMPLED], batch, 3, seed=4)
    offsets = [torch.tensor([OFFSET]) for _ in range(2)]
    wanted = Walker(head, plans[Turn.ANY_SAMPLED], backend="emulator")(
        base, anchor, temperatures=several[:batch], noise=Noise(key=KEY, offset=offsets[0])
    )
    for turn, plan in plans.items():
        simulator = Simulator(head, plan)
        before = simulator.status.clone()
        tokens = simulator(
            base,
            anchor,
            temperatures=several,
            noise=Noise(key=KEY, offset=offsets[1]),
            turn=turn,
        )
        if turn is walked_by:
            assert torch.equal(tokens, wanted)
        else:
            assert bool((tokens == -1).all())
            assert torch.equal(simulator.status, before)
    assert torch.equal(*offsets)  # advanced once
