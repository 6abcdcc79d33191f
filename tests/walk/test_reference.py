"""The formula, against walks that were worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle import select
from strategies import DTYPES, anchors, base_logits, heads, silent_head, successor_head
from wts.heads.markov import MarkovHead
from wts.numerics.order import select_greedy
from wts.numerics.step_logits import step_logits
from wts.walk.reference import reference_walk

INF = math.inf
NAN = math.nan
BF16 = torch.bfloat16


def walk(head: MarkovHead, base: list[list[float]], anchor: int) -> list[int]:
    """Tokens of one request."""
    tokens = reference_walk(head, torch.tensor([base]), torch.tensor([anchor]))
    assert tokens.dtype == torch.int64
    return tokens[0].tolist()


class TestSelection:
    @pytest.mark.parametrize(
        ("row", "token"),
        [
            ([1.0, 3.0, 2.0], 1),
            ([5.0], 0),
            ([2.0, 7.0, 7.0, 7.0], 1),
            ([-0.0, 0.0, -0.0], 0),
            ([-1.0, -0.0, 0.0], 1),
            ([-INF, -INF, -INF], 0),
            ([-INF, -INF, -1e30], 2),
            ([1.0, INF, INF], 1),
            ([1.0, NAN, INF, NAN], 1),
            ([NAN, NAN], 0),
            ([INF, 0.0, -NAN], 2),
        ],
    )
    def test_by_hand(self, row: list[float], token: int) -> None:
        for dtype in (torch.float32, BF16, torch.float16):
            if torch.tensor(row).to(dtype).isinf().sum() == sum(map(math.isinf, row)):
                assert select_greedy(torch.tensor([row], dtype=dtype)).tolist() == [token]

    @given(
        st.lists(
            st.lists(
                st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.5, INF, -INF, NAN]), min_size=5, max_size=5
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_is_the_rule_in_words(self, rows: list[list[float]]) -> None:
        assert select_greedy(torch.tensor(rows)).tolist() == select(torch.tensor(rows))


class TestStepLogits:
    def test_bias_and_sum_are_rounded_one_after_the_other(self) -> None:
        table = torch.zeros(1, 64, dtype=BF16)
        table[0, :2] = torch.tensor([2.0**-8, 2.0**-17])
        projection = torch.zeros(1, 64, dtype=BF16)
        projection[0, :2] = 1.0
        head = MarkovHead(table=table, projection=projection)
        base = torch.ones(1, 1, dtype=BF16)
        # The bias 2^-8 + 2^-17 rounds to 2^-8, and 1 + 2^-8 is a tie that goes to the even 1.
        # Rounded only once the sum would be above the tie and go up.
        assert step_logits(head, base, table).item() == 1.0
        assert (1.0 + (table.float() @ projection.float().T)).to(BF16).item() > 1.0

    @pytest.mark.parametrize("base_type", DTYPES.values())
    @pytest.mark.parametrize("table_type", DTYPES.values())
    def test_dtype_is_the_promoted_one(
        self, base_type: torch.dtype, table_type: torch.dtype
    ) -> None:
        head = silent_head(4, dtype=table_type)
        logits = step_logits(head, torch.zeros(2, 4, dtype=base_type), head.table[:2])
        assert logits.dtype == torch.promote_types(base_type, table_type)

    def test_products_are_summed_in_fp32(self) -> None:
        """In bf16 256 + 1 + 1 + ... would stay 256."""
        table = torch.ones(1, 64, dtype=BF16)
        projection = torch.ones(1, 64, dtype=BF16)
        projection[0, 0] = 256
        head = MarkovHead(table=table, projection=projection)
        assert step_logits(head, torch.zeros(1, 1, dtype=BF16), table).item() == 320


class TestWalk:
    def test_follows_the_successors(self) -> None:
        head = successor_head([3, 0, 4, 2, 1])
        assert walk(head, [[0.0] * 5] * 6, anchor=2) == [4, 1, 0, 3, 2, 4]

    def test_base_logits_can_outvote_the_head_at_one_step(self) -> None:
        head = successor_head([1, 2, 0], gain=8.0)
        base = [[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        # 0 -> 1; then 0 by base (9 against 8 of token 2); then 0's successor.
        assert walk(head, base, anchor=0) == [1, 0, 1]

    def test_a_tie_of_head_and_base_goes_to_the_lower_token(self) -> None:
        head = successor_head([2, 2, 2], gain=8.0)
        assert walk(head, [[0.0, 8.0, 0.0]], anchor=0) == [1]
        assert walk(head, [[0.0, 7.5, 0.0]], anchor=0) == [2]

    def test_a_nan_row_gives_its_lowest_nan_and_the_walk_goes_on_from_there(self) -> None:
        head = successor_head([1, 2, 3, 0])
        base = [[0.0] * 4, [0.0, NAN, 50.0, NAN], [0.0] * 4]
        assert walk(head, base, anchor=3) == [0, 1, 2]

    def test_a_step_of_minus_infinity_gives_token_0(self) -> None:
        head = successor_head([1, 2, 3, 0])
        assert walk(head, [[-INF] * 4, [0.0] * 4], anchor=1) == [0, 1]

    def test_zeros_of_both_signs_tie(self) -> None:
        head = silent_head(3, dtype=torch.float32)
        assert walk(head, [[-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]], anchor=2) == [0, 0]

    def test_an_anchor_outside_the_table_is_clamped(self) -> None:
        head = successor_head([1, 2, 0])
        for anchor, first in ((-1, 1), (-(2**62), 1), (3, 0), (2**40, 0)):
            assert walk(head, [[0.0] * 3], anchor) == [first]

    def test_draft_ids_are_mapped_before_the_next_look_up(self) -> None:
        # Draft ids 0, 1, 2 are target ids 4, 1, 7. The table is the target's.
        table = torch.zeros(8, 64)
        projection = torch.zeros(3, 64)
        for previous, successor in ((5, 0), (4, 2), (7, 1), (1, 0), (0, 1), (2, 1)):
            table[previous, previous] = 1.0
            projection[successor, previous] = 8.0
        head = MarkovHead(
            table=table, projection=projection, draft_to_target=torch.tensor([4, 1, 7])
        )
        # 5 -> draft 0 = 4 -> draft 2 = 7 -> draft 1 = 1 -> draft 0 = 4. Without the map the second
        # look-up would be of row 0, and give draft 1.
        assert walk(head, [[0.0] * 3] * 4, anchor=5) == [4, 7, 1, 4]

    def test_padding_columns_never_win(self) -> None:
        projection = torch.zeros(6, 64)
        projection[4:] = 100.0
        head = MarkovHead(table=torch.ones(6, 64), projection=projection, logical_vocab=4)
        base = torch.zeros(1, 2, 6)
        base[..., 2] = 1.0
        base[..., 4], base[..., 5] = 50.0, NAN
        assert reference_walk(head, base, torch.tensor([0])).tolist() == [[2, 2]]

    @given(heads(max_vocab=60, ranks=(64,)), st.integers(1, 4), st.integers(1, 5), st.data())
    def test_is_step_after_step(
        self, head: MarkovHead, batch: int, steps: int, data: st.DataObject
    ) -> None:
        """A walk of K steps is K walks of one step, each from the token before."""
        seed = data.draw(st.integers(0, 99))
        base = base_logits(head, batch=batch, steps=steps, seed=seed, tied=data.draw(st.booleans()))
        anchor = anchors(head, batch, seed)
        tokens = reference_walk(head, base, anchor)
        assert tokens.shape == (batch, steps)
        previous = anchor
        for step in range(steps):
            one = reference_walk(head, base[:, step : step + 1], previous)
            assert torch.equal(one[:, 0], tokens[:, step])
            previous = one[:, 0]
