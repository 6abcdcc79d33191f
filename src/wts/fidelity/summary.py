"""A report in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["summary"]


def summary(report: Mapping[str, Any]) -> tuple[str, ...]:
    """What matters most of a report, in two lines of text.

    Args:
        report: of `wts.fidelity.examine`.
    """
    error, steps = report["weights"]["error"], report["steps"]
    rows = (
        f"error of weights by their size: {error['int8']:.2%} in int8, {error['e4m3']:.2%} in E4M3"
    )
    if not steps["num_steps"]:
        return rows, "no step that the head has a part in"
    rate = steps["flip_rate"]
    return rows, (
        f"tokens turned, of {steps['num_steps']} steps: {rate['int8']:.2%} by int8, "
        f"{rate['e4m3']:.2%} by E4M3; {steps['flips_where_decided']} by int8 beyond its bound"
    )
