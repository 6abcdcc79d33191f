"""Descriptors and addresses of tcgen05, against the bit fields of the PTX ISA manual (9.7.16)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wts.errors import PlanError
from wts.hardware.tensor_memory import (
    COLUMNS,
    LANES,
    address,
    has_product,
    instruction_descriptor,
    matrix_descriptor,
    operand_words,
    warp_lane,
)


def bits(word: int, low: int, high: int) -> int:
    """Bits low to high, both of them included, as the manual's tables count them."""
    return (word >> low) & ((1 << (high - low + 1)) - 1)


class TestInstructionDescriptor:
    """Table 42."""

    @pytest.mark.parametrize(
        ("weights", "result", "operand"), [("bf16", 1, 1), ("int8", 2, 1)], ids=["f16", "i8"]
    )
    @pytest.mark.parametrize("rows", [64, 128])
    @pytest.mark.parametrize("columns", [16, 32, 240, 256])
    def test_has_the_documented_fields(
        self, weights: Any, result: int, operand: int, rows: int, columns: int
    ) -> None:
        word = instruction_descriptor(weights, rows=rows, columns=columns)
        assert bits(word, 0, 3) == 0, "dense, no saturation"
        assert bits(word, 4, 5) == result, "type of D: 1 = F32, 2 = S32"
        assert bits(word, 7, 9) == operand, "type of A: BF16, or signed 8 bits"
        assert bits(word, 10, 12) == operand, "type of B"
        assert bits(word, 13, 16) == 0, "nothing negated, nothing transposed"
        assert bits(word, 17, 22) == columns // 8
        assert bits(word, 24, 28) == rows // 16
        assert (bits(word, 6, 6), bits(word, 23, 23), bits(word, 29, 31)) == (0, 0, 0)

    def test_of_a_sweep(self) -> None:
        """128 x 16: the two words that kernels hold."""
        assert instruction_descriptor("bf16") == 0x0804_0490
        assert instruction_descriptor("int8") == 0x0804_04A0

    @pytest.mark.parametrize(
        "shape", [{"rows": 32}, {"rows": 256}, {"columns": 8}, {"columns": 24}, {"columns": 272}]
    )
    def test_of_a_shape_that_there_is_not(self, shape: dict[str, int]) -> None:
        (name,) = shape
        with pytest.raises(PlanError, match=rf"^{name}: wanted .*found {shape[name]}"):
            instruction_descriptor("bf16", **shape)


sixteens = st.integers(0, (1 << 14) - 1).map(lambda value: 16 * value)


class TestMatrixDescriptor:
    """Table 40."""

    @given(sixteens, sixteens, sixteens)
    def test_has_the_documented_fields(self, start: int, along_k: int, along_rows: int) -> None:
        word = matrix_descriptor(start, along_k=along_k, along_rows=along_rows)
        assert bits(word, 0, 13) == start // 16
        assert bits(word, 16, 29) == along_k // 16
        assert bits(word, 32, 45) == along_rows // 16
        assert bits(word, 46, 48) == 0b001, "a fixed constant"
        assert bits(word, 49, 63) == 0, "no base offset, relative distances, no swizzle"
        assert (bits(word, 14, 15), bits(word, 30, 31)) == (0, 0)

    @given(sixteens, st.integers(0, 1000))
    def test_of_another_place_is_a_sum(self, start: int, more: int) -> None:
        """The kernel adds to one descriptor what an operand is further on."""
        there = min(start + 16 * more, (1 << 18) - 16)
        first = matrix_descriptor(start, along_k=256, along_rows=128)
        other = matrix_descriptor(there, along_k=256, along_rows=128)
        assert other == first + (there - start) // 16

    @pytest.mark.parametrize("name", ["start", "along_k", "along_rows"])
    @pytest.mark.parametrize("value", [8, 1 << 18, -16])
    def test_of_what_it_cannot_say(self, name: str, value: int) -> None:
        fields = {"along_k": 256, "along_rows": 128} | {name: value}
        with pytest.raises(PlanError, match=rf"^{name}: wanted a multiple of 16 .*found {value}"):
            matrix_descriptor(fields.pop("start", 0), **fields)


class TestAddresses:
    @given(st.integers(0, LANES - 1), st.integers(0, COLUMNS - 1))
    def test_have_the_lane_above_the_column(self, lane: int, column: int) -> None:
        word = address(lane, column)
        assert (bits(word, 16, 31), bits(word, 0, 15)) == (lane, column)

    @pytest.mark.parametrize(("lane", "column"), [(128, 0), (0, 512), (-1, 0)])
    def test_outside_are_refused(self, lane: int, column: int) -> None:
        with pytest.raises(PlanError, match=r"^(lane|column): wanted 0 to"):
            address(lane, column)

    def test_a_warp_has_half_of_the_lanes_that_it_can_reach(self) -> None:
        firsts = [warp_lane(warp) for warp in range(8)]
        lanes = [first + i for first in firsts for i in range(16)]
        assert sorted(lanes) == list(range(LANES)), "all lanes are somebody's"
        for warp, first in enumerate(firsts):
            reachable = range(32 * (warp % 4), 32 * (warp % 4) + 32)  # 9.7.16.8.1
            assert first in reachable
            assert first + 15 in reachable
        with pytest.raises(PlanError, match=r"^warp: wanted 0 to 7, found 8"):
            warp_lane(8)

    def test_a_fragments_words_are_each_somewhere_once(self) -> None:
        slabs = 4
        words = [
            word
            for slab in range(slabs)
            for lane in range(32)
            for word in operand_words(slab, lane)
        ]
        assert sorted(words) == [(row, column) for row in range(16) for column in range(8 * slabs)]

    def test_a_lanes_words_are_those_of_a_fragment(self) -> None:
        """Lane 4 g + t: rows g and g + 8 of word t, then of word t + 4."""
        assert operand_words(0, 0) == [(0, 0), (8, 0), (0, 4), (8, 4)]
        assert operand_words(3, 7) == [(1, 27), (9, 27), (1, 31), (9, 31)]


@pytest.mark.parametrize(
    ("arch", "weights", "there"),
    [
        ("sm_100a", "int8", True),
        ("sm_100a", "bf16", True),
        ("sm_103a", "int8", False),
        ("sm_103a", "bf16", True),
        ("sm_90a", "bf16", False),
    ],
)
def test_where_there_is_a_product(arch: str, weights: Any, there: bool) -> None:
    assert has_product(arch, weights) is there
