"""What a serial head is: the protocol, and the vocabulary weights that every head holds.

A head is only a latent function. The projection, where its rows live, the selection of a token and
the walk itself are the same for all heads and live elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import torch

from wts.dtypes import NumberType
from wts.errors import InputError, describe
from wts.numerics.torch_dtypes import NUMBER_TYPE_OF

__all__ = [
    "AnyParts",
    "Head",
    "HeadState",
    "VocabularyParts",
    "describe_head",
    "detach",
    "needed_hidden",
    "product",
    "weights_of",
    "with_weights",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabularyParts:
    """What every head holds: its table, its projection, and which ids they are of.

    Args:
        table: E, [table_rows, ...].
        projection: W, [V_rows, r].
        draft_to_target: int64 [V_rows], the target id (never an offset) of each draft id; None
            where the two vocabularies are one. Entries at and past `logical_vocab` are not read.
        logical_vocab: rows of `projection` at and past it are padding and never win; all rows can
            win by default.
    """

    table: torch.Tensor
    projection: torch.Tensor
    draft_to_target: torch.Tensor | None = None
    logical_vocab: int | None = None

    @property
    def rank(self) -> int:
        """r, the length of a latent."""
        return self.projection.shape[1]

    @property
    def vocab(self) -> int:
        """Rows of the projection that can win."""
        return self.projection.shape[0] if self.logical_vocab is None else self.logical_vocab

    @property
    def table_rows(self) -> int:
        """Rows of the previous-token table."""
        return self.table.shape[0]

    @property
    def table_type(self) -> NumberType:
        """Number type of the table, and so of the latents."""
        return NUMBER_TYPE_OF[self.table.dtype]

    @property
    def state_size(self) -> int:
        """Elements of the state that a step carries over; 0 where none is."""
        return 0

    def rows_of(self, prev_token: torch.Tensor) -> torch.Tensor:
        """Table rows of previous tokens, int64 [B]; a token outside the table is clamped."""
        return self.table.index_select(0, prev_token.clamp(0, self.table_rows - 1))


AnyParts = TypeVar("AnyParts", bound=VocabularyParts)


def weights_of(head: VocabularyParts) -> dict[str, torch.Tensor]:
    """All tensors of a head by their names."""
    found = {field.name: getattr(head, field.name) for field in fields(head)}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def with_weights(head: AnyParts, change: Callable[[torch.Tensor], torch.Tensor]) -> AnyParts:
    """The same head with each tensor changed: copied, or moved."""
    changed = {name: change(value) for name, value in weights_of(head).items()}
    return replace(head, **changed)  # type: ignore[arg-type]


def detach(head: VocabularyParts, names: Sequence[str]) -> None:
    """Let go of autograd, in a head that is being built; memory is shared."""
    for name in names:
        object.__setattr__(head, name, getattr(head, name).detach())


def describe_head(head: VocabularyParts, **more: object) -> str:
    """Sizes and no weights, for `repr`."""
    mapped = "" if head.draft_to_target is None else ", draft_to_target"
    extra = "".join(f", {name}={value}" for name, value in more.items())
    return (
        f"{type(head).__name__}(vocab={head.vocab}, rank={head.rank}{extra}, "
        f"table={describe(head.table)}, projection={describe(head.projection)}{mapped}, "
        f"device={head.table.device})"
    )


HeadState: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | None
"""What a head carries from step to step; None for a head that carries nothing."""


class Head(Protocol):
    """What a walk needs of any head. `MarkovHead` is the first of them."""

    kind: ClassVar[str]

    @property
    def table(self) -> torch.Tensor:
        """E, [table_rows, r or more]: a row for each previous token."""

    @property
    def projection(self) -> torch.Tensor:
        """W, [V_rows, r]: the vocabulary projection."""

    @property
    def draft_to_target(self) -> torch.Tensor | None:
        """Target id of each draft id, int64 [V_rows], or None where they are the same."""

    @property
    def rank(self) -> int:
        """r, the length of a latent."""

    @property
    def vocab(self) -> int:
        """Rows of the projection that can win: draft ids are below it."""

    @property
    def table_rows(self) -> int:
        """Rows of the previous-token table: target ids are below it."""

    @property
    def table_type(self) -> NumberType:
        """Number type of the latents."""

    @property
    def hidden_size(self) -> int | None:
        """H, the elements of a hidden state; None for a head that reads none."""

    @property
    def state_size(self) -> int:
        """Elements of the state that a step carries over; 0 where none is."""

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step of `batch` requests."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        """Return the next state and the latent [B, r] after `prev_token`, int64 [B].

        The latent is None at a step whose token the base logits decide alone.
        """


def product(weight: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """weight . vector, fp32 [B, n]: sums in fp32, in any order, rounded no further."""
    return vector.float() @ weight.float().T


def needed_hidden(hidden: torch.Tensor | None, size: int) -> torch.Tensor:
    """The hidden states, or an error where there are none."""
    if hidden is None:
        raise InputError.mismatch(
            "hidden",
            wanted=f"the drafter's hidden states, bfloat16 [.., {size}]",
            found="None",
            fix="pass them: this head reads one in each step",
        )
    return hidden
