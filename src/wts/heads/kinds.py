"""The kinds of heads and the sizes that a plan needs of one; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from wts.dtypes import NumberType

__all__ = ["HEAD_KINDS", "RANKS", "HeadKind", "Shape"]

RANKS = (64, 128, 256, 512)
"""Ranks of the latent that are supported."""

HeadKind: TypeAlias = Literal["markov", "gated", "rnn", "domino"]
HEAD_KINDS: tuple[HeadKind, ...] = ("markov", "gated", "rnn", "domino")
"""What gives a walk its latents, in the order in which the kernel counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a plan needs to know of a head.

    Args:
        vocab: rows of the projection that can win.
        rank: latent elements.
        table_rows: rows of the previous-token table; vocab by default.
        table_type: number type of the table.
        mapped: whether draft ids are mapped to target ids.
        kind: of the head.
        state: elements of the state that a step carries over: r (RNN), G (Domino) or none.
        hidden: elements of the hidden states that it reads, H; 0 for a Markov head.
    """

    vocab: int
    rank: int
    table_rows: int | None = None
    table_type: NumberType = "bf16"
    mapped: bool = False
    kind: HeadKind = "markov"
    state: int = 0
    hidden: int = 0
