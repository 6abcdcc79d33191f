"""Cells: the oracle's bits, inside the formula's intervals, and the same in any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle_cells
import wts.heads.domino
import wts.heads.rnn
from bounds import decided
from intervals import latent_interval, walk_bound
from oracle import int8_logits_of
from strategies import (
    KINDS,
    RecurrentHead,
    anchors,
    base_logits,
    hidden_states,
    hopper,
    recurrent_head,
    recurrent_heads,
)
from wts.errors import InputError
from wts.heads.base import HeadState
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.numerics.gumbel import Noise
from wts.numerics.lane_sums import hidden_term, lane_product
from wts.numerics.order import select_greedy
from wts.numerics.quantise import quantise_latents
from wts.numerics.step_logits import step_logits
from wts.walk.emulator import Emulator
from wts.walk.reference import reference_walk

CPU = torch.device("cpu")
NAN = math.nan
BF16 = torch.bfloat16

each_kind = pytest.mark.parametrize("kind", KINDS)
seeds = st.integers(0, 1 << 16)


def emulator(head: RecurrentHead | MarkovHead, *, blocks: int = 132, batch: int = 8) -> Emulator:
    plan = plan_residency(head, hopper(blocks), batch=batch, steps=32)
    return Emulator(plan=plan, packed=pack_head(head, plan, CPU))


def walk(
    head: RecurrentHead,
    base: torch.Tensor,
    anchor: torch.Tensor,
    hidden: torch.Tensor,
    *,
    blocks: int = 132,
) -> torch.Tensor:
    made = emulator(head, blocks=blocks)
    return made.walk(base, anchor, hidden_term=made.packed.hidden_term(hidden))[0]


def inputs(
    head: RecurrentHead, batch: int, steps: int, seed: int, *, tied: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Base logits that leave most to the head, anchors, hidden states."""
    base = base_logits(head, batch=batch, steps=steps, seed=seed, tied=tied)
    if not tied:
        base = (base.float() / 4).bfloat16()
    hidden = hidden_states(head, batch=batch, steps=steps, seed=seed + 1)
    return base, anchors(head, batch, seed), hidden


def sampled_logits(
    head: RecurrentHead, base: torch.Tensor, anchor: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """Step logits of a walk that draws the largest at nearly every step, [B, K, V]."""
    plan = plan_residency(head, hopper(), batch=8, steps=32, sampled=True)
    made = Emulator(plan=plan, packed=pack_head(head, plan, CPU))
    logits = torch.zeros_like(base)
    made.walk(
        base,
        anchor,
        hidden_term=made.packed.hidden_term(hidden),
        temperatures=torch.full((len(base),), 1e-5),
        noise=Noise(key=1, offset=torch.tensor([0])),
        logits_out=logits,
    )
    return logits


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16 if values.dtype == BF16 else torch.int32)


# Numbers whose sums cancel, overflow, vanish or lie on a boundary of fp32.
odd_numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-133, 2.0**127, -(2.0**-70), 2.0**60, 1.0078125]),
    st.floats(width=16, allow_nan=False, allow_infinity=False),
    st.floats(min_value=-(2.0**120), max_value=2.0**120, width=32),
)


class TestLaneProduct:
    @given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 3), st.data())
    @settings(max_examples=30)
    def test_is_the_warps_sum_bit_for_bit(
        self, rows: int, turns: int, batch: int, data: st.DataObject
    ) -> None:
        length = 8 * turns
        generator = torch.Generator().manual_seed(data.draw(seeds))
        scale = 2.0 ** torch.randint(-40, 40, (rows + batch, length), generator=generator)
        drawn = (torch.randn(rows + batch, length, generator=generator) * scale).bfloat16()
        for index, value in data.draw(
            st.dictionaries(st.integers(0, drawn.numel() - 1), odd_numbers, max_size=20)
        ).items():
            drawn.view(-1)[index] = value
        weight, vector = drawn[:rows], drawn[rows:]
        found = lane_product(weight, vector).numpy()
        wanted = [oracle_cells.warp_product(weight, v) for v in vector.float().numpy()]
        assert np.array_equal(found, np.stack(wanted), equal_nan=True)

    @given(odd_numbers, odd_numbers, odd_numbers)
    @settings(max_examples=300)
    def test_rounds_as_a_fused_multiply_add(self, a: float, b: float, c: float) -> None:
        """A sum's second element meets what is the fp32 product of the first."""
        values = torch.tensor([a, b, c, 1.0]).bfloat16()
        weight, vector = torch.zeros(2, 1, 264, dtype=BF16)
        weight[0, 0], vector[0, 0] = values[2], values[3]
        weight[0, 256], vector[0, 256] = values[0], values[1]
        first, second, third = values[:3].tolist()
        wanted = oracle_cells.fma(first, second, oracle_cells.fma(third, 1.0, 0.0))
        assert lane_product(weight, vector).item() == wanted

    @pytest.mark.parametrize(
        ("first", "second", "wanted"),
        [
            # 1.5 of the least number is a tie; the product alone would have been rounded to 0.
            ((2.0**-133, 2.0**-16), (2.0**-75, 2.0**-75), 2.0**-148),
            # A product too large for fp32, and a sum that is not.
            ((-(2.0**127), 1.0), (2.0**64, 2.0**64), 2.0**127),
        ],
    )
    def test_products_are_not_rounded(
        self, first: tuple[float, float], second: tuple[float, float], wanted: float
    ) -> None:
        weight, vector = torch.zeros(2, 1, 264, dtype=BF16)
        for index, (one, other) in ((0, first), (256, second)):
            weight[0, index], vector[0, index] = one, other
        assert lane_product(weight, vector).item() == wanted

    def test_order_is_ascending_within_a_sum_and_two_trees_across(self) -> None:
        big, vector = 2.0**24, torch.ones(1, 768, dtype=BF16)
        weight = torch.zeros(1, 768, dtype=BF16)
        # One sum: 1 + 2^24 is a tie that loses the 1, less 2^24 is 0. Backwards it would be 1.
        weight[0, 0], weight[0, 256], weight[0, 512] = 1.0, big, -big
        assert lane_product(weight, vector).item() == 0.0
        # A lane's fifth element is of its first sum.
        weight.zero_()
        weight[0, 0], weight[0, 4], weight[0, 8 * 32] = 1.0, big, -big
        assert lane_product(weight, vector).item() == 0.0
        # Sums 0 and 2 of a lane meet first, then 1 comes to them.
        weight.zero_()
        weight[0, 0], weight[0, 2], weight[0, 1] = big, -big, 1.0
        assert lane_product(weight, vector).item() == 1.0
        weight.zero_()
        weight[0, 0], weight[0, 1], weight[0, 2] = big, -big, 1.0
        assert lane_product(weight, vector).item() == 0.0
        # Lanes 0 and 16 meet first: 2^24 - 2^24, then the 1 of lane 1. Other pairs lose it.
        weight.zero_()
        weight[0, 0], weight[0, 128], weight[0, 8] = big, -big, 1.0
        assert lane_product(weight, vector).item() == 1.0
        weight.zero_()
        weight[0, 0], weight[0, 64], weight[0, 128] = big, -big, 1.0
        assert lane_product(weight, vector).item() == 0.0

    @given(st.integers(1, 4), seeds)
    def test_a_vector_does_not_depend_on_the_others(self, batch: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(48, 64, generator=generator).bfloat16()
        vectors = torch.randn(batch, 64, generator=generator).bfloat16()
        together = lane_product(weight, vectors)
        alone = [lane_product(weight, vectors[i : i + 1]) for i in range(batch)]
        assert torch.equal(together, torch.cat(alone))

    def test_nan_and_infinity_go_where_they_belong(self) -> None:
        weight = torch.ones(3, 32, dtype=BF16)
        weight[0, 5], weight[1, 5] = NAN, math.inf
        vector = torch.ones(1, 32, dtype=BF16)
        found = lane_product(weight, vector)[0]
        assert found[0].isnan()
        assert found[1:].tolist() == [math.inf, 32.0]
        vector[0, 5] = 0.0
        assert lane_product(weight, vector)[0, 1].isnan()


class TestParts:
    @given(recurrent_heads(max_vocab=20), seeds)
    @settings(max_examples=20)
    def test_hidden_part_is_the_exact_product_rounded_once(
        self, head: RecurrentHead, seed: int
    ) -> None:
        hidden = hidden_states(head, batch=2, steps=2, seed=seed)
        found = hidden_term(head.hidden_weight, head.hidden_bias, hidden)
        assert found.dtype == torch.float32
        for request in range(2):
            for step in range(2):
                wanted = oracle_cells.exact_product(head.hidden_weight, hidden[request, step])
                if head.hidden_bias is not None:
                    wanted = wanted + head.hidden_bias.float().numpy()
                assert np.array_equal(found[request, step].numpy(), wanted)

    @each_kind
    def test_hidden_part_does_not_depend_on_the_batch_or_on_strides(
        self, kind: type[RecurrentHead]
    ) -> None:
        head = recurrent_head(kind, hidden_size=2500)
        packed = emulator(head).packed
        hidden = hidden_states(head, batch=7, steps=9, seed=1)
        whole = packed.hidden_term(hidden)
        assert whole is not None
        strided = hidden.transpose(0, 1).contiguous().transpose(0, 1)
        for other in (strided, hidden[:, :, None].expand(-1, -1, 2, -1)[:, :, 1]):
            assert torch.equal(packed.hidden_term(other), whole)  # type: ignore[arg-type]
        for request in range(7):
            alone = packed.hidden_term(hidden[request : request + 1, 3:5])
            assert alone is not None
            assert torch.equal(alone[0], whole[request, 3:5])

    @given(recurrent_heads(max_vocab=12), seeds)
    @settings(max_examples=20)
    def test_packed_rows_hold_the_exact_products(self, head: RecurrentHead, seed: int) -> None:
        rows = head.packed_rows(head.table, "int8")
        token = int(anchors(head, 1, seed))
        wanted = oracle_cells.exact_product(head.input_weight, head.table[token])
        if isinstance(head, DominoHead):
            found = rows[token].view(BF16).float().numpy()
            assert np.array_equal(found, oracle_cells.bf16(wanted))
            return
        size = 4 * len(wanted)
        assert np.array_equal(rows[token, :size].view(torch.float32).numpy(), wanted)
        rest = rows[token, size:].view(BF16)
        assert torch.equal(rest, head.table[token] if isinstance(head, GatedHead) else rest[:0])

    @pytest.mark.parametrize(
        ("kind", "row_bytes"), [(GatedHead, 6 * 64), (RnnHead, 12 * 64), (DominoHead, 6 * 32)]
    )
    def test_a_packed_head_says_what_it_holds(
        self, kind: type[RecurrentHead], row_bytes: int
    ) -> None:
        head = recurrent_head(kind, draft_vocab=300)
        made = emulator(head)
        assert made.packed.table.shape == (517, row_bytes)
        steps = head.device_steps(CPU)
        weights = sum(weight.nbytes for weight in steps.tensors.values())
        projection = made.plan.shard.padded_vocab * (64 + 4)
        assert made.packed.memory_bytes == projection + 517 * row_bytes + 300 * 4 + weights

    @each_kind
    def test_packing_in_place_is_packing_anew(self, kind: type[RecurrentHead]) -> None:
        first, second = recurrent_head(kind), recurrent_head(kind, seed=8)
        made, other = emulator(first), emulator(second)
        tables = made.packed.table.data_ptr()
        steps = made.packed.steps
        addresses = steps.arguments()
        assert len(addresses) >= 2
        pack_head(second, made.plan, CPU, into=made.packed)
        assert made.packed.table.data_ptr() == tables
        assert steps.arguments() == addresses
        assert torch.equal(made.packed.table, other.packed.table)
        for name, weight in steps.tensors.items():
            assert torch.equal(weight, other.packed.steps.tensors[name])

    @each_kind
    def test_device_steps_keep_no_memory_of_the_head(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind)
        packed = emulator(head).packed
        assert packed.steps.reads_hidden
        mine = {value.untyped_storage().data_ptr() for value in packed.steps.tensors.values()}
        theirs = {
            value.untyped_storage().data_ptr()
            for value in (getattr(head, name) for name in ("table", *type(head).__slots__))
            if isinstance(value, torch.Tensor)
        }
        assert not mine & theirs


class TestContract:
    """Against the oracle, which has its own roundings, sums and activations."""

    @each_kind
    @pytest.mark.parametrize("seed", range(2))
    def test_states_and_latents_equal_the_oracle_bit_for_bit(
        self, kind: type[RecurrentHead], seed: int
    ) -> None:
        head = recurrent_head(kind, vocab=30, seed=seed, hidden_size=7 + 30 * seed)
        cell = head.device_steps(CPU)
        hidden = hidden_states(head, batch=2, steps=3, seed=seed)
        parts = hidden_term(head.hidden_weight, head.hidden_bias, hidden)
        state = cell.initial_state(2)
        wanted_state: list[oracle_cells.State] = [None, None]
        for step in range(3):
            previous = anchors(head, 2, seed + step)
            rows = head.packed_rows(head.table[previous], "int8")
            state, latent = cell.latent(state, rows, parts[:, step])
            for request in range(2):
                wanted_state[request], wanted = oracle_cells.step(
                    head, wanted_state[request], int(previous[request]), hidden[request, step]
                )
                assert (latent is None) == (wanted is None)
                if latent is not None:
                    assert latent.dtype == BF16
                    found = latent[request].float().numpy()
                    assert np.array_equal(found, wanted, equal_nan=True)
                kept = wanted_state[request]
                assert (state is None) == (kept is None)
                if isinstance(state, torch.Tensor):
                    assert np.array_equal(state[request].float().numpy(), kept)  # type: ignore[arg-type]

    @each_kind
    @pytest.mark.parametrize("tied", [False, True])
    def test_tokens_equal_the_oracle(self, kind: type[RecurrentHead], tied: bool) -> None:
        head = recurrent_head(kind, vocab=70, draft_vocab=40 if tied else None)
        base, anchor, hidden = inputs(head, 2, 4, 1, tied=tied)
        found = walk(head, base, anchor, hidden, blocks=2)
        assert torch.equal(found, oracle_cells.int8_walk(head, base, anchor, hidden))

    def test_gates_equal_the_oracle_element_by_element(self) -> None:
        rows, part = normal(4000, 64, seed=1).bfloat16(), normal(4000, 64, seed=2) * 4
        product = normal(4000, 64, seed=3) * 4
        packed = torch.cat([product.view(torch.uint8), rows.view(torch.uint8)], 1)
        cell = recurrent_head(GatedHead).device_steps(CPU)
        _, found = cell.latent(None, packed, part)
        wanted = oracle_cells.gate_row((part + product).numpy(), rows.float().numpy())
        assert found is not None
        assert np.array_equal(found.float().numpy(), wanted)

    @pytest.fixture
    def plain_products(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of weights that are 0 or choose one element: exact in any order, and much faster."""
        for module in (wts.heads.rnn, wts.heads.domino):
            monkeypatch.setattr(
                module, "lane_product", lambda weight, vector: vector.float() @ weight.float().T
            )

    @pytest.mark.usefixtures("plain_products")
    def test_rnn_updates_equal_the_oracle_element_by_element(self) -> None:
        head = recurrent_head(RnnHead)
        head.joint_weight.zero_()  # so that no product hides an element
        state, part = normal(4000, 64, seed=1).bfloat16(), normal(4000, 192, seed=2) * 3
        product = normal(4000, 192, seed=3) * 3
        found = head.device_steps(CPU).latent(state, product.view(torch.uint8), part)
        joint, before = (part + product).numpy(), state.float().numpy()
        for mine, wanted in zip(found, oracle_cells.rnn_update(joint, before), strict=True):
            assert isinstance(mine, torch.Tensor)
            assert np.array_equal(mine.float().numpy(), wanted)

    @pytest.mark.usefixtures("plain_products")
    def test_gru_updates_equal_the_oracle_element_by_element(self) -> None:
        """The product with h is h itself, three times, one exact number for each element."""
        head = recurrent_head(DominoHead)
        head.gru_state_weight.copy_(torch.eye(32).repeat(3, 1))
        state = normal(20_000, 32, seed=1).bfloat16()
        inputs = (normal(20_000, 96, seed=2) * 2).bfloat16()
        cell = head.device_steps(CPU)
        found, _ = cell.latent(state, inputs.view(torch.uint8), torch.zeros(20_000, 64))
        h = state.float().numpy()
        wanted = oracle_cells.gru_update(inputs.float().numpy(), np.tile(h, (1, 3)), h)
        assert isinstance(found, torch.Tensor)
        assert np.array_equal(found.float().numpy(), wanted)

    def test_an_rnn_sum_takes_in_the_table_row_last(self) -> None:
        """1 + 2^25 loses the 1; in any other order it would be what is left."""
        head = recurrent_head(RnnHead)
        head.joint_weight.zero_()
        head.joint_weight[:, 0] = 2.0**25
        state = torch.zeros(1, 64, dtype=BF16)
        state[0, 0] = 1.0
        rows = torch.full((1, 192), -(2.0**25)).view(torch.uint8)
        _, latent = head.device_steps(CPU).latent(state, rows, torch.ones(1, 192))
        assert latent is not None
        assert not latent.any()

    def test_products_of_a_domino_step_are_rounded_apart_or_together(self) -> None:
        """igates and hgates each to bf16; the projector's two parts only once, as a sum."""
        head = recurrent_head(DominoHead)
        head.gru_state_weight.zero_()
        head.projector_weight.zero_()
        head.gru_state_weight[64:, 0] = 1.0
        head.gru_state_weight[64:, 1] = 2.0**-9
        state = torch.zeros(1, 32, dtype=BF16)
        state[0, :2] = 1.0
        inputs = torch.zeros(1, 96, dtype=BF16)
        inputs[:, :32] = 100.0  # r = 1
        inputs[:, 32:64] = -1e4  # z = 0: the new h is n
        inputs[:, 64:] = -1.0
        # n = tanh(-1 + R(1 + 2^-9)), and R(1 + 2^-9) is 1.
        part = torch.zeros(1, 64)
        found, _ = head.device_steps(CPU).latent(state, inputs.view(torch.uint8), part)
        assert isinstance(found, torch.Tensor)
        assert found.abs().max() < 1e-30  # z is 1.8e-35
        # P_h h = 2^-9 and a hidden part of 1 + 2^-9: apart they would be 1 and 2^-9, and R() of
        # their sum 1; together they are 1 + 2^-8, a tie that goes up with a little more.
        head.projector_weight[:, 40] = 2.0**-9
        inputs[:, 64:] = 100.0
        head.gru_state_weight.zero_()
        part = torch.full((1, 64), 1.0 + 2.0**-9 + 2.0**-12)
        _, latent = head.device_steps(CPU).latent(state, inputs.view(torch.uint8), part)
        wanted = oracle_cells.bf16(oracle_cells.silu(np.array([1.0 + 2.0**-7], np.float32)))
        assert latent is not None
        assert latent.float().unique().tolist() == wanted.tolist()

    @each_kind
    def test_latents_are_quantised_as_table_rows_are(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind)
        packed = emulator(head).packed
        assert packed.steps.reads_hidden
        hidden = hidden_states(head, batch=3, steps=2, seed=1)
        parts = packed.hidden_term(hidden)
        assert parts is not None
        previous = anchors(head, 3, 2)
        state, _ = packed.latent(packed.initial_state(3), previous, parts[:, 0])
        _, found = packed.latent(state, previous, parts[:, 1])
        _, latent = packed.steps.latent(state, packed.table[previous], parts[:, 1])
        assert found is not None
        assert latent is not None
        assert all(map(torch.equal, found, quantise_latents(latent)))
        assert found[2].dtype == torch.float32


class TestAgainstTheFormula:
    @staticmethod
    def followed(
        head: RecurrentHead, batch: int, steps: int, seed: int
    ) -> list[tuple[HeadState, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """(state before, previous, hidden, latent) of each step of the emulator's walk."""
        base, previous, hidden = inputs(head, batch, steps, seed)
        tokens = walk(head, base, previous, hidden)
        cell, found = head.device_steps(CPU), []
        parts = hidden_term(head.hidden_weight, head.hidden_bias, hidden)
        state = cell.initial_state(batch)
        for step in range(steps):
            before = state
            rows = head.packed_rows(head.table[previous], "int8")
            state, latent = cell.latent(state, rows, parts[:, step])
            found.append((before, previous, hidden[:, step], latent))
            previous = tokens[:, step]
        return found

    @given(recurrent_heads(), seeds)
    def test_both_latents_are_inside_the_interval(self, head: RecurrentHead, seed: int) -> None:
        for state, previous, hidden, latent in self.followed(head, 2, 4, seed):
            next_state, formula = head.latent(state, previous, hidden)
            state_bound, bound = latent_interval(head, state, previous, hidden)
            assert (latent is None) == (formula is None) == (bound is None)
            if latent is not None and formula is not None and bound is not None:
                assert bound.holds(latent)
                assert bound.holds(formula)
            if state_bound is not None and isinstance(next_state, torch.Tensor):
                assert state_bound.holds(next_state)

    @each_kind
    def test_nearly_every_interval_has_no_width(self, kind: type[RecurrentHead]) -> None:
        """So the bound says that nearly every element is the same in any order of its sums."""
        widths = []
        for state, previous, hidden, _ in self.followed(recurrent_head(kind), 8, 6, 1):
            _, bound = latent_interval(recurrent_head(kind), state, previous, hidden)
            widths += [] if bound is None else [bound.width == 0]
        assert torch.cat(widths).float().mean() > 0.85

    @given(recurrent_heads(), seeds, st.integers(1, 3))
    def test_tokens_are_equal_where_the_gap_exceeds_the_bound(
        self, head: RecurrentHead, seed: int, blocks: int
    ) -> None:
        base, anchor, hidden = inputs(head, 3, 5, seed)
        tokens = walk(head, base, anchor, hidden, blocks=blocks)
        for step, (state, previous, read, _) in enumerate(self.followed(head, 3, 5, seed)):
            logits = step_logits(head, base[:, step], head.latent(state, previous, read)[1])
            _, bound = latent_interval(head, state, previous, read)
            sure = decided(logits, walk_bound(head, base[:, step], bound))
            formula = select_greedy(logits)
            if head.draft_to_target is not None:
                formula = head.draft_to_target[formula]
            assert torch.equal(tokens[sure, step], formula[sure])

    @each_kind
    def test_most_tokens_of_a_well_spread_head_are_decided(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind, vocab=1500, rank=256, seed=2)
        base, _, _ = inputs(head, 8, 6, 3)
        sure = []
        for step, (state, previous, read, _) in enumerate(self.followed(head, 8, 6, 3)):
            logits = step_logits(head, base[:, step], head.latent(state, previous, read)[1])
            bound = latent_interval(head, state, previous, read)[1]
            sure.append(decided(logits, walk_bound(head, base[:, step], bound)))
        assert torch.cat(sure).float().mean() > 0.75

    @each_kind
    def test_whole_walks_agree_on_a_well_spread_head(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind, vocab=1500, rank=128, draft_vocab=900)
        base, anchor, hidden = inputs(head, 4, 12, 5)
        tokens = walk(head, base, anchor, hidden)
        assert torch.equal(tokens, reference_walk(head, base, anchor, hidden=hidden))
        assert len(tokens.unique()) > 12, "a walk that stands still says little"


class TestEveryPlanAndBatchIsTheSame:
    @given(recurrent_heads(), st.booleans(), seeds, st.integers(2, 6))
    @settings(max_examples=30)
    def test_a_request_is_the_same_in_any_batch_and_slot(
        self, head: RecurrentHead, tied: bool, seed: int, batch: int
    ) -> None:
        base, anchor, hidden = inputs(head, batch, 3, seed, tied=tied)
        together = walk(head, base, anchor, hidden)
        backwards = walk(head, base.flip(0), anchor.flip(0), hidden.flip(0))
        assert torch.equal(backwards.flip(0), together)
        for request in range(batch):
            alone = slice(request, request + 1)
            assert torch.equal(
                walk(head, base[alone], anchor[alone], hidden[alone]), together[alone]
            )

    @given(recurrent_heads(), seeds, st.integers(1, 132), st.integers(1, 132))
    @settings(max_examples=20)
    def test_any_two_plans_give_the_same_tokens(
        self, head: RecurrentHead, seed: int, one: int, other: int
    ) -> None:
        base, anchor, hidden = inputs(head, 2, 4, seed, tied=True)
        first = walk(head, base, anchor, hidden, blocks=one)
        assert torch.equal(first, walk(head, base, anchor, hidden, blocks=other))

    @each_kind
    @pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, 3e38])
    def test_hidden_states_that_are_not_finite_harm_no_other_request(
        self, kind: type[RecurrentHead], value: float
    ) -> None:
        head = recurrent_head(kind)
        base, anchor, hidden = inputs(head, 3, 5, 1)
        plain = walk(head, base, anchor, hidden)
        hidden[1, 2] = value
        tokens = walk(head, base, anchor, hidden)
        assert torch.equal(tokens[[0, 2]], plain[[0, 2]])
        assert torch.equal(tokens[1, :2], plain[1, :2])
        assert bool(((tokens >= 0) & (tokens < head.vocab)).all())

    @each_kind
    def test_what_is_read_at_a_step_is_its_hidden_state(self, kind: type[RecurrentHead]) -> None:
        """Step logits do not depend on later hidden states; those of its own step do."""
        head = recurrent_head(kind)
        base, anchor, hidden = inputs(head, 4, 6, 1)
        plain = sampled_logits(head, base, anchor, hidden)
        for step in range(1, 6):
            changed = hidden.clone()
            changed[:, step:] = changed[:, step:] * -2
            logits = sampled_logits(head, base, anchor, changed)
            assert torch.equal(logits[:, :step], plain[:, :step])
            for request in range(4):
                assert not torch.equal(logits[request, step], plain[request, step])

    @each_kind
    def test_anchors_outside_the_table_are_clamped_and_counted(
        self, kind: type[RecurrentHead]
    ) -> None:
        head = recurrent_head(kind)
        base, _, hidden = inputs(head, 4, 3, 1)
        made = emulator(head)
        part = made.packed.hidden_term(hidden)
        last = head.table_rows - 1
        outside = torch.tensor([-1, last + 1, 11, -(2**63)])
        tokens, clamped = made.walk(base, outside, hidden_term=part)
        wanted, none = made.walk(base, torch.tensor([0, last, 11, 0]), hidden_term=part)
        assert torch.equal(tokens, wanted)
        assert (clamped, none) == (3, 0)
        formula = reference_walk(head, base, outside, hidden=hidden)
        assert torch.equal(formula, tokens)


class TestSampled:
    @each_kind
    def test_exports_the_logits_it_draws_from(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind, vocab=200)
        base, anchor, hidden = inputs(head, 3, 4, 1)
        plan = plan_residency(head, hopper(), batch=4, steps=8, sampled=True)
        made = Emulator(plan=plan, packed=pack_head(head, plan, CPU))
        logits = torch.full(base.shape, 5.0, dtype=BF16)
        temperatures = torch.tensor([0.0, 1.0, 3.0])
        tokens, _ = made.walk(
            base,
            anchor,
            hidden_term=made.packed.hidden_term(hidden),
            temperatures=temperatures,
            noise=Noise(key=3, offset=torch.tensor([9])),
            logits_out=logits,
        )
        assert torch.equal(tokens[0], walk(head, base, anchor, hidden)[0])
        assert bool((logits[0] == 5.0).all()), "greedy rows are not written"
        for request in (1, 2):
            state: oracle_cells.State = None
            previous = int(anchor[request])
            for step in range(4):
                state, latent = oracle_cells.step(head, state, previous, hidden[request, step])
                wanted = base[request : request + 1, step]
                if latent is not None:
                    quantised = torch.from_numpy(latent[None]).bfloat16()
                    wanted = int8_logits_of(head, wanted, quantised)
                assert torch.equal(bits(logits[request, step]), bits(wanted[0]))
                previous = int(tokens[request, step])


class TestInputs:
    def test_a_hidden_part_is_wanted_by_those_heads_and_by_no_other(self) -> None:
        head = recurrent_head(GatedHead)
        base, anchor, hidden = inputs(head, 1, 2, 1)
        made = emulator(head)
        with pytest.raises(InputError, match="hidden_term: wanted what"):
            made.walk(base, anchor)
        markov = emulator(MarkovHead.random(vocab=517, rank=64, seed=1))
        assert markov.packed.hidden_term(hidden) is None
        with pytest.raises(InputError, match="hidden_term: wanted None"):
            markov.walk(base, anchor, hidden_term=made.packed.hidden_term(hidden))
