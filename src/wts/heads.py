"""What a serial head is: frozen weights with checked shapes, and how checkpoints are read.

A head is only a latent function. The projection, where its rows live, the selection of a token and
the walk itself are the same for all heads and live elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol, Self, TypeAlias

import torch

from wts.checkpoint import Checkpoint, D2tReading, fault_of_ids
from wts.errors import CheckpointError, HeadError, describe
from wts.numbers import RANKS, NumberType

__all__ = [
    "DTYPES",
    "DTYPE_OF",
    "NUMBER_TYPE_OF",
    "RANKS",
    "Head",
    "HeadState",
    "MarkovHead",
    "NumberType",
]

DTYPE_OF: Mapping[NumberType, torch.dtype] = MappingProxyType(
    {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
)
"""The dtype that a name stands for."""

NUMBER_TYPE_OF: Mapping[torch.dtype, NumberType] = MappingProxyType(
    {dtype: name for name, dtype in DTYPE_OF.items()}
)
"""The name of a dtype."""

DTYPES = tuple(NUMBER_TYPE_OF)
"""Dtypes that weights may have."""

HeadState: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | None
"""What a head carries from step to step; None for a head that carries nothing."""

# Mean bias of the favoured successor in a random head; that of the others has deviation 1.
_FAVOUR = 10.0


class Head(Protocol):
    """What a walk needs of any head. `MarkovHead` is the first of them."""

    kind: ClassVar[str]

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

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step of `batch` requests."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        """Return the next state and the latent [B, r] after `prev_token`, int64 [B]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarkovHead:
    """The vanilla Markov head: the latent is the table row of the previous token.

    Weights are only read. A tensor that requires grad is detached (it shares its memory).

    Args:
        table: E, bf16 | fp16 | fp32 [V_table, r], `markov_w1` in checkpoints.
        projection: W, bf16 | fp16 | fp32 [V_rows, r], `markov_w2` in checkpoints.
        draft_to_target: int64 [V_rows], the target id (never an offset) of each draft id; None
            where the two vocabularies are one. Entries at and past `logical_vocab` are not read.
        logical_vocab: rows of `projection` at and past it are padding and never win; all rows can
            win by default.

    Raises:
        HeadError: names the argument, what was wanted, what came and what to do.
    """

    kind: ClassVar[str] = "markov"

    table: torch.Tensor
    projection: torch.Tensor
    draft_to_target: torch.Tensor | None = None
    logical_vocab: int | None = None

    def __post_init__(self) -> None:
        _check_matrix("table", self.table)
        _check_matrix("projection", self.projection)
        _check_rank("table", self.table.shape[1])
        if self.projection.shape[1] != self.table.shape[1]:
            raise HeadError.mismatch(
                "projection",
                wanted=f"[V_rows, {self.table.shape[1]}], the rank of table",
                found=describe(self.projection),
                fix="pass markov_w2 of the same head, not transposed",
            )
        if self.projection.device != self.table.device:
            raise HeadError.mismatch(
                "projection",
                wanted=f"the device of table, {self.table.device}",
                found=self.projection.device,
                fix="move both to one device",
            )
        _check_logical_vocab(self.logical_vocab, self.projection.shape[0])
        if self.draft_to_target is None:
            if self.table_rows < self.vocab:
                raise HeadError.mismatch(
                    "table",
                    wanted=f"at least {self.vocab} rows, one for each token that can win",
                    found=f"{self.table_rows} rows",
                    fix="pass draft_to_target if the draft vocabulary is another one, or "
                    "logical_vocab if the projection is padded",
                )
        else:
            _check_draft_to_target(
                self.draft_to_target, self.projection, self.vocab, self.table_rows
            )
        object.__setattr__(self, "table", self.table.detach())
        object.__setattr__(self, "projection", self.projection.detach())

    def __repr__(self) -> str:
        mapped = "" if self.draft_to_target is None else ", draft_to_target"
        return (
            f"MarkovHead(vocab={self.vocab}, rank={self.rank}, "
            f"table={describe(self.table)}, projection={describe(self.projection)}{mapped}, "
            f"device={self.table.device})"
        )

    @property
    def rank(self) -> int:
        """r, the length of a latent."""
        return self.table.shape[1]

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

    def initial_state(self, batch: int) -> None:
        """Return the state before the first step: a Markov head carries none."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None = None
    ) -> tuple[HeadState, torch.Tensor]:
        """Look up the table rows of the previous tokens.

        Args:
            state: carried over unchanged.
            prev_token: int64 [B]; a token outside the table is clamped into it.
            hidden: not used by this head.

        Returns:
            The state and the latents, [B, r] in the dtype of the table.
        """
        rows = prev_token.clamp(0, self.table_rows - 1)
        return state, self.table.index_select(0, rows)

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        d2t_reading: D2tReading = "auto",
    ) -> Self:
        """Read the head of a DeepSpec/SGLang style drafter folder.

        Wanted are config.json (`markov_rank`, `markov_head_type`, `vocab_size`, where reduced also
        `draft_vocab_size`) and safetensors, one file or shards with an index, that hold
        `markov_head.markov_w1.weight` and `markov_head.markov_w2.weight`, each perhaps behind
        `model.`. A reduced draft vocabulary needs a `d2t` tensor, read as `draft_map` says.
        Nothing else of the checkpoint is loaded.

        Args:
            folder: the drafter folder.
            device: where the weights go.
            d2t_reading: how `d2t` is meant, where the numbers alone leave it open.

        Returns:
            The head, in the dtypes of the checkpoint.

        Raises:
            CheckpointError: names the file, the tensor, what was wanted and what was found.
        """
        checkpoint = Checkpoint.open(folder)
        config = checkpoint.config
        if config.markov_head_type != "vanilla":
            raise CheckpointError.mismatch(
                f"{checkpoint.folder / 'config.json'}: markov_head_type",
                wanted="'vanilla'",
                found=repr(config.markov_head_type),
                fix="only vanilla Markov heads can be read by this version",
            )
        if config.markov_rank not in RANKS:
            raise CheckpointError.mismatch(
                f"{checkpoint.folder / 'config.json'}: markov_rank",
                wanted=f"one of {', '.join(map(str, RANKS))}",
                found=config.markov_rank,
                fix="heads of other ranks are not supported",
            )
        table = checkpoint.matrix(
            "markov_head.markov_w1.weight",
            num_rows=config.vocab_size,
            num_columns=config.markov_rank,
            dtypes=DTYPES,
        )[: config.vocab_size]
        projection = checkpoint.matrix(
            "markov_head.markov_w2.weight",
            num_rows=config.num_draft,
            num_columns=config.markov_rank,
            dtypes=DTYPES,
        )
        num_padding = projection.shape[0] - config.num_draft
        ids = checkpoint.draft_to_target(d2t_reading)
        if ids is not None:
            ids = torch.cat([ids, ids.new_zeros(num_padding)]).to(device)
        return cls(
            table=table.to(device),
            projection=projection.to(device),
            draft_to_target=ids,
            logical_vocab=config.num_draft if num_padding else None,
        )

    @classmethod
    def random(
        cls,
        *,
        vocab: int,
        rank: int,
        table_rows: int | None = None,
        seed: int,
        dtype: torch.dtype = torch.bfloat16,
        device: str | torch.device = "cpu",
        draft_vocab: int | None = None,
    ) -> Self:
        """Draw a head for demonstrations, benchmarks and tests.

        Every token that can be drafted has one favoured successor with a bias of about 10; all
        other biases are noise of deviation 1, whose largest of 150,000 is about 4.5. So step logits
        are seldom near-tied (with plain noise most steps are, and equal tokens say little).
        The same arguments give the same weights on every device.

        Args:
            vocab: target vocabulary.
            rank: of the latent.
            table_rows: rows of the table, `vocab` by default, never fewer.
            seed: of the generator.
            dtype: of both matrices.
            device: where the weights go.
            draft_vocab: rows of the projection where the draft vocabulary is a reduced one; a
                random increasing map is drawn for it.

        Returns:
            The head.

        Raises:
            HeadError: sizes that do not fit each other.
        """
        table_rows = vocab if table_rows is None else table_rows
        num_draft = vocab if draft_vocab is None else draft_vocab
        _check_rank("rank", rank)
        _check_dtype("dtype", dtype)
        for argument, value, least, most in (
            ("vocab", vocab, 1, None),
            ("table_rows", table_rows, vocab, None),
            ("draft_vocab", num_draft, 1, vocab),
        ):
            if value < least or (most is not None and value > most):
                raise HeadError.mismatch(
                    argument,
                    wanted=f"at least {least}" if most is None else f"{least}..{most}",
                    found=value,
                    fix="correct the size",
                )
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(table_rows, rank, generator=generator)
        projection = torch.randn(num_draft, rank, generator=generator) / math.sqrt(rank)
        target = torch.randperm(vocab, generator=generator)[:num_draft].sort().values
        predecessor = target[torch.randperm(num_draft, generator=generator)]
        projection += table[predecessor] * (_FAVOUR / rank)
        return cls(
            table=table.to(dtype).to(device),
            projection=projection.to(dtype).to(device),
            draft_to_target=None if draft_vocab is None else target.to(device),
        )


def _check_rank(argument: str, rank: int) -> None:
    if rank not in RANKS:
        raise HeadError.mismatch(
            argument,
            wanted=f"a rank of {', '.join(map(str, RANKS))}",
            found=f"rank {rank}",
            fix="use a head of a supported rank",
        )


def _check_dtype(argument: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise HeadError.mismatch(
            argument,
            wanted="bfloat16, float16 or float32",
            found=str(dtype).removeprefix("torch."),
            fix="convert the weights; quantised checkpoints must be dequantised first",
        )


def _check_matrix(argument: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise HeadError.mismatch(
            argument,
            wanted="a torch tensor",
            found=type(value).__name__,
            fix="pass the weight itself, not its module",
        )
    if value.ndim != 2 or value.shape[0] < 1:
        raise HeadError.mismatch(
            argument,
            wanted="a matrix [rows, rank] with at least one row",
            found=describe(value),
            fix="pass the weight as it lies in the checkpoint",
        )
    _check_dtype(argument, value.dtype)
    if value.layout != torch.strided or value.is_meta:
        raise HeadError.mismatch(
            argument,
            wanted="a dense tensor with memory",
            found=f"layout {value.layout} on {value.device}",
            fix="load the weights before building the head",
        )
    if not value.is_contiguous():
        raise HeadError.mismatch(
            argument,
            wanted="contiguous rows",
            found=f"strides {list(value.stride())} for {describe(value)}",
            fix="call .contiguous() on it",
        )


def _check_logical_vocab(logical_vocab: object, num_rows: int) -> None:
    if logical_vocab is None:
        return
    is_int = isinstance(logical_vocab, int) and not isinstance(logical_vocab, bool)
    if not is_int or not 1 <= logical_vocab <= num_rows:  # type: ignore[operator]
        raise HeadError.mismatch(
            "logical_vocab",
            wanted=f"an integer of 1..{num_rows}, the rows of projection",
            found=repr(logical_vocab),
            fix="count the rows that are real tokens",
        )


def _check_draft_to_target(
    value: object, projection: torch.Tensor, vocab: int, table_rows: int
) -> None:
    wanted = f"int64[{projection.shape[0]}] on {projection.device}, one target id per draft id"
    if not isinstance(value, torch.Tensor):
        raise HeadError.mismatch(
            "draft_to_target",
            wanted=wanted,
            found=type(value).__name__,
            fix="pass a tensor, or None where draft and target ids are the same",
        )
    if (
        value.dtype != torch.int64
        or tuple(value.shape) != (projection.shape[0],)
        or value.device != projection.device
        or not value.is_contiguous()
    ):
        raise HeadError.mismatch(
            "draft_to_target",
            wanted=wanted,
            found=f"{describe(value)} on {value.device}, strides {list(value.stride())}",
            fix="convert it; its rows are those of projection, padding included",
        )
    fault = fault_of_ids(value[:vocab], table_rows)
    if fault is not None:
        raise HeadError.mismatch(
            "draft_to_target",
            wanted=f"distinct target ids in 0..{table_rows - 1}",
            found=fault,
            fix="pass target ids; a d2t tensor usually holds offsets, see wts.checkpoint.draft_map",
        )
