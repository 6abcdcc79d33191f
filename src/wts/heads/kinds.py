"""The kinds of heads: all that a plan, a kernel and a reader need to know of one; no torch.

A new kind is one entry of `KINDS`, the class that it names, and `csrc/heads/<kind>.cuh`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from wts.dtypes import NumberType, WeightType
from wts.errors import PlanError, check_range

__all__ = ["HEAD_KINDS", "KINDS", "RANKS", "HeadKind", "HeadShape", "HeadSizes", "Shape"]

RANKS = (64, 128, 256, 512)
"""Ranks of the latent that are supported."""

LARGEST_STATE = 1 << 14
LARGEST_HIDDEN = 1 << 16
STATE_STEP = 32  # a state comes in as many elements as a warp has lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What a plan needs to know of a head.

    Args:
        vocab: rows of the projection that can win.
        rank: latent elements.
        table_rows: rows of the previous-token table; vocab by default.
        table_type: number type of the table.
        mapped: whether draft ids are mapped to target ids.
        kind: of the head, a name of `KINDS`.
        state: elements of the state that a step carries over: r (RNN), G (Domino) or none.
        hidden: elements of the hidden states that it reads, H; 0 for a Markov head.
    """

    vocab: int
    rank: int
    table_rows: int | None = None
    table_type: NumberType = "bf16"
    mapped: bool = False
    kind: str = "markov"
    state: int = 0
    hidden: int = 0


Shape = HeadShape


class HeadSizes(Protocol):
    """What a kind makes its sizes of: a `HeadShape`, or a plan."""

    @property
    def rank(self) -> int:
        """Elements of a latent."""

    @property
    def state(self) -> int:
        """Elements of the state that a step carries over; 0 where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """One kind of head.

    A neuron is an element of the state, or, of a head without one, of a gate. Its state sums are
    what it takes that needs no token; blocks make them ahead and exchange them.

    Args:
        name: "markov", ...: what plans, records and commands call it.
        home: module and class, "wts.heads.markov:MarkovHead".
        row_bytes: bytes of a row that a token fetches, of a head's sizes and the type of weights.
        latents_are_rows: whether a token's row is its latent, so that an exact walk finds the
            latent itself in the head's own table.
        hidden_term: numbers that hidden states add to a step, for each element of a latent; 0: the
            head reads none.
        state: elements of its state: none, as many as a latent has, or a number of its own.
        sums: state sums of a neuron.
        sums_in_bf16: whether they are rounded to bf16 and share one 64-bit word; else each is fp32
            in a word of its own.
        sums_ahead: steps between the exchange of state sums and their use.
        terms_ahead: steps between the making of hidden terms and the latent that they are part of.
        sums_left: rounded sums of a neuron that wait until the latent is sent, and only then become
            a state.
        states_per_word: new states that one 64-bit word says, where blocks exchange those.
        projects: whether a second matrix makes the latent of the new state; hidden terms are added
            to its product.
        reads_target: whether its table is the embedding of the model that it drafts for, read from
            that model's folder.
    """

    name: str
    home: str
    row_bytes: Callable[[HeadSizes, WeightType], int]
    latents_are_rows: bool = False
    hidden_term: int = 0
    state: Literal["none", "rank", "own"] = "none"
    sums: int = 1
    sums_in_bf16: bool = False
    sums_ahead: int = 1
    terms_ahead: int = 1
    sums_left: int = 0
    states_per_word: int = 1
    projects: bool = False
    reads_target: bool = False

    @property
    def title(self) -> str:
        """What sentences call it: a Markov head."""
        return self.name.capitalize()

    @property
    def reads_hidden(self) -> bool:
        """Whether each step reads a hidden state of the drafter."""
        return self.hidden_term > 0

    @property
    def source(self) -> str:
        """The file in csrc that has its latent function."""
        return f"heads/{self.name}.cuh"

    @property
    def sum_words(self) -> int:
        """64-bit words in which a neuron's state sums are exchanged."""
        return 1 if self.sums_in_bf16 else self.sums

    @property
    def sum_bytes(self) -> int:
        """Bytes of shared memory in which a neuron's state sums wait for a token."""
        return 8 if self.sums_in_bf16 else 4 * self.sums

    @property
    def sum_buffers(self) -> int:
        """Steps whose state sums are exchanged side by side: a power of two."""
        return 1 << self.sums_ahead.bit_length()

    @property
    def term_buffers(self) -> int:
        """Steps whose hidden terms a block that makes them keeps: a power of two.

        They are kept until they have become part of state sums, which are exchanged later.
        """
        return 1 << (self.terms_ahead - self.sums_ahead + 1).bit_length()

    def state_size(self, rank: int, own: int) -> int:
        """Elements of the state of a head of this rank; `own` where it has a number of its own."""
        return {"none": 0, "rank": rank, "own": own}[self.state]

    def check(self, shape: HeadShape) -> None:
        """Refuse a shape that no head of this kind has.

        Raises:
            PlanError: a state or hidden states of another size.
        """
        if self.state == "none":
            self._check_none("state", shape.state)
        else:
            check_range("state", shape.state, 1, LARGEST_STATE)
            is_rank = self.state == "rank"
            if shape.state != shape.rank if is_rank else shape.state % STATE_STEP:
                raise PlanError.mismatch(
                    "state",
                    wanted="the rank" if is_rank else f"a multiple of {STATE_STEP}",
                    found=shape.state,
                    fix="give the size of the head's state",
                )
        if self.reads_hidden:
            check_range("hidden", shape.hidden, 1, LARGEST_HIDDEN)
        else:
            self._check_none("hidden", shape.hidden)

    def _check_none(self, size: str, found: int) -> None:
        if found != 0:
            raise PlanError.mismatch(
                size, wanted=f"0 for a {self.name} head", found=repr(found), fix="leave it out"
            )


def _latent_bytes(sizes: HeadSizes, weights: WeightType) -> int:
    """A packed latent: two int8 planes and a sector for its scale; the latent itself in bf16."""
    return 2 * sizes.rank + (32 if weights == "int8" else 0)


KINDS: dict[str, HeadKind] = {
    kind.name: kind
    for kind in (
        HeadKind(
            name="markov",
            home="wts.heads.markov:MarkovHead",
            row_bytes=_latent_bytes,
            latents_are_rows=True,
        ),
        HeadKind(
            name="gated",
            home="wts.heads.gated:GatedHead",
            row_bytes=lambda sizes, weights: 6 * sizes.rank,
            hidden_term=1,
            sums_ahead=2,
            terms_ahead=2,
        ),
        HeadKind(
            name="rnn",
            home="wts.heads.rnn:RnnHead",
            row_bytes=lambda sizes, weights: 12 * sizes.rank,
            hidden_term=3,
            state="rank",
            sums=3,
            terms_ahead=3,
            sums_left=2,
        ),
        HeadKind(
            name="domino",
            home="wts.heads.domino:DominoHead",
            row_bytes=lambda sizes, weights: 6 * sizes.state,
            hidden_term=1,
            state="own",
            sums=3,
            sums_in_bf16=True,
            states_per_word=3,
            projects=True,
            reads_target=True,
        ),
    )
}
"""Every kind by its name, in the order in which the kernel counts them."""

HEAD_KINDS = tuple(KINDS)
"""Their names."""
