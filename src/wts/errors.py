"""Every exception raised by this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import torch

__all__ = [
    "CheckpointError",
    "CompileError",
    "DeviceError",
    "HeadError",
    "InputError",
    "PlanError",
    "WalkError",
    "WalkTimeout",
    "check_range",
    "describe",
]


def describe(tensor: torch.Tensor) -> str:
    """Write a tensor's dtype and shape the way error messages do: bfloat16[8, 256]."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


class WalkError(Exception):
    """Base of all errors of this package; catch it to catch them all."""

    @classmethod
    def mismatch(cls, argument: str, *, wanted: object, found: object, fix: str) -> Self:
        """Build an error that says which argument, what was wanted, what came and what to do."""
        return cls(f"{argument}: wanted {wanted}, found {found}; {fix}")


class HeadError(WalkError):
    """Weights that do not form a head: shape, dtype, device, stride or rank."""


class CheckpointError(WalkError):
    """A drafter folder that cannot be read as a head."""


class PlanError(WalkError):
    """A residency plan that cannot be made, or that belongs to something else."""


class InputError(WalkError):
    """An input of a call that the head or the plan does not allow."""


class DeviceError(WalkError):
    """A GPU that is missing, unsuitable or too busy for the plan."""


class CompileError(WalkError):
    """A kernel that cannot be compiled, or a compiler that cannot be found."""


class WalkTimeout(WalkError):
    """A walk on the device that gave up waiting; its tokens are in range but not right."""


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Refuse (PlanError) an integer out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanError.mismatch(
            name,
            wanted=f"an integer from {low} to {high}",
            found=repr(value),
            fix="give one of them",
        )
