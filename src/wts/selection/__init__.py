"""How a token is chosen of a step's logits."""

from __future__ import annotations

from wts.selection.base import Sizes
from wts.selection.exact import ExactSizes
from wts.selection.greedy import GreedySizes
from wts.selection.token_race import TokenRaceSizes

__all__ = ["SIZES"]

SIZES: dict[str, type[Sizes]] = {
    "greedy": GreedySizes,
    "token_race": TokenRaceSizes,
    "exact": ExactSizes,
}
"""What each selection takes of a kernel, by its name."""
