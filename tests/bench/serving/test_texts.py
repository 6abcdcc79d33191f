"""Greedy texts are compared token by token."""

from __future__ import annotations

from wts.bench.serving.texts import compare_texts, first_difference


def test_a_first_difference_is_the_place_of_the_token_or_of_the_end() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1


SAME, OTHER = [[1, 2, 3], [4, 5]], [[1, 2, 9], [4, 5]]


def test_texts_that_differ_are_a_fault_where_those_of_sglang_never_do() -> None:
    found = {
        (verdict.path, verdict.repeat): verdict
        for verdict in compare_texts(
            {
                ("sglang", 0, 2): SAME,
                ("sglang", 1, 2): SAME,
                ("wts", 0, 2): SAME,
                ("wts", 1, 2): OTHER,
                ("wts", 1, 4): OTHER,  # where SGLang's own head was not started
            }
        )
    }
    assert set(found) == {("sglang", 1), ("wts", 0), ("wts", 1)}
    assert [verdict.is_fault for verdict in found.values()] == [False, False, True]
    worst = found["wts", 1]
    assert (worst.num_equal, worst.num_texts, worst.first_difference) == (1, 2, 2)
    assert str(worst).endswith("sglang, start 1; others differ, the first at 2")


def test_texts_of_a_server_that_differs_from_itself_are_no_fault() -> None:
    texts = {("sglang", 0, 2): SAME, ("sglang", 1, 2): OTHER, ("wts", 0, 2): OTHER}
    assert [verdict.is_fault for verdict in compare_texts(texts)] == [False, False]
