"""What the weights of any head may be, and the checks and readings that all heads share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict, TypeVar

import torch

from wts.checkpoint import Checkpoint
from wts.draft_ids import D2tReading, fault_of_ids
from wts.errors import CheckpointError, HeadError, describe
from wts.numbers import RANKS, NumberType

__all__ = [
    "BF16_ONLY",
    "DTYPES",
    "DTYPE_OF",
    "LANES",
    "NUMBER_TYPE_OF",
    "W1",
    "W2",
    "AnyParts",
    "SharedWeights",
    "TableWeights",
    "VocabularyParts",
    "check_config_rank",
    "check_devices",
    "check_dtype",
    "check_joint",
    "check_matrix",
    "check_rank",
    "check_shape",
    "check_vocabulary",
    "describe_head",
    "detach",
    "hidden_size_of",
    "open_dspark",
    "read_projection",
    "reader",
    "weights_of",
    "with_weights",
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

BF16_ONLY = (torch.bfloat16,)
"""Dtypes that weights of heads may have whose roundings are to bf16."""

LANES = 32
"""Lanes that share a product with a state: its elements come in as many."""

# Names of the two matrices in DSpark checkpoints.
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"


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


# ---- checkpoints -------------------------------------------------------------------------------

_CLASS_OF = {"vanilla": "MarkovHead", "gated": "GatedHead", "rnn": "RnnHead"}


class SharedWeights(TypedDict):
    """What `read_projection` reads, as arguments of a head."""

    projection: torch.Tensor
    draft_to_target: torch.Tensor | None
    logical_vocab: int | None


class TableWeights(SharedWeights):
    """The same with a table: all arguments of `VocabularyParts`."""

    table: torch.Tensor


def open_dspark(folder: str | Path, head_type: str) -> tuple[Checkpoint, int]:
    """Open a DSpark drafter's folder whose head is of this type; gives its rank too.

    Raises:
        CheckpointError: another head, an unsupported rank, or no complete checkpoint.
    """
    checkpoint = Checkpoint.open(folder)
    config, path = checkpoint.config, checkpoint.config_path
    if config.markov_rank is None:
        raise CheckpointError.mismatch(
            f"{path}: projector_type",
            wanted=f"a DSpark drafter of markov_head_type {head_type!r}",
            found="'domino'",
            fix="read it with DominoHead.from_checkpoint",
        )
    if config.markov_head_type != head_type:
        known = _CLASS_OF.get(config.markov_head_type)
        raise CheckpointError.mismatch(
            f"{path}: markov_head_type",
            wanted=repr(head_type),
            found=repr(config.markov_head_type),
            fix=f"read it with {known}.from_checkpoint" if known else "no other head can be read",
        )
    check_config_rank(f"{path}: markov_rank", config.markov_rank)
    return checkpoint, config.markov_rank


def check_config_rank(field: str, rank: int) -> None:
    """Refuse a config whose rank is not supported."""
    if rank not in RANKS:
        raise CheckpointError.mismatch(
            field,
            wanted=f"one of {', '.join(map(str, RANKS))}",
            found=rank,
            fix="heads of other ranks are not supported",
        )


def read_projection(
    checkpoint: Checkpoint,
    tensor: str,
    rank: int,
    *,
    device: str | torch.device,
    d2t_reading: D2tReading,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> SharedWeights:
    """Read the vocabulary projection, its padding and its map."""
    num_draft = checkpoint.config.num_draft
    projection = checkpoint.tensors.weight(
        tensor, shape=(num_draft, rank), dtypes=dtypes, padded=True
    )
    num_padding = projection.shape[0] - num_draft
    ids = checkpoint.draft_to_target(d2t_reading)
    if ids is not None:
        ids = torch.cat([ids, ids.new_zeros(num_padding)]).to(device)
    return {
        "projection": projection.to(device),
        "draft_to_target": ids,
        "logical_vocab": num_draft if num_padding else None,
    }


def hidden_size_of(checkpoint: Checkpoint) -> int:
    """H, which the config of a head that reads hidden states has to say."""
    size = checkpoint.config.hidden_size
    if size is None:
        raise CheckpointError.mismatch(
            f"{checkpoint.config_path}: hidden_size",
            wanted="a positive integer",
            found="nothing",
            fix="check that this is the config of a drafter",
        )
    return size


def reader(
    checkpoint: Checkpoint, device: str | torch.device
) -> Callable[[str, tuple[int, ...]], torch.Tensor]:
    """Give a function that reads a bf16 tensor of exactly this shape."""

    def read(tensor: str, shape: tuple[int, ...]) -> torch.Tensor:
        return checkpoint.tensors.weight(tensor, shape=shape, dtypes=BF16_ONLY).to(device)

    return read


# ---- checks ------------------------------------------------------------------------------------


def check_vocabulary(head: VocabularyParts, *, rank: int, rank_of: str) -> None:
    """Refuse a projection or a map that does not fit the table and the rank of another weight."""
    if head.projection.shape[1] != rank:
        raise HeadError.mismatch(
            "projection",
            wanted=f"[V_rows, {rank}], the rank of {rank_of}",
            found=describe(head.projection),
            fix="pass the vocabulary projection of the same head, not transposed",
        )
    if head.projection.device != head.table.device:
        raise HeadError.mismatch(
            "projection",
            wanted=f"the device of table, {head.table.device}",
            found=head.projection.device,
            fix="move both to one device",
        )
    _check_logical_vocab(head.logical_vocab, head.projection.shape[0])
    if head.draft_to_target is not None:
        _check_draft_to_target(head.draft_to_target, head.projection, head.vocab, head.table_rows)
    elif head.table_rows < head.vocab:
        raise HeadError.mismatch(
            "table",
            wanted=f"at least {head.vocab} rows, one for each token that can win",
            found=f"{head.table_rows} rows",
            fix="pass draft_to_target if the draft vocabulary is another one, or "
            "logical_vocab if the projection is padded",
        )


def check_shape(argument: str, value: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Refuse bf16 weights of another shape."""
    check_matrix(argument, value, BF16_ONLY, dimensions=len(shape))
    if tuple(value.shape) != shape:
        raise HeadError.mismatch(
            argument,
            wanted=list(shape),
            found=describe(value),
            fix="pass the weight of the same head, not transposed",
        )


def check_joint(argument: str, value: torch.Tensor, *, num_rows: int, least: int) -> None:
    """Refuse bf16 weights of another number of rows, or of too few columns."""
    check_matrix(argument, value, BF16_ONLY)
    if value.shape[0] != num_rows or value.shape[1] < least:
        raise HeadError.mismatch(
            argument,
            wanted=f"[{num_rows}, at least {least}]",
            found=describe(value),
            fix="pass the weight of the same head, not transposed",
        )


def check_devices(head: VocabularyParts, names: Sequence[str]) -> None:
    """Refuse weights that are not where the table is."""
    for name in names:
        found = getattr(head, name).device
        if found != head.table.device:
            raise HeadError.mismatch(
                name,
                wanted=f"the device of table, {head.table.device}",
                found=found,
                fix="move both to one device",
            )


def check_rank(argument: str, rank: int) -> None:
    """Refuse a rank that is not supported."""
    if rank not in RANKS:
        raise HeadError.mismatch(
            argument,
            wanted=f"a rank of {', '.join(map(str, RANKS))}",
            found=f"rank {rank}",
            fix="use a head of a supported rank",
        )


def check_dtype(argument: str, dtype: torch.dtype, dtypes: Sequence[torch.dtype] = DTYPES) -> None:
    """Refuse a dtype that weights may not have."""
    if dtype not in dtypes:
        names = [str(known).removeprefix("torch.") for known in dtypes]
        raise HeadError.mismatch(
            argument,
            wanted=" or ".join(names),
            found=str(dtype).removeprefix("torch."),
            fix="convert the weights; quantised checkpoints must be dequantised first",
        )


def check_matrix(
    argument: str, value: object, dtypes: Sequence[torch.dtype] = DTYPES, *, dimensions: int = 2
) -> None:
    """Refuse what is no matrix (or vector) of weights."""
    if not isinstance(value, torch.Tensor):
        raise HeadError.mismatch(
            argument,
            wanted="a torch tensor",
            found=type(value).__name__,
            fix="pass the weight itself, not its module",
        )
    if value.ndim != dimensions or value.shape[0] < 1:
        raise HeadError.mismatch(
            argument,
            wanted=("a matrix [rows, rank]" if dimensions == 2 else "a vector [rows]")
            + " with at least one row",
            found=describe(value),
            fix="pass the weight as it lies in the checkpoint",
        )
    check_dtype(argument, value.dtype, dtypes)
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
            fix="pass target ids; a d2t tensor usually holds offsets, see wts.draft_ids.draft_map",
        )
