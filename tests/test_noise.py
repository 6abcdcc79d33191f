"""Noise: the published stream of Philox, logarithms near the true ones, the scores of draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle import gumbel, philox4x32, random_word
from wts.errors import InputError
from wts.numerics.gumbel import Noise, log_exponential, philox_words
from wts.numerics.limits import LEAST_TEMPERATURE
from wts.selection.token_race import sampled_scores

MASK = (1 << 32) - 1
words32 = st.integers(0, MASK)
# Where fp32 rounds word + 1/2 to 2^32, and u to 1.
FIRST_WORD_OF_ONE = (1 << 32) - 128
KNOWN_WORDS = [0, 1, 2, 3, 1000, 1 << 22, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 2714937125]
KNOWN_WORDS += [FIRST_WORD_OF_ONE - 1, FIRST_WORD_OF_ONE - 256, FIRST_WORD_OF_ONE - 100_000]


class TestWords:
    @pytest.mark.parametrize(
        ("counter", "key", "words"),
        [
            ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            (
                (MASK, MASK, MASK, MASK),
                (MASK, MASK),
                (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
            ),
            (
                (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                (0xA4093822, 0x299F31D0),
                (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            ),
        ],
    )
    def test_the_oracle_gives_the_published_answers(
        self, counter: Any, key: Any, words: tuple[int, ...]
    ) -> None:
        assert philox4x32(counter, key) == list(words)

    @given(
        st.integers(1, 40),
        st.integers(1, 3),
        st.integers(0, 31),
        st.integers(0, (1 << 63) - 1),
        st.integers(0, (1 << 63) - 1),
    )
    def test_are_the_oracles(self, vocab: int, rows: int, step: int, key: int, offset: int) -> None:
        found = philox_words(vocab, rows, step, key, offset)
        assert found.dtype == torch.int64
        wanted = [
            [random_word(token, row, step, key, offset) for token in range(vocab)]
            for row in range(rows)
        ]
        assert found.tolist() == wanted

    def test_do_not_depend_on_the_vocabulary_or_the_other_rows(self) -> None:
        whole = philox_words(1000, 5, 3, 77, 8)
        assert torch.equal(philox_words(17, 2, 3, 77, 8), whole[:2, :17])

    def test_the_offset_counts_in_32_bits(self) -> None:
        assert torch.equal(philox_words(9, 1, 0, 5, 3), philox_words(9, 1, 0, 5, (1 << 32) + 3))


class TestLogarithms:
    @given(st.lists(words32, min_size=1, max_size=50))
    def test_are_near_the_true_ones(self, words: list[int]) -> None:
        """A relative error of a few 2^-24 of the inner one is an absolute one of the outer."""
        words += KNOWN_WORDS
        found = log_exponential(torch.tensor(words))
        assert found.dtype == torch.float32
        for word, value in zip(words, found.tolist(), strict=True):
            true = -gumbel(word)
            if math.isinf(true):
                assert value == torch.finfo(torch.float32).max
            else:
                assert abs(value - true) <= 8 * 2.0**-24 * max(1.0, abs(true))

    def test_the_last_words_lose_to_all_but_masked_rows(self) -> None:
        last = log_exponential(torch.tensor([FIRST_WORD_OF_ONE - 1, FIRST_WORD_OF_ONE, MASK]))
        assert last[0] < 3
        assert last.tolist()[1:] == [torch.finfo(torch.float32).max] * 2

    def test_never_fall_as_the_word_grows(self) -> None:
        """Up to roundings: larger words are less likely to win."""
        words = torch.arange(0, 1 << 32, 99_991)
        assert bool((log_exponential(words).diff() >= -1e-6).all())


class TestScores:
    words = torch.tensor([[5, 1 << 31, MASK // 3, 9, 1 << 20]])
    logits = torch.tensor([[1.5, -0.0, 3.0, -math.inf, math.nan]])

    @pytest.mark.parametrize("temperature", [0.0, -0.0, -1.0, -math.inf, math.nan])
    def test_of_greedy_rows_are_the_logits(self, temperature: float) -> None:
        scores = sampled_scores(self.logits, torch.tensor([temperature]), self.words)
        assert torch.equal(scores.view(torch.int32), self.logits.view(torch.int32))

    @pytest.mark.parametrize("temperature", [0.3, 1.0, 17.0, 1e-5])
    def test_of_sampled_rows_are_logits_over_temperature_plus_noise(
        self, temperature: float
    ) -> None:
        scores = sampled_scores(self.logits, torch.tensor([temperature]), self.words)
        for token, score in enumerate(scores[0].tolist()):
            logit = self.logits[0, token].item()
            wanted = logit / temperature + gumbel(int(self.words[0, token]))
            if math.isnan(wanted):
                assert math.isnan(score)
            else:
                assert score == pytest.approx(wanted, rel=1e-5, abs=1e-5)

    def test_masked_rows_stay_masked_at_any_temperature(self) -> None:
        """-inf / inf would be NaN, and a NaN wins."""
        for temperature in (1e-5, 1.0, 3e38, math.inf):
            scores = sampled_scores(self.logits, torch.tensor([temperature]), self.words)
            assert scores[0, 3] == -math.inf

    def test_temperatures_are_at_least_the_least(self) -> None:
        rows = [
            sampled_scores(self.logits, torch.tensor([temperature]), self.words)
            for temperature in (1e-38, 1e-7, LEAST_TEMPERATURE)
        ]
        assert LEAST_TEMPERATURE == 1e-5
        assert all(torch.equal(row[:, :4], rows[0][:, :4]) for row in rows)

    def test_rows_do_not_mix(self) -> None:
        logits, words = self.logits.repeat(3, 1), self.words.repeat(3, 1)
        scores = sampled_scores(logits, torch.tensor([0.0, 0.7, -1.0]), words)
        assert torch.equal(scores[0, :4], self.logits[0, :4])
        assert torch.equal(scores[2, :4], self.logits[0, :4])
        alone = sampled_scores(self.logits, torch.tensor([0.7]), self.words)
        assert torch.equal(scores[1, :4], alone[0, :4])


class TestNoise:
    @pytest.mark.parametrize("key", [-1, 1 << 63, 1.0, True, "5", None])
    def test_refuses_keys(self, key: Any) -> None:
        with pytest.raises(InputError, match=r"^key: wanted .*63 bits.*found"):
            Noise(key=key, offset=torch.zeros(1, dtype=torch.int64))

    @pytest.mark.parametrize(
        "offset",
        [torch.zeros(1), torch.zeros(2).long(), torch.zeros(1).int(), 0, None],
    )
    def test_refuses_offsets(self, offset: Any) -> None:
        with pytest.raises(InputError, match=r"^offset: wanted int64\[1\], found"):
            Noise(key=1, offset=offset)

    def test_keeps_its_counter(self) -> None:
        offset = torch.zeros(1, dtype=torch.int64)
        assert Noise(key=(1 << 63) - 1, offset=offset).offset is offset
