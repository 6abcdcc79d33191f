"""The table of kinds: what each says of its sizes, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from wts.errors import PlanError
from wts.heads.kinds import HEAD_KINDS, KINDS, HeadShape, Shape

SHAPES = {
    "markov": HeadShape(vocab=9, rank=64),
    "gated": HeadShape(vocab=9, rank=64, kind="gated", hidden=40),
    "rnn": HeadShape(vocab=9, rank=64, kind="rnn", state=64, hidden=40),
    "domino": HeadShape(vocab=9, rank=64, kind="domino", state=96, hidden=40),
}


def test_the_kernel_counts_them_in_this_order() -> None:
    assert HEAD_KINDS == ("markov", "gated", "rnn", "domino") == tuple(SHAPES)
    assert [kind.name for kind in KINDS.values()] == list(KINDS)
    assert Shape is HeadShape


def test_they_are_known_without_torch(run_python: Callable[[str], int]) -> None:
    code = "import sys; import wts.dtypes, wts.heads.kinds; sys.exit('torch' in sys.modules)"
    assert run_python(code) == 0


@pytest.mark.parametrize(
    ("kind", "int8", "bf16"),
    [("markov", 160, 128), ("gated", 384, 384), ("rnn", 768, 768), ("domino", 576, 576)],
)
def test_a_token_fetches_what_its_step_needs(kind: str, int8: int, bf16: int) -> None:
    row_bytes, shape = KINDS[kind].row_bytes, SHAPES[kind]
    assert (row_bytes(shape, "int8"), row_bytes(shape, "bf16")) == (int8, bf16)


@pytest.mark.parametrize(
    ("kind", "words", "size", "sum_buffers", "term_buffers", "state"),
    [
        ("markov", 1, 4, 2, 2, 0),
        ("gated", 1, 4, 4, 2, 0),
        ("rnn", 3, 12, 2, 4, 64),
        ("domino", 1, 8, 2, 2, 96),
    ],
)
def test_state_sums(
    kind: str, words: int, size: int, sum_buffers: int, term_buffers: int, state: int
) -> None:
    one = KINDS[kind]
    assert (one.sum_words, one.sum_bytes) == (words, size)
    assert (one.sum_buffers, one.term_buffers) == (sum_buffers, term_buffers)
    assert one.state_size(64, 96) == state
    assert one.reads_hidden is (kind != "markov")
    assert one.latents_are_rows is (kind == "markov")
    assert one.source == f"heads/{kind}.cuh"


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_its_sizes_is_taken(kind: str) -> None:
    KINDS[kind].check(SHAPES[kind])


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("markov", {"state": 64}, "state: wanted 0 for a markov head, found 64"),
        ("markov", {"hidden": 64}, "hidden: wanted 0 for a markov head, found 64"),
        ("gated", {"state": 64}, "state: wanted 0 for a gated head, found 64"),
        ("gated", {"hidden": 0}, "hidden: wanted an integer from 1 to 65536, found 0"),
        ("rnn", {"state": 128}, "state: wanted the rank, found 128"),
        ("rnn", {"state": True}, "state: wanted an integer from 1 to 16384, found True"),
        ("rnn", {"hidden": 65537}, "hidden: wanted an integer from 1 to 65536, found 65537"),
        ("domino", {"state": 48}, "state: wanted a multiple of 32, found 48"),
        ("domino", {"state": 0}, "state: wanted an integer from 1 to 16384, found 0"),
    ],
)
def test_other_sizes_are_refused(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        KINDS[kind].check(replace(SHAPES[kind], **changes))
