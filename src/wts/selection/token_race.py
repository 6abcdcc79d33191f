"""The token race: every id has Gumbel noise of its own, as in SGLang's stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wts.numerics.limits import LEAST_TEMPERATURE
from wts.selection.base import COMPACT_ROWS, Sizes

if TYPE_CHECKING:
    import torch

__all__ = ["TokenRaceSizes", "sampled_scores"]

# Of a warp of a warpgroup: more, each drawing its own noise, do not fit in the instruction cache.
MOST_DRAWING_TILES = 10


@dataclass(frozen=True, kw_only=True)
class TokenRaceSizes(Sizes):
    """Words with scores, noise that is drawn ahead, and rows that are judged again."""

    @property
    def long_words(self) -> bool:
        return True

    @property
    def score_in_word(self) -> bool:
        return self.request.step_type != "fp32" and self.shard.rows <= COMPACT_ROWS

    @property
    def poll_cycles(self) -> int:
        return 100

    @property
    def candidates_each(self) -> int:
        """A second one: where both are close, their precise scores decide."""
        return 2

    @property
    def contests_judged(self) -> bool:
        return self.score_in_word

    @property
    def precise_apart(self) -> bool:
        """Whether rows that are too close have their precise scores by code of its own.

        So much code is slow to fetch, where warpgroups judge eight requests. Lone warps of few
        requests have no registers to spare for it.
        """
        return self.product.warpgroups

    @property
    def sweeps_written(self) -> int:
        return 1 + self.precise_apart

    @property
    def draws(self) -> bool:
        return True

    @property
    def noise_ahead(self) -> bool:
        """Whether noise is drawn while blocks exchange, not while rows are judged.

        Several groups of warpgroups leave no time for it, but their code is shorter without.
        """
        product = self.product
        return (
            not product.warpgroups
            or product.groups == 1
            or self.shard.warp_tiles > MOST_DRAWING_TILES
        )

    @property
    def parked_noise(self) -> int:
        """Of all its rows, where a thread draws ahead."""
        product = self.product
        return 2 * product.accumulators * product.requests_per_lane if self.noise_ahead else 1

    @property
    def parked_logits(self) -> int:
        return 2 * self.product.requests_per_lane * self.product.accumulators_judged

    @property
    def parking_threads(self) -> int:
        return 32 * self.shard.sweep_warps

    def constants(self) -> dict[str, int | bool]:
        return super().constants() | {
            "NOISE_AHEAD": self.noise_ahead,
            "PRECISE_APART": self.precise_apart,
        }


def sampled_scores(
    logits: torch.Tensor, temperatures: torch.Tensor, words: torch.Tensor
) -> torch.Tensor:
    """Scores whose largest is the token: logits / T + Gumbel noise; greedy rows stay as they are.

    Args:
        logits: fp32 [B, V], step logits.
        temperatures: fp32 [B]; a row is greedy unless its temperature is above 0.
        words: int64 [B, V].

    Returns:
        fp32 [B, V].
    """
    import torch

    from wts.numerics.gumbel import log_exponential

    clamped = temperatures.clamp_min(LEAST_TEMPERATURE)[:, None]
    noisy = logits / clamped - log_exponential(words)
    # A masked row stays masked: divided by an infinite temperature it would be NaN, and win.
    drawn = (temperatures > 0)[:, None] & (logits != -torch.inf)
    return torch.where(drawn, noisy, logits)
