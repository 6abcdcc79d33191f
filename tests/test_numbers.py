"""Number types and ranks: one list of each, and all that is said of them follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch

from wts.dtypes import NUMBER_BYTES, NUMBER_TYPES, NumberType
from wts.heads.kinds import RANKS
from wts.heads.markov import MarkovHead
from wts.numerics.torch_dtypes import DTYPE_OF, NUMBER_TYPE_OF


def test_every_name_has_a_dtype_of_its_size() -> None:
    assert get_args(NumberType) == NUMBER_TYPES == tuple(DTYPE_OF)
    for name, dtype in DTYPE_OF.items():
        assert dtype.itemsize == NUMBER_BYTES[name]
        assert NUMBER_TYPE_OF[dtype] == name
        head = MarkovHead.random(vocab=3, rank=RANKS[0], seed=1, dtype=dtype)
        assert head.table_type == name
    assert len(NUMBER_TYPE_OF) == len(NUMBER_TYPES)
    assert DTYPE_OF["bf16"] == torch.bfloat16


def test_they_are_known_without_torch(run_python: Callable[[str], int]) -> None:
    assert (
        run_python(
            "import sys; import wts.dtypes, wts.heads.kinds; sys.exit('torch' in sys.modules)"
        )
        == 0
    )
