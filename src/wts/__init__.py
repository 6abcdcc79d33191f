"""Weights That Stay: a drafter's serial head walked in one GPU launch.

The public names, and nothing else. They are imported on first use, so that `import wts` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wts.domino import DominoHead
    from wts.errors import WalkError
    from wts.heads import MarkovHead
    from wts.noise import Noise
    from wts.plan import ResidencyPlan
    from wts.planner import plan_residency
    from wts.recurrent import GatedHead, RnnHead
    from wts.walk import Walker

__all__ = [
    "DominoHead",
    "GatedHead",
    "MarkovHead",
    "Noise",
    "ResidencyPlan",
    "RnnHead",
    "WalkError",
    "Walker",
    "plan_residency",
]

_HOME = {
    "DominoHead": "wts.domino",
    "GatedHead": "wts.recurrent",
    "MarkovHead": "wts.heads",
    "Noise": "wts.noise",
    "ResidencyPlan": "wts.plan",
    "RnnHead": "wts.recurrent",
    "WalkError": "wts.errors",
    "Walker": "wts.walk",
    "plan_residency": "wts.planner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
