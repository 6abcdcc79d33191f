"""The emulator: the contract bit for bit, near the formula, and the same for every plan."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds import decided, logit_bound
from oracle import gumbels, int8_logits, int8_walk, select
from strategies import DTYPES, anchors, base_logits, heads, hopper, silent_head, successor_head
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.heads.kinds import RANKS
from wts.heads.markov import MarkovHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.tiles import load_rows
from wts.numerics.gumbel import Noise
from wts.numerics.order import ordered_key
from wts.numerics.step_logits import step_logits
from wts.walk.emulator import Emulator
from wts.walk.reference import reference_walk

CPU = torch.device("cpu")
INF = math.inf
NAN = math.nan

seeds = st.integers(0, 1 << 16)


def emulator(
    head: MarkovHead, *, blocks: int = 132, batch: int = 4, base_type: NumberType = "bf16"
) -> Emulator:
    plan = plan_residency(head, hopper(blocks), batch=batch, steps=32, base_type=base_type)
    return Emulator(plan=plan, packed=pack_head(head, plan, CPU))


def walk(
    head: MarkovHead, base: torch.Tensor, anchor: torch.Tensor, *, blocks: int = 132, batch: int = 0
) -> torch.Tensor:
    """Tokens under the plan of this many blocks, for this largest batch."""
    base_type: NumberType = next(name for name in NUMBER_TYPES if DTYPES[name] == base.dtype)
    made = emulator(head, blocks=blocks, batch=batch or len(base), base_type=base_type)
    return made.walk(base, anchor)[0]


def logits_of(made: Emulator, base: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Step logits of the emulator, [B, V] in fp32."""
    levels = load_rows(made.packed.tiles, made.plan).float()
    _, latents = made.packed.latent(None, previous, None)
    return made._step_logits(levels, base, latents)[:, : made.plan.request.shape.vocab]


class TestContract:
    """Against the int8 head of the contract in plain integers."""

    @given(heads(ranks=RANKS), st.sampled_from(NUMBER_TYPES), st.integers(1, 3), seeds)
    def test_step_logits_equal_the_contract_bit_for_bit(
        self, head: MarkovHead, base_type: NumberType, blocks: int, seed: int
    ) -> None:
        made = emulator(head, blocks=blocks, base_type=base_type)
        base = base_logits(head, batch=3, steps=1, seed=seed, base_type=base_type)[:, 0]
        previous = anchors(head, 3, seed)
        found = logits_of(made, base, previous)
        wanted = int8_logits(head, base, previous)
        assert torch.equal(found, wanted.float())

    @given(heads(), st.sampled_from(NUMBER_TYPES), st.booleans(), st.integers(1, 3), seeds)
    def test_tokens_equal_the_contract(
        self, head: MarkovHead, base_type: NumberType, tied: bool, blocks: int, seed: int
    ) -> None:
        base = base_logits(head, batch=3, steps=4, seed=seed, base_type=base_type, tied=tied)
        anchor = anchors(head, 3, seed)
        found = walk(head, base, anchor, blocks=blocks)
        assert torch.equal(found, int8_walk(head, base, anchor))

    @pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 1e-30, 1e-20, 1e15, 1e18, 1e30])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_tiny_and_huge_weights_equal_the_contract(
        self, magnitude: float, dtype: torch.dtype
    ) -> None:
        """Down to scales at their floor, subnormal products and sums that overflow."""
        plain = MarkovHead.random(vocab=70, rank=64, seed=5, dtype=torch.float32)
        head = MarkovHead(
            table=(plain.table * magnitude).to(dtype),
            projection=(plain.projection * magnitude).to(dtype),
        )
        base = base_logits(head, batch=2, steps=1, seed=1)[:, 0] * magnitude
        previous = torch.tensor([3, 69])
        found = logits_of(emulator(head), base, previous)
        wanted = int8_logits(head, base, previous).float()
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(0.5), wanted.nan_to_num(0.5))

    @pytest.mark.parametrize("rank", RANKS)
    def test_the_largest_possible_dot_is_exact(self, rank: int) -> None:
        """Every level at its last: 127 * 32639 * r, in fp32 sums of planes that stay below 2^24."""
        table = torch.ones(2, rank)
        projection = torch.ones(2, rank)
        projection[1] = -1.0
        head = MarkovHead(table=table, projection=projection)
        base = torch.zeros(1, 2)
        previous = torch.tensor([0])
        found = logits_of(emulator(head, base_type="fp32"), base, previous)
        assert torch.equal(found, int8_logits(head, base, previous))
        assert found[0].tolist() == pytest.approx([rank, -rank], rel=1e-6)


class TestAgainstTheFormula:
    @given(heads(ranks=RANKS), st.sampled_from(NUMBER_TYPES), seeds)
    @settings(max_examples=80)
    def test_step_logits_are_within_the_derived_bound(
        self, head: MarkovHead, base_type: NumberType, seed: int
    ) -> None:
        base = base_logits(head, batch=2, steps=1, seed=seed, base_type=base_type)[:, 0]
        previous = anchors(head, 2, seed)
        latent = head.table[previous]
        off = logits_of(emulator(head, base_type=base_type), base, previous).double()
        off = (off - step_logits(head, base, latent).double()).abs()
        assert bool((off <= logit_bound(head, base, latent)).all())

    def test_the_bound_is_not_far_from_what_happens(self) -> None:
        """The worst sum of r errors is about sqrt(r) times the usual one; no more is given away."""
        head = MarkovHead.random(vocab=2000, rank=256, seed=1)
        base = base_logits(head, batch=4, steps=1, seed=2)[:, 0]
        previous = anchors(head, 4, 3)
        latent = head.table[previous]
        off = logits_of(emulator(head), base, previous).double()
        off = (off - step_logits(head, base, latent).double()).abs()
        assert off.max() > 0
        assert logit_bound(head, base, latent).median() < 16 * off.max()

    @given(heads(tied=False), seeds, st.integers(1, 3))
    def test_tokens_are_equal_where_the_gap_exceeds_the_bound(
        self, head: MarkovHead, seed: int, blocks: int
    ) -> None:
        base = base_logits(head, batch=3, steps=5, seed=seed)
        anchor = anchors(head, 3, seed)
        tokens = walk(head, base, anchor, blocks=blocks)
        previous = anchor
        for step in range(5):
            latent = head.latent(None, previous)[1]
            logits = step_logits(head, base[:, step], latent)
            sure = decided(logits, logit_bound(head, base[:, step], latent))
            formula = torch.tensor(select(logits))
            if head.draft_to_target is not None:
                formula = head.draft_to_target[formula]
            assert torch.equal(tokens[sure, step], formula[sure])
            previous = tokens[:, step]

    def test_nearly_all_tokens_of_a_well_spread_head_are_decided(self) -> None:
        head = MarkovHead.random(vocab=3000, rank=256, seed=4)
        base = base_logits(head, batch=16, steps=1, seed=5)[:, 0]
        latent = head.table[anchors(head, 16, 6)]
        logits = step_logits(head, base, latent)
        assert decided(logits, logit_bound(head, base, latent)).float().mean() > 0.9

    @given(seeds, st.sampled_from([10.0, 100.0, 1000.0]))
    def test_the_bound_holds_where_one_column_dominates_some_rows(
        self, seed: int, factor: float
    ) -> None:
        head = MarkovHead.random(vocab=300, rank=64, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(300, generator=generator)[:3]
        head.projection[rows, int(seed) % 64] *= factor
        base = base_logits(head, batch=2, steps=1, seed=seed)[:, 0]
        previous = anchors(head, 2, seed)
        latent = head.table[previous]
        off = logits_of(emulator(head), base, previous).double()
        off = (off - step_logits(head, base, latent).double()).abs()
        assert bool((off <= logit_bound(head, base, latent)).all())


class TestEveryPlanIsTheSame:
    @given(heads(), st.sampled_from(NUMBER_TYPES), seeds, st.data())
    def test_any_two_valid_plans_give_the_same_tokens(
        self, head: MarkovHead, base_type: NumberType, seed: int, data: st.DataObject
    ) -> None:
        base = base_logits(head, batch=2, steps=4, seed=seed, base_type=base_type, tied=True)
        anchor = anchors(head, 2, seed)
        blocks, batches = st.integers(1, 132), st.integers(2, 64)
        several = [
            walk(head, base, anchor, blocks=data.draw(blocks), batch=data.draw(batches))
            for _ in range(2)
        ]
        assert torch.equal(*several)

    @given(heads(), st.booleans(), seeds, st.integers(2, 6))
    def test_a_request_is_the_same_in_any_batch_and_slot(
        self, head: MarkovHead, tied: bool, seed: int, batch: int
    ) -> None:
        base = base_logits(head, batch=batch, steps=3, seed=seed, tied=tied)
        anchor = anchors(head, batch, seed)
        together = walk(head, base, anchor)
        backwards = walk(head, base.flip(0), anchor.flip(0))
        assert torch.equal(backwards.flip(0), together)
        for request in range(batch):
            alone = slice(request, request + 1)
            assert torch.equal(walk(head, base[alone], anchor[alone]), together[alone])

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_a_request_that_is_not_finite_harms_no_other(self, value: float) -> None:
        head = MarkovHead.random(vocab=100, rank=64, seed=2)
        base = base_logits(head, batch=3, steps=4, seed=3)
        anchor = torch.tensor([1, 2, 3])
        plain = walk(head, base, anchor)
        base[1] = value
        tokens = walk(head, base, anchor)
        assert torch.equal(tokens[[0, 2]], plain[[0, 2]])
        assert tokens[1].tolist() == [0] * 4

    @given(st.integers(1, 700), st.integers(1, 6), st.data())
    def test_among_equals_the_lowest_token_wins_wherever_they_lie(
        self, vocab: int, blocks: int, data: st.DataObject
    ) -> None:
        """In one lane, tile, warp or block, or across them."""
        head = silent_head(vocab)
        equals = data.draw(st.sets(st.integers(0, vocab - 1), min_size=1, max_size=8))
        base = torch.full((1, 1, vocab), -1.0, dtype=torch.bfloat16)
        base[0, 0, list(equals)] = 3.0
        assert walk(head, base, torch.tensor([0]), blocks=blocks).tolist() == [[min(equals)]]


class TestSampled:
    """Exported logits are the contract's, tokens those of noise in fp64 wherever that can tell.

    A score is x / T, an fp32 quotient, plus noise that is off by a few 2^-24 of its own size.
    """

    @staticmethod
    def drawn(
        head: MarkovHead,
        base: torch.Tensor,
        anchor: torch.Tensor,
        temperatures: torch.Tensor,
        *,
        base_type: NumberType = "bf16",
        blocks: int = 132,
        key: int = 3,
        offset: int = 9,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plan = plan_residency(
            head, hopper(blocks), batch=4, steps=32, base_type=base_type, sampled=True
        )
        made = Emulator(plan=plan, packed=pack_head(head, plan, CPU))
        noise = Noise(key=key, offset=torch.tensor([offset]))
        logits = torch.full(base.shape, 5.0, dtype=DTYPES[plan.request.step_type])
        tokens, _ = made.walk(
            base, anchor, temperatures=temperatures, noise=noise, logits_out=logits
        )
        assert noise.offset.item() == offset + 1
        return tokens, logits

    @given(
        heads(max_vocab=70, ranks=(64,)),
        st.lists(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 4.0, -1.0, NAN]), min_size=3, max_size=3),
        st.sampled_from(NUMBER_TYPES),
        st.integers(0, (1 << 63) - 1),
        seeds,
    )
    @settings(max_examples=30)
    def test_draws_what_the_contract_draws(
        self,
        head: MarkovHead,
        temperatures: list[float],
        base_type: NumberType,
        key: int,
        seed: int,
    ) -> None:
        base = base_logits(head, batch=3, steps=3, seed=seed, base_type=base_type)
        previous = anchors(head, 3, seed)
        tokens, logits = self.drawn(
            head, base, previous, torch.tensor(temperatures), base_type=base_type, key=key
        )
        for step in range(3):
            x = int8_logits(head, base[:, step], previous)
            scores = x.double()
            noise = gumbels(head.vocab, 3, step, key, 9)
            for row, temperature in enumerate(temperatures):
                if temperature > 0:
                    scores[row] = x[row].double() / max(temperature, 1e-5) + noise[row]
                    assert torch.equal(logits[row, step], x[row])
                else:
                    assert bool((logits[row] == 5.0).all()), "greedy rows are not written"
            wanted = torch.tensor(select(scores.float()))
            finite = scores.clamp_min(-1e30)
            slack = finite.abs() * 2.0**-22 + 2.0**-20
            clear = decided(finite, slack) | ~(torch.tensor(temperatures) > 0)
            if head.draft_to_target is not None:
                wanted = head.draft_to_target[wanted]
            assert torch.equal(tokens[clear, step], wanted[clear])
            previous = tokens[:, step]

    @given(heads(max_vocab=200, ranks=(64,)), seeds, st.integers(1, 3), st.integers(1, 3))
    @settings(max_examples=20)
    def test_any_two_plans_draw_the_same(
        self, head: MarkovHead, seed: int, one: int, other: int
    ) -> None:
        base, anchor = base_logits(head, batch=2, steps=3, seed=seed), anchors(head, 2, seed)
        temperatures = torch.tensor([1.0, 0.4])
        first = self.drawn(head, base, anchor, temperatures, blocks=one)
        second = self.drawn(head, base, anchor, temperatures, blocks=other)
        assert all(map(torch.equal, first, second))

    def test_the_number_of_a_row_is_in_its_noise_and_nothing_else_of_the_batch(self) -> None:
        head = MarkovHead.random(vocab=99, rank=64, seed=1)
        base = base_logits(head, batch=4, steps=4, seed=1)
        base[:] = base[:1]
        anchor, hot = torch.zeros(4).long(), torch.tensor([30.0] * 4)
        tokens, _ = self.drawn(head, base, anchor, hot)
        assert len({tuple(row) for row in tokens.tolist()}) == 4
        fewer, _ = self.drawn(head, base[:2], anchor[:2], hot[:2])
        assert torch.equal(fewer, tokens[:2])


class TestCorners:
    def test_follows_the_successors(self) -> None:
        head = successor_head([3, 0, 4, 2, 1], dtype=torch.bfloat16)
        base = torch.zeros(1, 6, 5, dtype=torch.bfloat16)
        assert walk(head, base, torch.tensor([2])).tolist() == [[4, 1, 0, 3, 2, 4]]

    @pytest.mark.parametrize(
        ("row", "token"),
        [
            ([1.0, NAN, INF, NAN], 1),
            ([NAN, NAN, NAN, NAN], 0),
            ([-INF, -INF, -INF, -INF], 0),
            ([-INF, -INF, -3e38, -INF], 2),
            ([-0.0, 0.0, -0.0, 0.0], 0),
            ([-1.0, 0.0, -0.0, -1.0], 1),
            ([INF, 0.0, INF, 0.0], 0),
            ([-1e-45, 0.0, 0.0, 0.0], 0),
        ],
    )
    def test_by_hand(self, row: list[float], token: int) -> None:
        base = torch.tensor([[row]], dtype=torch.bfloat16)
        assert walk(silent_head(4), base, torch.tensor([1])).tolist() == [[token]]

    def test_a_nan_row_of_the_projection_always_wins(self) -> None:
        head = successor_head([1, 2, 0])
        head.projection[2, 5] = NAN
        base = torch.zeros(1, 3, 3)
        assert walk(head, base, torch.tensor([0])).tolist() == [[2, 2, 2]]

    def test_a_nan_row_of_the_table_gives_token_0(self) -> None:
        """Every logit is NaN, those of the padding rows too: they must not win."""
        head = successor_head([1, 2, 0])
        head.table[1, 0] = NAN
        base = torch.zeros(1, 3, 3)
        assert walk(head, base, torch.tensor([2])).tolist() == [[0, 1, 0]]

    def test_base_logits_past_the_vocabulary_are_not_read(self) -> None:
        head = silent_head(5)
        base = torch.full((1, 2, 9), NAN, dtype=torch.bfloat16)
        base[:, :, :5] = 0.0
        base[:, :, 3] = 1.0
        assert walk(head, base, torch.tensor([0])).tolist() == [[3, 3]]

    def test_anchors_outside_the_table_are_clamped_and_counted(self) -> None:
        head = successor_head([1, 2, 0], dtype=torch.bfloat16)
        base = torch.zeros(4, 2, 3, dtype=torch.bfloat16)
        tokens, clamped = emulator(head).walk(base, torch.tensor([-1, 1, 3, 2**40]))
        assert tokens.tolist() == [[1, 2], [2, 0], [0, 1], [0, 1]]
        assert clamped == 3

    def test_reports_its_progress(self) -> None:
        done: list[int] = []
        base = torch.zeros(1, 3, 5, dtype=torch.bfloat16)
        emulator(silent_head(5)).walk(base, torch.tensor([0]), progress=done.append)
        assert done == [1, 2, 3]

    @given(st.lists(st.floats(width=32), min_size=2, max_size=30))
    def test_keys_order_as_scores_do(self, scores: list[float]) -> None:
        keys = ordered_key(torch.tensor(scores)).tolist()
        for (one, key), (other, other_key) in zip(
            zip(scores, keys, strict=True), zip(scores[1:], keys[1:], strict=False), strict=False
        ):
            if math.isnan(one) or math.isnan(other):
                assert (key >= other_key) == math.isnan(one)
                assert (other_key >= key) == math.isnan(other)
            else:
                assert (key < other_key) == (one < other)
                assert (key == other_key) == (one == other)

    def test_the_reference_and_the_emulator_agree_on_a_plain_walk(self) -> None:
        head = MarkovHead.random(vocab=500, rank=128, seed=9, draft_vocab=300)
        base = base_logits(head, batch=2, steps=8, seed=1) * 0.1
        anchor = anchors(head, 2, 4)
        assert torch.equal(walk(head, base, anchor), reference_walk(head, base, anchor))
