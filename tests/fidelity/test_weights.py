"""Levels, errors of rows and outliers are counted as is said."""

from __future__ import annotations

import pytest
import torch

from fidelity.reports import examine_random, of_rows
from wts.fidelity import examine, steps, weights
from wts.fidelity.weights import CROSSOVER, quantise_e4m3
from wts.heads.markov import MarkovHead
from wts.walk.recorded import draw_inputs


def test_levels_are_closer_in_e4m3_below_the_crossover_and_only_there() -> None:
    positive = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert float(positive[-1]) == 448
    steps = positive.diff() / 448
    middles = (positive[1:] + positive[:-1]) / 2 / 448
    closer = steps < 1 / 127
    assert closer.any()
    assert not closer.all()
    assert (closer == (middles < CROSSOVER)).all()


def test_rows_of_e4m3_numbers_stay_as_they_are() -> None:
    numbers = torch.tensor([448.0, -416.0, 2**-9, 1.75, 0.0, 36.0])
    rows = torch.stack([numbers, numbers / 32, torch.zeros(6)])
    torch.testing.assert_close(quantise_e4m3(rows), rows, rtol=1e-7, atol=0)
    # Half-way numbers go to the even one: the scale is 1 here.
    odd = torch.tensor([[448.0, 17.0, 19.0]])
    assert quantise_e4m3(odd).tolist() == [[448.0, 16.0, 20.0]]


def test_magnitudes_and_crests_of_rows_known_by_hand() -> None:
    rows = torch.zeros(3, 64)
    rows[0] = 1.0  # even: all weights are the largest
    rows[1, :32], rows[1, 32:] = 0.05, -1.0  # half of the weights below the crossover
    rows[2, 5] = -3.0  # one weight alone: crest 8
    ids = torch.tensor([7, 40, 9])
    found = examine(of_rows(rows, draft_to_target=ids), draw_inputs(
        of_rows(rows, draft_to_target=ids), requests=1, steps=1, seed=0))["weights"]  # fmt: skip
    counts = found["magnitudes"]["counts"]
    assert counts[-1] == 64 + 32 + 1
    assert counts[0] == 63
    assert counts[2] == 32
    assert sum(counts) == 3 * 64
    assert found["share_below_crossover"] == pytest.approx((32 + 63) / 192)
    assert found["crest"]["1"] == pytest.approx(8.0)
    assert found["crest"]["0"] == pytest.approx(1.0)
    shares = found["share_of_rows_with_crest_above"]
    assert shares == pytest.approx({"6": 1 / 3, "8": 0.0, "12": 0.0})
    assert [row["token"] for row in found["outliers"]] == [9, 40, 7]
    # Row 1: 0.05 is 6.35 levels of int8, 0.35 of one off; half of the weights, in a rms of 0.708.
    wanted = (0.35 / 127) * 0.5**0.5 / ((0.05**2 + 1) / 2) ** 0.5
    assert found["row_error"]["int8"]["1"] == pytest.approx(wanted, rel=1e-3)


def test_small_weights_beside_a_large_one_are_what_e4m3_is_for() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 64, generator=generator)
    even = examine_random(of_rows(rows))["weights"]
    rows = rows.clone()
    rows[:, 0] = 100.0
    spiky = examine_random(of_rows(rows))["weights"]
    assert even["share_of_rows_where_int8_is_closer"] == 1.0
    assert spiky["share_of_rows_where_int8_is_closer"] == 0.0
    assert spiky["share_below_crossover"] > 0.9 > even["share_below_crossover"]
    assert spiky["error"]["int8"] == pytest.approx(100 / 127 / 12**0.5 / 12.54, rel=0.05)


def test_padding_rows_are_left_out() -> None:
    rows = torch.ones(5, 64)
    rows[3:] = 1e6
    rows[3:, 1:] = 0
    found = examine_random(of_rows(rows, logical_vocab=3))["weights"]
    assert sum(found["magnitudes"]["counts"]) == 3 * 64
    assert found["crest"]["1"] == pytest.approx(1.0)


def test_large_vocabularies_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    head = MarkovHead.random(vocab=100, rank=64, seed=1)
    whole = examine_random(head)
    monkeypatch.setattr(weights, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(steps, "_REQUESTS", 2)
    parts = examine_random(head)
    assert parts["weights"] == whole["weights"]
    assert parts["steps"]["by_margin"] == whole["steps"]["by_margin"]
