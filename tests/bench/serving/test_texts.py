"""Greedy texts are compared token by token."""

from __future__ import annotations

from wts.bench.serving.texts import first_difference


def test_a_first_difference_is_the_place_of_the_token_or_of_the_end() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
