"""bf16 weights: packed bytes, the emulator against the formula, the bound, and plans.

The bound leaves the order and rounding of sums open, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle import select
from strategies import KINDS, anchors, base_logits, heads, hidden_states, hopper, recurrent_head
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.errors import InputError, PlanError
from wts.hardware.gpu import GPUS
from wts.heads.kinds import RANKS, Shape
from wts.heads.markov import MarkovHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.tiles import load_rows
from wts.numerics.gumbel import Noise
from wts.numerics.intervals import bf16_interval, decided_between
from wts.numerics.step_logits import slab_sums, step_logits
from wts.walk.emulator import Emulator
from wts.walk.teacher_forced import teacher_forced
from wts.walk.walker import Walker
from wts.walk.walker_set import WalkerSet

CPU = torch.device("cpu")
seeds = st.integers(0, 1 << 16)
QWEN = Shape(vocab=151_936, rank=256)


def plan_of(head: Any, *, blocks: int = 132, batch: int = 4, **others: Any) -> ResidentPlan:
    return plan_residency(
        head, hopper(blocks), batch=batch, steps=32, **({"weights": "bf16"} | others)
    )


def emulator(head: Any, **others: Any) -> Emulator:
    plan = plan_of(head, **others)
    return Emulator(plan=plan, packed=pack_head(head, plan, CPU))


def bf16_heads() -> st.SearchStrategy[MarkovHead]:
    """Small bf16 heads, some of few distinct values."""

    def converted(head: MarkovHead) -> MarkovHead:
        return replace(head, table=head.table.bfloat16(), projection=head.projection.bfloat16())

    return heads(ranks=RANKS).map(converted)


def logits_of(made: Emulator, base: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    rows = load_rows(made.packed.tiles, made.plan)
    _, latents = made.packed.latent(None, previous, None)
    return made._step_logits(rows, base, latents)[:, : made.plan.request.shape.vocab]


class TestPacked:
    @given(bf16_heads(), st.integers(1, 132), st.integers(1, 64))
    def test_rows_and_latents_are_the_heads_own(
        self, head: MarkovHead, blocks: int, batch: int
    ) -> None:
        plan = plan_of(head, blocks=blocks, batch=batch)
        packed = pack_head(head, plan, CPU)
        rows = load_rows(packed.tiles, plan)
        assert torch.equal(rows[: head.vocab], head.projection[: head.vocab])
        assert not rows[head.vocab :].any()
        assert torch.equal(packed.table.view(torch.bfloat16), head.table)
        assert not packed.row_scale.any()
        assert packed.row_scale.nbytes == plan.shard.padded_vocab // 8

    def test_a_lane_finds_its_words_side_by_side(self) -> None:
        """PTX ISA 9.7.14.5.8: a lane's rows g and g + 8, elements k = 2 t and 8 + 2 t.

        Elements 4 t .. 4 t + 3 of a slab play those four, in weights and latents alike.
        """
        head = MarkovHead.random(vocab=32, rank=64, seed=1)
        plan = plan_of(head, batch=1, blocks=1)
        packed = pack_head(head, plan, CPU)
        order = torch.tensor(plan.placement.stored_order()).view(
            plan.shard.warp_tiles, plan.shard.slabs
        )
        words = packed.tiles.view(torch.bfloat16).view(plan.shard.sweep_warps, -1, 32, 4, 2)
        for half, slab, g, t in ((0, 0, 0, 0), (1, 3, 5, 2), (0, 2, 7, 3), (1, 1, 3, 1)):
            # One tile a warp: a pair's halves are neighbouring warps'.
            lane = words[half, order[0, slab], 4 * g + t]
            for row in range(2):
                token = 4 * g + 2 * half + row
                elements = head.projection[token, 16 * slab + 4 * t :][:4]
                assert torch.equal(lane[[row, 2 + row]].flatten(), elements)

    def test_rows_that_are_not_finite_are_put_aside(self) -> None:
        head = MarkovHead.random(vocab=100, rank=64, seed=1)
        head.projection[31, 5] = math.nan
        head.projection[32, 0] = math.inf
        head.projection[99, 63] = -math.inf
        made = emulator(head)
        assert made.packed.row_scale.tolist()[:4] == [-(1 << 31), 1, 0, 8]
        base = base_logits(head, batch=2, steps=1, seed=1)[:, 0]
        found = logits_of(made, base, torch.tensor([3, 4]))
        assert found.isnan().nonzero()[:, 1].tolist() == [31, 32, 99] * 2
        clean = torch.where(torch.isfinite(head.projection), head.projection, 0.0)
        made = emulator(replace(head, projection=clean))
        others = torch.ones(100, dtype=torch.bool)
        others[[31, 32, 99]] = False
        assert torch.equal(found[:, others], logits_of(made, base, torch.tensor([3, 4]))[:, others])

    def test_refreshed_weights_are_walked(self) -> None:
        first, second = (MarkovHead.random(vocab=300, rank=64, seed=seed) for seed in (1, 2))
        first.projection[7] = math.nan
        walker = Walker(first, plan_of(first), backend="emulator")
        base = base_logits(first, batch=2, steps=3, seed=1)
        assert bool((walker(base, torch.tensor([1, 2])) == 7).all())
        walker.refresh(second)
        fresh = Walker(second, plan_of(second), backend="emulator")
        assert torch.equal(*(walk(base, torch.tensor([1, 2])) for walk in (walker, fresh)))

    def test_walkers_of_both_weights_share_nothing_that_differs(self) -> None:
        head = MarkovHead.random(vocab=300, rank=64, seed=1)
        base, anchor = base_logits(head, batch=1, steps=5, seed=1), torch.tensor([3])
        int8 = Walker(head, plan_of(head, weights="int8"), backend="emulator")
        beside = Walker(head, plan_of(head), backend="emulator", sharing=[int8])
        assert torch.equal(
            beside(base, anchor), Walker(head, plan_of(head), backend="emulator")(base, anchor)
        )

    def test_a_set_of_walkers(self) -> None:
        head = MarkovHead.random(vocab=300, rank=64, seed=1)
        walkers = WalkerSet(
            head, hopper(), batches=(1, 8), steps=4, weights="bf16", backend="emulator"
        )
        assert [plan.request.weights for plan in walkers.plans] == ["bf16", "bf16"]
        first, last = (walkers.for_batch(batch).packed for batch in (1, 8))
        assert first is not None
        assert last is not None
        assert first.table is last.table


class TestAgainstTheFormula:
    @given(bf16_heads(), st.sampled_from(NUMBER_TYPES), st.integers(1, 3), seeds)
    def test_step_logits_of_emulator_and_reference_are_in_the_interval(
        self, head: MarkovHead, base_type: NumberType, blocks: int, seed: int
    ) -> None:
        made = emulator(head, blocks=blocks, base_type=base_type)
        base = base_logits(head, batch=3, steps=1, seed=seed, base_type=base_type)[:, 0]
        previous = anchors(head, 3, seed)
        latent = head.table[previous]
        least, most = bf16_interval(head.projection[: head.vocab], base, latent)
        for logits in (logits_of(made, base, previous), step_logits(head, base, latent).float()):
            assert bool(((least <= logits) & (logits <= most)).all())

    @given(seeds, st.sampled_from(RANKS), st.booleans())
    def test_sums_in_any_order_that_cut_what_is_below_are_in_the_interval(
        self, seed: int, rank: int, aligned: bool
    ) -> None:
        """One addition after the other towards 0, or 16 products aligned to the largest and cut."""
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(40, rank, generator=generator).bfloat16()
        weight[0] = weight[0].abs()  # all errors one way
        latent = (torch.randn(1, rank, generator=generator).exp() * 3).bfloat16()
        order = torch.randperm(rank, generator=generator)
        products = (weight.double() * latent.double())[:, order]
        total = torch.zeros(40, dtype=torch.float64)

        def cut(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
            """To 24 bits below the leading bit of `like`."""
            unit = torch.exp2(torch.floor(torch.log2(like.abs().clamp_min(1e-30))) - 23)
            return (value / unit).trunc() * unit

        for first in range(0, rank, 16 if aligned else 1):
            taken = products[:, first : first + (16 if aligned else 1)]
            if aligned:
                together = torch.cat([total[:, None], taken], 1)
                total = cut(together, together.abs().amax(1, keepdim=True)).sum(1)
            else:
                total = total + taken[:, 0]
            total = cut(total, total)
        base = torch.zeros(1, 40)
        # fp32 base logits hide nothing behind a rounding to bf16.
        least, most = bf16_interval(weight, base, latent)
        assert bool(((least <= total.float()) & (total.float() <= most)).all())

    def test_the_interval_is_not_much_wider_than_what_happens(self) -> None:
        """Cutting additions of equal signs comes within a tenth of what is allowed."""
        rank = 512
        weight = torch.full((1, rank), 1.0).bfloat16()
        latent = torch.full((1, rank), 1.0078125).bfloat16()
        least, most = bf16_interval(weight, torch.zeros(1, 1), latent)
        exact = 1.0078125 * rank
        allowed = float(most[0, 0]) - exact
        assert allowed < 10 * (rank / 4) * 2.0**-24 * exact
        assert float(least[0, 0]) < exact < float(most[0, 0])

    @given(bf16_heads(), seeds, st.integers(1, 3), st.booleans())
    def test_tokens_are_the_formulas_where_the_interval_decides(
        self, head: MarkovHead, seed: int, blocks: int, tied: bool
    ) -> None:
        base = base_logits(head, batch=3, steps=5, seed=seed, tied=tied)
        made, anchor = emulator(head, blocks=blocks), anchors(head, 3, seed)
        tokens, _ = made.walk(base, anchor)
        judged = teacher_forced(made, base, anchor, tokens)
        assert not judged.wrong.any()
        previous = anchor
        for step in range(5):
            formula = torch.tensor(select(step_logits(head, base[:, step], head.table[previous])))
            if head.draft_to_target is not None:
                formula = head.draft_to_target[formula]
            sure = judged.decided[:, step]
            assert torch.equal(tokens[sure, step], formula[sure])
            previous = tokens[:, step]

    def test_nearly_all_tokens_of_a_well_spread_head_are_decided(self) -> None:
        head = MarkovHead.random(vocab=3000, rank=256, seed=4)
        base, anchor = base_logits(head, batch=16, steps=4, seed=5), anchors(head, 16, 6)
        made = emulator(head, batch=16)
        judged = teacher_forced(made, base, anchor, made.walk(base, anchor)[0])
        assert judged.decided.float().mean() > 0.9

    def test_a_wrong_token_is_found(self) -> None:
        head = MarkovHead.random(vocab=300, rank=64, seed=4)
        base, anchor = base_logits(head, batch=2, steps=4, seed=5), anchors(head, 2, 6)
        made = emulator(head)
        tokens, _ = made.walk(base, anchor)
        assert judged_wrong(made, base, anchor, tokens) == []
        decided = teacher_forced(made, base, anchor, tokens).decided
        assert bool(decided[1, 2])
        tokens[1, 2] = (tokens[1, 2] + 1) % 300
        assert [1, 2] in judged_wrong(made, base, anchor, tokens)

    @pytest.mark.parametrize("kind", KINDS)
    def test_other_heads_and_sampled_walks(self, kind: Any) -> None:
        head = recurrent_head(kind)
        made = emulator(head, sampled=True)
        base = base_logits(head, batch=3, steps=4, seed=1)
        hidden, anchor = hidden_states(head, batch=3, steps=4, seed=2), anchors(head, 3, 3)
        temperatures = torch.tensor([40.0, 0.0, 30.0])
        part = made.packed.hidden_term(hidden)
        logits = torch.zeros_like(base)
        tokens, _ = made.walk(
            base,
            anchor,
            hidden_term=part,
            temperatures=temperatures,
            noise=Noise(key=7, offset=torch.tensor([3])),
            logits_out=logits,
        )
        arguments: dict[str, Any] = {
            "hidden_term": part,
            "temperatures": temperatures,
            "noise_key": 7,
            "noise_offset": 3,
        }
        judged = teacher_forced(made, base, anchor, tokens, logits=logits, **arguments)
        assert (int(judged.wrong.sum()), judged.strayed) == (0, 0)
        assert judged.decided.float().mean() > 0.7
        logits[0, 1, 5] += 1.0
        assert teacher_forced(made, base, anchor, tokens, logits=logits, **arguments).strayed == 1
        other = teacher_forced(made, base, anchor, tokens, **(arguments | {"noise_key": 8}))
        assert other.wrong.any(), "the noise is part of what is judged"

    def test_int8_weights_are_not_judged(self) -> None:
        head = MarkovHead.random(vocab=50, rank=64, seed=4)
        made = emulator(head, weights="int8")
        with pytest.raises(InputError, match="wanted one of bf16 weights"):
            teacher_forced(made, torch.zeros(1, 1, 50), torch.tensor([0]), torch.zeros(1, 1).long())

    def test_sums_are_made_of_sixteen_products_at_a_time(self) -> None:
        """2^24, then 16 ones: added together they count, one by one they would be lost."""
        weight = torch.zeros(1, 64)
        weight[0, 0], weight[0, 16:32] = 2.0**24, 1.0
        assert slab_sums(weight.bfloat16(), torch.ones(1, 64).bfloat16()).item() == 2.0**24 + 16


def judged_wrong(
    made: Emulator, base: torch.Tensor, anchor: torch.Tensor, tokens: torch.Tensor
) -> list[list[int]]:
    found: list[list[int]] = teacher_forced(made, base, anchor, tokens).wrong.nonzero().tolist()
    return found


class TestDecided:
    @pytest.mark.parametrize(
        ("least", "most", "decided", "winner"),
        [
            ([1.0, 3.0, 2.0], [1.0, 3.0, 2.0], True, 1),
            ([1.0, 3.0, 2.0], [1.0, 4.0, 3.5], False, None),
            ([1.0, 3.0, 2.0], [1.0, 4.0, 3.0], True, 1),  # equal, and behind
            ([2.0, 3.0, 1.0], [3.0, 4.0, 1.0], False, None),  # equal, and ahead
            ([5.0, 5.0, 5.0], [5.0, 5.0, 5.0], True, 0),
            ([-math.inf, 1.0, 0.0], [math.inf, 1.0, 0.0], False, None),
        ],
    )
    def test_by_hand(
        self, least: list[float], most: list[float], decided: bool, winner: int | None
    ) -> None:
        found, which = decided_between(torch.tensor([least]), torch.tensor([most]))
        assert found.tolist() == [decided]
        if winner is not None:
            assert which.tolist() == [winner]


class TestPlans:
    def test_of_published_heads(self) -> None:
        whole = plan_of(Shape(vocab=32_000, rank=256, table_rows=151_936, mapped=True), batch=1)
        assert whole.placement.resident_share == 1.0
        assert whole.request.table_row_bytes == 512
        part = plan_of(QWEN, batch=1)
        assert 0.5 < part.placement.resident_share < 0.7
        assert part.shard.tile_bytes == 8192
        assert (
            part.placement.copied_together == 1 < plan_of(QWEN, batch=4).placement.copied_together
        )
        assert "r = 256, bf16, batch 1" in str(part)
        int8 = plan_of(QWEN, batch=1, weights="int8")
        assert part.hash != int8.hash
        assert part.placement.tile_order != int8.placement.tile_order
        assert (part.shard.rows, part.shard.num_blocks) == (int8.shard.rows, int8.shard.num_blocks)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 64])
    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("vocab", [32_000, 151_936, 248_320])
    def test_fit_every_batch(self, vocab: int, batch: int, sampled: bool) -> None:
        plan = plan_of(Shape(vocab=vocab, rank=256), batch=batch, sampled=sampled)
        assert plan.product.instruction == "mma"
        assert plan.shared_bytes <= plan.gpu.shared_bytes_per_block

    @pytest.mark.parametrize("table_type", ["fp16", "fp32"])
    def test_heads_of_other_numbers_are_refused(self, table_type: NumberType) -> None:
        with pytest.raises(PlanError, match="weights: wanted int8 for a head whose projection"):
            plan_of(replace(QWEN, table_type=table_type))
        head = MarkovHead.random(vocab=40, rank=64, seed=1, dtype=torch.float32)
        with pytest.raises(PlanError, match=r"a projection in torch\.float32"):
            plan_of(head)
        with pytest.raises(PlanError, match="found bf16 weights"):
            Walker(head, plan_of(Shape(vocab=40, rank=64), base_type="fp32"), backend="emulator")

    def test_more_than_a_sweep_can_hold_is_refused(self) -> None:
        shape = Shape(vocab=248_320, rank=256)
        assert plan_of(shape).shard.warp_tiles * plan_of(shape).shard.slabs == 240
        with pytest.raises(PlanError, match="weights: wanted int8 where a warp has more than 400"):
            plan_of(shape, blocks=40)

    def test_other_weights_and_other_gpus_are_refused(self) -> None:
        with pytest.raises(PlanError, match="weights: wanted one of int8, bf16, found 'int4'"):
            plan_of(QWEN, weights="int4")
        for gpu in GPUS.values():
            assert plan_residency(QWEN, gpu, weights="bf16").gpu.arch == gpu.arch
        old = replace(GPUS["h200"], name="a100", compute_capability=(8, 0))
        with pytest.raises(PlanError, match="weights: wanted int8 on a100"):
            plan_residency(QWEN, old, weights="bf16")
