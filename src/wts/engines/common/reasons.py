"""Why a walk stays off: every reason is data, made by a function that asks one question.

No reason is an error: the engine goes on with its own steps, and the log says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from wts.engines.common.engine import Draft, Engine
    from wts.hardware.gpu import GpuSpec
    from wts.kernels.resident.plan import ResidentPlan

__all__ = [
    "SERVED_GPUS",
    "Agree",
    "Kind",
    "Reason",
    "agreed",
    "why_not_draft",
    "why_not_gpu",
    "why_not_memory",
    "why_not_ranks",
    "why_step_wise",
    "why_switched_off",
]

SERVED_GPUS = {(9, 0): "Hopper"}
"""Compute capabilities on which the kernel has run, and their names: none other is served."""

Kind: TypeAlias = Literal[
    "switch",
    "version",
    "hook",
    "plugin",
    "head",
    "quantised",
    "lora",
    "tensor parallelism",
    "candidates",
    "gpu",
    "memory",
    "plan",
    "build",
]
"""What a reason is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why the engine's own steps run.

    Args:
        kind: what it is about.
        text: the sentence of the log line.
    """

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


Agree: TypeAlias = "Callable[..., Reason | None]"
"""(reason, batches that walk, where known) -> the decision of all ranks; see `agreed`."""


def why_switched_off(engine: Engine) -> Reason | None:
    """Ask whether the user wants the engine as it is."""
    if os.environ.get(engine.switch) != "0":
        return None
    return Reason(kind="switch", text=f"{engine.switch}=0")


def why_not_draft(draft: Draft, head: str, *, sampled: bool) -> Reason | None:
    """Ask whether walks are offered for a draft with this kind of head, and with such rows.

    Args:
        draft: what walks of it.
        head: name of the kind of head.
        sampled: whether rows may have a temperature above 0.
    """
    if head not in draft.heads:
        return Reason(
            kind="head", text=f"it has a {head} head, wanted is one of {', '.join(draft.heads)}"
        )
    if sampled and not draft.sampled:
        return Reason(kind="head", text="rows may be sampled, and only greedy rows walk")
    return None


def why_not_ranks(draft: Draft, ranks: int) -> Reason | None:
    """Ask whether so many ranks may draft a block together."""
    if ranks == 1 or draft.one_rank is None:
        return None
    return Reason(kind="tensor parallelism", text=draft.one_rank)


def why_not_gpu(gpu: GpuSpec) -> Reason | None:
    """Ask whether the kernel was run on this kind of GPU: a server takes nothing untried."""
    if gpu.compute_capability in SERVED_GPUS:
        return None
    major, minor = gpu.compute_capability
    wanted = " or ".join(f"{x}.{y} ({name})" for (x, y), name in SERVED_GPUS.items())
    return Reason(
        kind="gpu", text=f"{gpu.name} has compute capability {major}.{minor}, wanted is {wanted}"
    )


def why_not_memory(engine: Engine, *, needed_bytes: int, free_bytes: int) -> Reason | None:
    """Ask whether the packed head fits beside what the engine still has to allocate."""
    if free_bytes - needed_bytes >= engine.reserve_bytes:
        return None
    return Reason(
        kind="memory",
        text=f"building needs {needed_bytes >> 20} MiB and {engine.reserve_bytes >> 20} MiB have "
        f"to stay free, found {free_bytes >> 20} MiB; {engine.memory_fix}",
    )


def why_step_wise(plan: ResidentPlan) -> Reason | None:
    """Ask whether the engine's own steps are faster than a walk under this plan.

    This is the whole policy: a plan that was measured to lose is not used.
    """
    if not plan.placement.slower_than_stepwise:
        return None
    return Reason(
        kind="plan",
        text=f"a walk would read {plan.placement.reads_of_w_per_step:.1f} times the projection "
        "from L2 a step",
    )


def agreed(
    reason: Reason | None,
    group: Any,
    gather: Callable[..., None],
    walking: tuple[int, ...] | None = None,
) -> Reason | None:
    """Let all ranks stay off if one does: an engine's own steps wait for each other.

    Args:
        reason: of this rank.
        group: the engine's group of the ranks that draft together: world_size, cpu_group.
        gather: `torch.distributed.all_gather_object`.
        walking: the batches that would walk on this rank, where these are known. In a batch that
            walks on some ranks only, the others would wait for them.

    Returns:
        The same on every rank: None, or the reason of the first rank that has one.
    """
    if group is None or group.world_size == 1:
        return reason
    found: list[Any] = [None] * group.world_size
    gather(found, (reason, walking), group=group.cpu_group)
    first = _first([given for given, _ in found])
    if first is not None:
        return first
    _, first_walking = found[0]
    for rank, (_, other) in enumerate(found):
        if other != first_walking:
            return Reason(
                kind="plan",
                text=f"rank 0 would walk in batches {first_walking}, rank {rank} in {other}",
            )
    return None


def _first(found: Sequence[Reason | None]) -> Reason | None:
    for rank, reason in enumerate(found):
        if reason is not None:
            return replace(reason, text=f"rank {rank}: {reason.text}")
    return None
