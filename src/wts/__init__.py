"""Weights That Stay: a drafter's serial head walked in one GPU launch.

The public names, and nothing else. They are imported on first use, so that `import wts` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wts.errors import WalkError
    from wts.heads.domino import DominoHead
    from wts.heads.gated import GatedHead
    from wts.heads.markov import MarkovHead
    from wts.heads.rnn import RnnHead
    from wts.kernels.planner import plan_residency, plan_walk
    from wts.kernels.resident.plan import ResidencyPlan, ResidentPlan
    from wts.numerics.gumbel import Noise
    from wts.walk.walker import Walker

__all__ = [
    "DominoHead",
    "GatedHead",
    "MarkovHead",
    "Noise",
    "ResidencyPlan",
    "ResidentPlan",
    "RnnHead",
    "WalkError",
    "Walker",
    "plan_residency",
    "plan_walk",
]

_HOME = {
    "DominoHead": "wts.heads.domino",
    "GatedHead": "wts.heads.gated",
    "MarkovHead": "wts.heads.markov",
    "Noise": "wts.numerics.gumbel",
    "ResidencyPlan": "wts.kernels.resident.plan",
    "ResidentPlan": "wts.kernels.resident.plan",
    "RnnHead": "wts.heads.rnn",
    "WalkError": "wts.errors",
    "Walker": "wts.walk.walker",
    "plan_residency": "wts.kernels.planner",
    "plan_walk": "wts.kernels.planner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
