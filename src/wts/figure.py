"""An empty figure; matplotlib is loaded when one is asked for."""

from __future__ import annotations

from typing import Any

from wts.errors import InputError

__all__ = ["new_figure"]


def new_figure(width: float, height: float) -> Any:
    """A new figure, on no screen.

    Args:
        width, height: in inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError.mismatch(
            "matplotlib",
            wanted="to be installed, for figures",
            found=str(error),
            fix="pip install matplotlib, or leave the figures out",
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
