"""Why a walk stays off: every reason is data, made by a function that asks one question.

No reason is an error: SGLang goes on with its own steps, and the log says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from wts.hardware.gpu import GpuSpec
    from wts.kernels.resident.plan import ResidencyPlan

__all__ = [
    "RESERVE_BYTES",
    "Agree",
    "Kind",
    "Reason",
    "agreed",
    "why_not_gpu",
    "why_not_memory",
    "why_step_wise",
]

RESERVE_BYTES = 512 << 20
"""What has to stay free after building: SGLang captures its draft graphs next."""

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
    """Why SGLang's own steps run.

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


def why_not_gpu(gpu: GpuSpec) -> Reason | None:
    """Ask whether the kernel was run on this kind of GPU: a server takes nothing untried."""
    if gpu.is_hopper:
        return None
    major, minor = gpu.compute_capability
    return Reason(
        kind="gpu",
        text=f"{gpu.name} has compute capability {major}.{minor}, wanted is 9.0 (Hopper)",
    )


def why_not_memory(*, needed_bytes: int, free_bytes: int) -> Reason | None:
    """Ask whether the packed head fits beside what SGLang still has to allocate."""
    if free_bytes - needed_bytes >= RESERVE_BYTES:
        return None
    return Reason(
        kind="memory",
        text=f"building needs {needed_bytes >> 20} MiB and {RESERVE_BYTES >> 20} MiB have to stay "
        f"free, found {free_bytes >> 20} MiB; lower --mem-fraction-static",
    )


def why_step_wise(plan: ResidencyPlan) -> Reason | None:
    """Ask whether SGLang's own steps are faster than a walk under this plan.

    This is the whole policy: a plan that was measured to lose is not used.
    """
    if not plan.loses:
        return None
    return Reason(
        kind="plan",
        text=f"a walk would read {plan.readings:.1f} times the projection from L2 a step",
    )


def agreed(
    reason: Reason | None,
    group: Any,
    gather: Callable[..., None],
    walking: tuple[int, ...] | None = None,
) -> Reason | None:
    """Let all ranks stay off if one does: SGLang's own steps wait for each other.

    Args:
        reason: of this rank.
        group: SGLang's group of the ranks that draft together: world_size, cpu_group.
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
