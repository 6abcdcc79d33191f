"""Cases from public bug reports for heads that read hidden states, on the device.

The tests of test_recurrent_cases.py, word for word, but those that compare with the formula's very
tokens, or walks of different shapes: a hidden part's sums are in the library's order.
"""

from __future__ import annotations

import pytest

import test_recurrent_cases
from walks import WAYS_OF_A_GPU, Way

TAKEN = (
    "test_a_nan_gives_the_lowest_nan_id_and_harms_no_other",
    "test_a_hidden_state_of_nan_gives_token_0",
    "test_nothing_but_nan_gives_tokens_in_range",
    "test_only_allowed_ids_are_drawn",
    "test_anchors_outside_the_table_are_clamped_and_reported",
    "test_token_0_wins_where_all_are_equal",
    "test_garbage_in_padded_rows_and_columns_never_wins",
    "test_step_k_reads_base_k",
    "test_fewer_blocks_give_the_same_tokens",
    "test_rows_of_a_mixed_batch_do_not_depend_on_each_other",
)


@pytest.fixture(scope="session", params=WAYS_OF_A_GPU)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


globals().update({name: getattr(test_recurrent_cases, name) for name in TAKEN})
