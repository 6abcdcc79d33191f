"""Refuses integers out of range."""

from __future__ import annotations

from wts.errors import PlanError

__all__ = ["check_range"]


def check_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanError.mismatch(
            name,
            wanted=f"an integer from {low} to {high}",
            found=repr(value),
            fix="give one of them",
        )
