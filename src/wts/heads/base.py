"""What a serial head is: the protocol, and the vocabulary weights that every head holds.

A head is only a latent function. The projection, where its rows live, the selection of a token and
the walk itself are the same for all heads and live elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, TypedDict, TypeVar, cast

import torch

from wts.dtypes import NumberType, WeightType
from wts.errors import InputError, describe
from wts.heads.kinds import KINDS
from wts.numerics.lane_sums import hidden_term
from wts.numerics.torch_dtypes import NUMBER_TYPE_OF

if TYPE_CHECKING:
    from wts.heads.config import DrafterConfig

__all__ = [
    "Claim",
    "DeviceSteps",
    "Head",
    "HeadState",
    "ProjectionWeights",
    "SomeHead",
    "TableWeights",
    "VocabularyWeights",
    "as_bytes",
    "copied",
    "describe_head",
    "detach",
    "needed_hidden",
    "product",
    "weights_of",
    "with_weights",
]


HeadState: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | None
"""What a head carries from step to step; None for a head that carries nothing."""


class Claim(Enum):
    """What a kind of head says of a drafter's config."""

    MINE = "a head of this kind"
    NOT_MINE = "a head of another kind, or none"
    ODD = "nobody else's, and this kind can say what is wrong with it"


class ProjectionWeights(TypedDict):
    """A projection with its map and its padding, as arguments of a head."""

    projection: torch.Tensor
    draft_to_target: torch.Tensor | None
    logical_vocab: int | None


class TableWeights(ProjectionWeights):
    """The same with a table: all arguments of `VocabularyWeights`."""

    table: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabularyWeights:
    """What every head holds: its table, its projection, and which ids they are of.

    Args:
        table: E, [table_rows, ...].
        projection: W, [V_rows, r].
        draft_to_target: int64 [V_rows], the target id (never an offset) of each draft id; None
            where the two vocabularies are one. Entries at and past `logical_vocab` are not read.
        logical_vocab: rows of `projection` at and past it are padding and never win; all rows can
            win by default.
    """

    kind: ClassVar[str]

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

    @property
    def latents_are_rows(self) -> bool:
        """Whether the row of a token is its latent."""
        return KINDS[self.kind].latents_are_rows

    @classmethod
    def claims(cls, config: DrafterConfig) -> Claim:
        """Say whether a drafter's head is one of this kind; not, unless a kind says otherwise."""
        return Claim.NOT_MINE

    def rows_of(self, prev_token: torch.Tensor) -> torch.Tensor:
        """Table rows of previous tokens, int64 [B]; a token outside the table is clamped."""
        return self.table.index_select(0, prev_token.clamp(0, self.table_rows - 1))


def detach(head: VocabularyWeights, names: Sequence[str]) -> None:
    """Let go of autograd, in a head that is being built; memory is shared."""
    for name in names:
        object.__setattr__(head, name, getattr(head, name).detach())


def describe_head(head: VocabularyWeights, **more: object) -> str:
    """Sizes and no weights, for `repr`."""
    mapped = "" if head.draft_to_target is None else ", draft_to_target"
    extra = "".join(f", {name}={value}" for name, value in more.items())
    return (
        f"{type(head).__name__}(vocab={head.vocab}, rank={head.rank}{extra}, "
        f"table={describe(head.table)}, projection={describe(head.projection)}{mapped}, "
        f"device={head.table.device})"
    )


class Head(Protocol):
    """What a walk needs of any head: a frozen dataclass of its weights, `MarkovHead` or another."""

    @property
    def kind(self) -> str:
        """Its name in `wts.heads.kinds.KINDS`."""

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
    def logical_vocab(self) -> int | None:
        """Rows of W that can win, where it has others behind them."""

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

    @property
    def latents_are_rows(self) -> bool:
        """Whether the row of a token is its latent."""

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step of `batch` requests."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        """Return the next state and the latent [B, r] after `prev_token`, int64 [B].

        The latent is None at a step whose token the base logits decide alone.
        """

    def packed_rows(self, rows: torch.Tensor, weights: WeightType) -> torch.Tensor:
        """Pack rows [n, ...] of the table into what a step fetches for a token.

        Returns uint8 [n, bytes], as many as `row_bytes` of the kind says.
        """

    def device_steps(self, device: torch.device) -> DeviceSteps:
        """Copy the weights that steps need on the device, with what is left to compute."""


SomeHead = TypeVar("SomeHead", bound=Head)


def weights_of(head: Head) -> dict[str, torch.Tensor]:
    """All tensors of a head by their names."""
    found = {field.name: getattr(head, field.name) for field in fields(cast("Any", head))}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def with_weights(head: SomeHead, change: Callable[[torch.Tensor], torch.Tensor]) -> SomeHead:
    """The same head with each tensor changed: copied, or moved."""
    changed = {name: change(value) for name, value in weights_of(head).items()}
    return cast("SomeHead", replace(cast("Any", head), **changed))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSteps:
    """What a step of a head computes on the device, once the row of its token is fetched.

    A head's weights are cut by what they multiply, so that little is left to do then:

    - the hidden term: weights times hidden states, plus the bias. No token is in it: it is one
      matrix product for all steps, before the walk, or the kernel makes it steps ahead
      (`plan.recurrence.hidden_inside`);
    - the packed rows: weights times every table row, at packing time;
    - the product with the state (`lane_product`), whose order is fixed;
    - what is left is element by element (`latent`), with `wts.numerics.activations`.

    R() is one rounding to bf16; every other operation is rounded to fp32, none is fused but those
    of `lane_product`. Fields are tensors, named as the kernel's arguments are. These steps, without
    any, are those of a head whose latents are its rows.

    Args:
        hidden_weight: bf16 [P, H], what multiplies hidden states; None: they are not read.
        hidden_bias: bf16 [P], what is added to the product; None adds nothing.
    """

    hidden_weight: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All that is held, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    def arguments(self) -> dict[str, int]:
        """Addresses that the kernel is given, by the name of its argument."""
        return {name: value.data_ptr() for name, value in self.tensors.items()}

    def refresh(self, fresh: Self) -> None:
        """Take the numbers of steps of the same shapes; addresses stay."""
        for name, value in self.tensors.items():
            value.copy_(fresh.tensors[name])

    @property
    def reads_hidden(self) -> bool:
        """Whether a step reads a hidden state."""
        return self.hidden_weight is not None

    def hidden_term(
        self, hidden: torch.Tensor | None, *, by_lanes: bool = False
    ) -> torch.Tensor | None:
        """What hidden states, bf16 [B, K, H], add to steps: fp32 [B, K, P], or None.

        Args:
            hidden: any strides; None where the head reads none.
            by_lanes: whether the product is summed as the kernel sums it.
        """
        if self.hidden_weight is None or hidden is None:
            return None
        return hidden_term(self.hidden_weight, self.hidden_bias, hidden, by_lanes=by_lanes)

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step: none."""
        return None

    def latent(
        self, state: HeadState, rows: torch.Tensor, term: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        """The latent function as the device has it.

        Args:
            state: of the step before.
            rows: uint8 [B, ...], packed rows of the tokens.
            term: fp32 [B, P], the hidden term of the step; None where there is none.

        Returns:
            The new state and the latents: bf16 [B, r], None at a step without, or the packed rows
            themselves where those are the latents.
        """
        return state, rows


def copied(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A contiguous copy of its own."""
    return weight.to(device, copy=True).contiguous()


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Rows of numbers as rows of bytes, uint8 [n, ...]."""
    return values.contiguous().view(torch.uint8)


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
