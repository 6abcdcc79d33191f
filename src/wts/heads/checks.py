"""What the weights of a head may be: each check names what was wanted, what came and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wts.errors import HeadError, describe
from wts.heads.base import VocabularyWeights
from wts.heads.draft_ids import fault_of_ids
from wts.heads.kinds import RANKS
from wts.numerics.torch_dtypes import BF16_ONLY, DTYPES

__all__ = [
    "check_devices",
    "check_dtype",
    "check_joint",
    "check_matrix",
    "check_rank",
    "check_shape",
    "check_vocabulary",
]


# ---- checks ------------------------------------------------------------------------------------


def check_vocabulary(head: VocabularyWeights, *, rank: int, rank_of: str) -> None:
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


def check_devices(head: VocabularyWeights, names: Sequence[str]) -> None:
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
            fix="pass target ids; a d2t tensor usually holds offsets, "
            "see wts.heads.draft_ids.draft_map",
        )
