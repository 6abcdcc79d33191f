"""What DSpark's three heads share when they are read from a drafter's folder."""

from __future__ import annotations

from pathlib import Path

import torch

from wts.errors import CheckpointError
from wts.heads.base import Claim, TableWeights, VocabularyWeights
from wts.heads.checkpoint import Checkpoint
from wts.heads.checks import check_matrix, check_rank, check_vocabulary
from wts.heads.config import DrafterConfig, check_config_rank
from wts.heads.draft_ids import D2tReading
from wts.numerics.torch_dtypes import BF16_ONLY

__all__ = [
    "W1",
    "W2",
    "check_dspark",
    "claims_dspark",
    "open_dspark",
    "read_dspark",
]

# Names of the two matrices in DSpark checkpoints.
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"

_CLASS_OF = {"vanilla": "MarkovHead", "gated": "GatedHead", "rnn": "RnnHead"}


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


def check_dspark(head: VocabularyWeights) -> int:
    """Refuse a table or a projection that a head in bf16 cannot have; gives the rank."""
    for name in ("table", "projection"):
        check_matrix(name, getattr(head, name), BF16_ONLY)
    rank = head.table.shape[1]
    check_rank("table", rank)
    check_vocabulary(head, rank=rank, rank_of="table")
    return rank


def read_dspark(
    checkpoint: Checkpoint, rank: int, device: str | torch.device, reading: D2tReading
) -> TableWeights:
    """Read the table and the projection of a head whose weights are all bf16."""
    vocab_size = checkpoint.config.vocab_size
    table = checkpoint.tensors.weight(W1, shape=(vocab_size, rank), dtypes=BF16_ONLY, padded=True)
    shared = checkpoint.projection(W2, rank, device=device, d2t_reading=reading, dtypes=BF16_ONLY)
    return {"table": table[:vocab_size].to(device), **shared}
