"""What a selection policy sees of a plan, and what it takes of a kernel. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wts.selection.request import WalkRequest

__all__ = ["ProductView", "RecurrenceView", "RolesView", "RoundsView", "ShardView", "Sizes"]

COMPACT_ROWS = 4096  # rows that a one-word candidate can name


class ShardView(Protocol):
    """Which rows a block owns."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def sweep_warps(self) -> int: ...
    @property
    def warp_tiles(self) -> int: ...
    @property
    def rows(self) -> int: ...


class ProductView(Protocol):
    """How a block multiplies, and how much of it a thread judges at once."""

    @property
    def columns(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def warpgroups(self) -> bool: ...
    @property
    def tcgen05_tiles(self) -> int: ...
    @property
    def accumulators(self) -> int: ...
    @property
    def accumulators_judged(self) -> int: ...
    @property
    def requests_per_lane(self) -> int: ...


class RolesView(Protocol):
    """Which warps there are beside those that sweep."""

    @property
    def service_warps(self) -> int: ...


class RoundsView(Protocol):
    """How many rounds are under way at once."""

    @property
    def base_buffers(self) -> int: ...
    @property
    def exchange_lag(self) -> int: ...
    @property
    def latent_buffers(self) -> int: ...


class RecurrenceView(Protocol):
    """What a head's state takes of a block."""

    @property
    def state_fills_blocks(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a selection takes of a kernel: here what the largest step logit alone takes.

    A policy's own sizes replace what differs. A kernel has every array, so that sizes of what a
    policy has no use for are 1: C++ has no empty array.
    """

    request: WalkRequest
    shard: ShardView
    product: ProductView
    roles: RolesView
    rounds: RoundsView
    recurrence: RecurrenceView

    # ---- words that blocks exchange ------------------------------------------------------------

    @property
    def long_words(self) -> bool:
        """Whether a candidate needs a 64-bit word: fp32 scores, or more rows than 12 bits name."""
        return self.request.step_type != "bf16" or self.shard.rows > COMPACT_ROWS

    @property
    def score_in_word(self) -> bool:
        """Whether a word holds an approximate score, and the step logit to decide a close race."""
        return False

    @property
    def poll_cycles(self) -> int:
        """Cycles between publishing a word and asking for others', of one group.

        Blocks that take longer are further apart, so that some wait anyway (docs/measured.md).
        """
        return 200

    @property
    def first_poll_cycles(self) -> int:
        """The same of this plan: of several groups, others have had their time."""
        return 0 if self.product.groups > 1 else self.poll_cycles

    # ---- rows that a block offers --------------------------------------------------------------

    @property
    def candidates_each(self) -> int:
        """Rows that a sweeping warp offers for a request."""
        return 1

    @property
    def candidates(self) -> int:
        """Rows that all of them offer."""
        return self.shard.sweep_warps * self.candidates_each

    @property
    def candidate_buffers(self) -> int:
        """Rounds whose candidates are kept."""
        return self.rounds.base_buffers

    @property
    def contests_judged(self) -> bool:
        """Whether service warps look at some words again: where they are too close to tell."""
        return False

    @property
    def contender_words(self) -> int:
        """Words that a service warp looks at again."""
        return 32 * (-(-self.shard.num_blocks // 32) + 1) if self.contests_judged else 4

    @property
    def contenders(self) -> int:
        """Service warps that have such words."""
        return self.roles.service_warps if self.contests_judged else 1

    @property
    def sweeps_written(self) -> int:
        """Sweeps in the kernel's code."""
        return 1

    # ---- noise ---------------------------------------------------------------------------------

    @property
    def draws(self) -> bool:
        """Whether requests have temperatures, and rows noise."""
        return False

    @property
    def parked_noise(self) -> int:
        """Numbers of noise that each sweeping thread parks."""
        return 1

    @property
    def parked_logits(self) -> int:
        """Step logits that it parks where they are judged again: those judged at once."""
        return 1

    @property
    def parking_threads(self) -> int:
        """Threads that park numbers."""
        return 1

    # ---- what a policy adds to the kernel ------------------------------------------------------

    @property
    def members(self) -> tuple[tuple[str, int, int], ...]:
        """Members of a block's shared memory behind all others': name, bytes, alignment."""
        return ()

    @property
    def workspace_words(self) -> int:
        """64-bit words of a workspace of its own."""
        return 0

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        latents_are_rows = self.request.kind.latents_are_rows
        return {
            "WIDE": self.long_words,
            "SCORED": self.score_in_word,
            "FIRST_POLL_CYCLES": self.first_poll_cycles,
            "CANDIDATES": self.candidates,
            "CANDIDATE_SLOTS": self.candidate_buffers,
            "RACE_WORDS": self.contender_words,
            "RACES": self.contenders,
            "SAMPLED": self.draws,
            "NOISE_AHEAD": False,
            "PRECISE_APART": False,
            "PARKED_NOISE": self.parked_noise,
            "PARKED_LOGITS": self.parked_logits,
            "PARKING_THREADS": self.parking_threads,
            "EXACT": False,
            "EXACT_LATENT": 1 if latents_are_rows else self.request.shape.rank,
            "EXACT_LATENT_SLOTS": self.rounds.latent_buffers,
            "LANE_SLOTS": 0,
        }

    def switches(self) -> dict[str, bool]:
        """What the preprocessor is told of it."""
        return {"WTS_WIDE": self.long_words, "WTS_EXACT": False}
