"""The largest step logit, the lowest id among equals."""

from __future__ import annotations

from dataclasses import dataclass

from wts.selection.base import Sizes

__all__ = ["GreedySizes"]


@dataclass(frozen=True, kw_only=True)
class GreedySizes(Sizes):
    """What a kernel has anyway."""
