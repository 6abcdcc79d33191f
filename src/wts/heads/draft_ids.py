"""Which target id each id of a reduced draft vocabulary stands for: how a `d2t` tensor is read."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from wts.errors import CheckpointError, describe

__all__ = ["D2tReading", "draft_map", "fault_of_ids"]

D2tReading: TypeAlias = Literal["auto", "offsets", "ids"]
"""How the numbers of a `d2t` tensor are meant; see `draft_map`."""


def draft_map(
    d2t: torch.Tensor,
    *,
    num_targets: int,
    t2d: torch.Tensor | None = None,
    reading: D2tReading = "auto",
) -> torch.Tensor:
    """Turn the `d2t` tensor of a checkpoint into target ids.

    The convention of EAGLE, DeepSpec, SGLang and vLLM is **offsets**: draft id d stands for target
    id d + d2t[d]. Checkpoints that hold target ids themselves exist too. A right reading gives
    distinct ids inside the target vocabulary (exactly those that a `t2d` mask marks), and for real
    vocabularies the wrong one nearly never does: offsets repeat wherever two kept ids are
    neighbours, and ids used as offsets run past the end. Under "auto" the one reading that fits is
    taken. Where both fit the tensor is refused, for a wrong map still gives ids in range and only
    ruins the accepted length.

    Args:
        d2t: integers [V_draft].
        num_targets: size of the target vocabulary.
        t2d: bool [num_targets], the mask of kept ids, if the checkpoint has one.
        reading: "offsets" or "ids" to decide, "auto" to look.

    Returns:
        int64 [V_draft], the target id of each draft id.

    Raises:
        CheckpointError: no reading fits, or under "auto" both do.
    """
    _check_tensors(d2t, t2d, num_targets)
    values = d2t.to(torch.int64)
    readings: dict[str, torch.Tensor] = {
        "offsets": values + torch.arange(values.numel(), device=values.device),
        "ids": values,
    }
    if reading not in ("auto", *readings):
        raise CheckpointError.mismatch(
            "d2t_reading", wanted="auto, offsets or ids", found=repr(reading), fix="pick one"
        )
    if reading != "auto":
        readings = {reading: readings[reading]}
    faults = {
        name: fault_of_ids(ids, num_targets) or _fault_of_mask(ids, t2d)
        for name, ids in readings.items()
    }
    fitting = [ids for name, ids in readings.items() if faults[name] is None]
    if not fitting:
        raise CheckpointError.mismatch(
            "d2t",
            wanted=f"distinct target ids in 0..{num_targets - 1}"
            + ("" if t2d is None else ", those that t2d marks"),
            found="; ".join(f"read as {name}: {fault}" for name, fault in faults.items()),
            fix="check vocab_size and the export of the map",
        )
    if len(fitting) == 2 and not torch.equal(*fitting):
        raise CheckpointError.mismatch(
            "d2t",
            wanted="a map that can be read in one way",
            found="numbers that fit both as offsets (draft id + d2t) and as target ids",
            fix="say which with d2t_reading='offsets' (the usual convention) or 'ids'",
        )
    return fitting[0]


def _check_tensors(d2t: torch.Tensor, t2d: torch.Tensor | None, num_targets: int) -> None:
    """Refuse tensors of another shape or type than a map and its mask have."""
    if d2t.ndim != 1 or d2t.is_floating_point() or d2t.is_complex() or d2t.dtype == torch.bool:
        raise CheckpointError.mismatch(
            "d2t", wanted="integers [V_draft]", found=describe(d2t), fix="check the export"
        )
    if t2d is not None and (t2d.dtype != torch.bool or tuple(t2d.shape) != (num_targets,)):
        raise CheckpointError.mismatch(
            "t2d", wanted=f"bool[{num_targets}]", found=describe(t2d), fix="check the export"
        )


def fault_of_ids(ids: torch.Tensor, num_targets: int) -> str | None:
    """Say why ids are not distinct target ids, or None if they are.

    Args:
        ids: int64 [n], of draft ids 0..n-1.
        num_targets: size of the target vocabulary.
    """
    outside = ((ids < 0) | (ids >= num_targets)).nonzero().flatten()
    if outside.numel():
        first = int(outside[0])
        return f"id {int(ids[first])} for draft id {first}, {outside.numel()} out of range in all"
    ordered = ids.sort().values
    repeated = (ordered[1:] == ordered[:-1]).nonzero().flatten()
    if repeated.numel():
        return f"id {int(ordered[repeated[0]])} for more than one draft id"
    return None


def _fault_of_mask(ids: torch.Tensor, t2d: torch.Tensor | None) -> str | None:
    if t2d is None:
        return None
    num_marked, num_hit = int(t2d.sum()), int(t2d[ids].sum())
    if num_marked == num_hit == ids.numel():
        return None
    return f"{num_hit} of {ids.numel()} ids among the {num_marked} that t2d marks"
