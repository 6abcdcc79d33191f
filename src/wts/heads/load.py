"""A drafter's head, of whatever kind its folder says; and the classes of all kinds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from wts.errors import InputError
from wts.heads.base import Claim, Head
from wts.heads.config import DrafterConfig, read_config
from wts.heads.draft_ids import D2tReading
from wts.heads.kinds import KINDS, HeadKind

__all__ = ["head_class", "head_classes", "read_head"]


def head_class(kind: str) -> Any:
    """The class of a kind of `KINDS`, imported when it is first asked for."""
    module, name = KINDS[kind].home.split(":")
    return getattr(import_module(module), name)


def head_classes() -> tuple[type, ...]:
    """The classes of all kinds, in their order."""
    return tuple(head_class(kind) for kind in KINDS)


def read_head(
    folder: str | Path,
    *,
    target: str | Path | None = None,
    device: str | torch.device = "cpu",
    d2t_reading: D2tReading = "auto",
) -> Head:
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
    kind = _kind_of(read_config(folder))
    if kind.reads_target and target is None:
        raise InputError.mismatch(
            "target",
            wanted=f"the folder of the target model, whose embedding a {kind.title} head reads",
            found="none",
            fix="pass --target DIR",
        )
    if not kind.reads_target and target is not None:
        readers = [f"a {one.title} head" for one in KINDS.values() if one.reads_target]
        raise InputError.mismatch(
            "target",
            wanted=f"none: only {' or '.join(readers)} reads its target's embedding",
            found=target,
            fix="leave it out",
        )
    more = {"target": target} if kind.reads_target else {}
    read = head_class(kind.name).from_checkpoint
    return cast("Head", read(folder, device=device, d2t_reading=d2t_reading, **more))


def _kind_of(config: DrafterConfig) -> HeadKind:
    """The kind of the drafter's head; of an odd one, the kind that says what is wrong with it."""
    claims = {kind: head_class(kind).claims(config) for kind in KINDS}
    order = (Claim.MINE, Claim.ODD)
    return next(KINDS[k] for wanted in order for k, claim in claims.items() if claim is wanted)
