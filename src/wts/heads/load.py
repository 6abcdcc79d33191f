"""A drafter's head, of whatever kind its folder says."""

from __future__ import annotations

from pathlib import Path

import torch

from wts.errors import InputError
from wts.heads.cells import AnyHead
from wts.heads.config import read_config
from wts.heads.domino import DominoHead
from wts.heads.draft_ids import D2tReading
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead

__all__ = ["read_head"]


def read_head(
    folder: str | Path,
    *,
    target: str | Path | None = None,
    device: str | torch.device = "cpu",
    d2t_reading: D2tReading = "auto",
) -> AnyHead:
    """Read the head of a drafter folder, of the kind that its config.json says.

    Args:
        folder: the drafter folder.
        target: the folder of the model that it drafts for; of a Domino drafter only.
        device: where the weights go.
        d2t_reading: how `d2t` is meant, where the numbers alone leave it open.

    Returns:
        The head.

    Raises:
        CheckpointError: names the file, the tensor, what was wanted and what was found.
        InputError: a target that is missing or not read.
    """
    config = read_config(folder)
    if config.domino is not None:
        if target is None:
            raise InputError.mismatch(
                "target",
                wanted="the folder of the target model, whose embedding a Domino head reads",
                found="none",
                fix="pass --target DIR",
            )
        return DominoHead.from_checkpoint(
            folder, target=target, device=device, d2t_reading=d2t_reading
        )
    if target is not None:
        raise InputError.mismatch(
            "target",
            wanted="none: only a Domino head reads its target's embedding",
            found=target,
            fix="leave it out",
        )
    if config.markov_head_type == "gated":
        return GatedHead.from_checkpoint(folder, device=device, d2t_reading=d2t_reading)
    if config.markov_head_type == "rnn":
        return RnnHead.from_checkpoint(folder, device=device, d2t_reading=d2t_reading)
    return MarkovHead.from_checkpoint(folder, device=device, d2t_reading=d2t_reading)
