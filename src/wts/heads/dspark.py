"""What DSpark's three heads share when they are read from a drafter's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

import torch

from wts.errors import CheckpointError
from wts.heads.base import Claim, Head, VocabularyWeights
from wts.heads.checkpoint import Checkpoint
from wts.heads.checks import check_matrix, check_rank, check_vocabulary
from wts.heads.config import DrafterConfig
from wts.heads.draft_ids import D2tReading
from wts.heads.kinds import RANKS
from wts.numerics.torch_dtypes import BF16_ONLY, DTYPES

__all__ = [
    "W1",
    "W2",
    "SharedWeights",
    "TableWeights",
    "check_config_rank",
    "check_dspark",
    "claims_dspark",
    "first_latent",
    "hidden_size_of",
    "open_dspark",
    "read_dspark",
    "read_projection",
    "reader",
]

# Names of the two matrices in DSpark checkpoints.
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"

# ---- checkpoints -------------------------------------------------------------------------------

_CLASS_OF = {"vanilla": "MarkovHead", "gated": "GatedHead", "rnn": "RnnHead"}


class SharedWeights(TypedDict):
    """What `read_projection` reads, as arguments of a head."""

    projection: torch.Tensor
    draft_to_target: torch.Tensor | None
    logical_vocab: int | None


class TableWeights(SharedWeights):
    """The same with a table: all arguments of `VocabularyWeights`."""

    table: torch.Tensor


def claims_dspark(config: DrafterConfig, head_type: str) -> Claim:
    """Say whether a drafter's head is DSpark's of this type.

    A config of a type that DSpark does not have, or without a rank, may be another kind's. If it is
    not, reading it as what it says, or as a vanilla head, tells what is wrong.
    """
    found = config.markov_head_type if config.markov_head_type in _CLASS_OF else "vanilla"
    if config.domino is not None or found != head_type:
        return Claim.NOT_MINE
    whole = config.markov_rank is not None and config.markov_head_type == head_type
    return Claim.MINE if whole else Claim.ODD


def open_dspark(folder: str | Path, head_type: str) -> tuple[Checkpoint, int]:
    """Open a DSpark drafter's folder whose head is of this type; gives its rank too.

    Raises:
        CheckpointError: another head, an unsupported rank, or no complete checkpoint.
    """
    checkpoint = Checkpoint.open(folder)
    config, path = checkpoint.config, checkpoint.config_path
    rank = config.rank
    if config.domino is not None:
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
    check_config_rank(f"{path}: markov_rank", rank)
    return checkpoint, rank


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


def first_latent(head: Head, token: torch.Tensor) -> torch.Tensor:
    """The latents [n, r] of a first step after tokens [n], at a hidden state of zeros."""
    hidden = head.table.new_zeros(len(token), head.hidden_size or 0)
    _, latent = head.latent(head.initial_state(len(token)), token, hidden)
    assert latent is not None
    return latent


def check_dspark(head: VocabularyWeights) -> int:
    """What these heads share with a Markov head; gives the rank."""
    for name in ("table", "projection"):
        check_matrix(name, getattr(head, name), BF16_ONLY)
    rank = head.table.shape[1]
    check_rank("table", rank)
    check_vocabulary(head, rank=rank, rank_of="table")
    return rank


def read_dspark(
    checkpoint: Checkpoint, rank: int, device: str | torch.device, reading: D2tReading
) -> TableWeights:
    vocab_size = checkpoint.config.vocab_size
    table = checkpoint.tensors.weight(W1, shape=(vocab_size, rank), dtypes=BF16_ONLY, padded=True)
    shared = read_projection(
        checkpoint, W2, rank, device=device, d2t_reading=reading, dtypes=BF16_ONLY
    )
    return {"table": table[:vocab_size].to(device), **shared}
