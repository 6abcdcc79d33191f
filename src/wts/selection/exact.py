"""Exact walks: int8 sums screen rows, the logits of the unquantised head decide."""

from __future__ import annotations

from dataclasses import dataclass

from wts.selection.base import Sizes

__all__ = ["EXACT_ROWS", "ExactSizes"]

EXACT_ROWS = 2048  # of a block: words say more than a row


@dataclass(frozen=True, kw_only=True)
class ExactSizes(Sizes):
    """Candidates that are kept until a round is concluded, latents in bf16, words of rivals."""

    @property
    def poll_cycles(self) -> int:
        return 330

    @property
    def candidates_each(self) -> int:
        """A second one, and a third where what lanes offer is not kept."""
        return 2 if self.lane_buffers else 3

    @property
    def candidate_buffers(self) -> int:
        """Rounds whose candidates are kept until they are concluded.

        A round is swept once its base logits are staged, which follows the publishing of the round
        `base_buffers` before it; that is concluded `exchange_lag` rounds later.
        """
        staged = self.rounds.base_buffers
        return min(max(staged, self.product.groups), staged + 2 * self.rounds.exchange_lag)

    @property
    def contests_judged(self) -> bool:
        return True

    @property
    def lane_buffers(self) -> int:
        """Rounds whose lanes' candidates are kept as long, where warps multiply alone.

        None where the state leaves no room.
        """
        product = self.product
        if product.warpgroups or product.tcgen05_tiles or self.recurrence.state_fills_blocks:
            return 0
        return 1 if product.groups == 1 else self.candidate_buffers

    @property
    def latent_buffers(self) -> int:
        """Rounds whose latents are kept in bf16 until then; rows of a table are there anyway."""
        many = self.product.groups > 3 and not self.request.kind.latents_are_rows
        return 4 if many else self.rounds.latent_buffers

    @property
    def latent_numbers(self) -> int:
        """Numbers of such a latent. At least 1: C++ has no empty array."""
        return 1 if self.request.kind.latents_are_rows else self.request.shape.rank

    @property
    def members(self) -> tuple[tuple[str, int, int], ...]:
        product, warps = self.product, self.roles.service_warps
        columns, requests = product.columns, product.groups * product.columns
        lanes = self.lane_buffers * self.shard.sweep_warps * 32
        return (
            ("latent_slack", self.rounds.latent_buffers * columns * 4, 16),
            ("margin", requests * 4, 16),
            ("previous", requests * 4, 16),
            ("exact_latent", self.latent_buffers * columns * self.latent_numbers * 2, 16),
            ("lane_candidate", max(1, lanes) * 8, 16),
            ("exact_weight", 8, 16),
            ("exact_table", 8, 8),
            ("largest_scale", 4, 4),
            ("spread", 4, 4),
            ("growth", 4, 4),
            ("smallest", 4, 4),
            ("longest", 4, 4),
            ("team_squares", 4 * warps, 4),
        )

    @property
    def workspace_words(self) -> int:
        """64-bit words in which undecided blocks say their best rows."""
        return self.product.groups * self.product.columns * self.shard.num_blocks

    def constants(self) -> dict[str, int | bool]:
        return super().constants() | {
            "EXACT": True,
            "EXACT_LATENT_SLOTS": self.latent_buffers,
            "LANE_SLOTS": self.lane_buffers,
        }

    def switches(self) -> dict[str, bool]:
        return super().switches() | {"WTS_EXACT": True}
