"""Colours and titles of paths, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from wts.bench.record import Record

__all__ = ["COLOURS", "ORDER", "TITLES", "source_line", "title_figure"]

TITLES = MappingProxyType(
    {
        "wts": "one walk, resident",
        "wts_streaming": "one walk, streaming",
        "probe": "one walk, latent that never changes",
        "sglang": "SGLang, step by step",
        "sglang_greedy": "SGLang's fused greedy step",
        "step_torch": "torch, step by step",
    }
)
COLOURS = MappingProxyType(
    {
        "wts": "#1f77b4",
        "wts_streaming": "#17becf",
        "probe": "#9467bd",
        "sglang": "#d62728",
        "sglang_greedy": "#8c564b",
        "step_torch": "#ff7f0e",
    }
)
ORDER = ("step_torch", "sglang_greedy", "sglang", "wts_streaming", "wts")
"""Paths from the slowest idea to the last."""


def source_line(records: Sequence[Record], *, cache: str = "L2 cold") -> str:
    """Which run a figure shows."""
    last = records[-1]
    return (
        f"medians of complete calls, {cache}; one {str(last['gpu']).upper()}, torch "
        f"{last['torch']}, commit {str(last['commit'])[:8]}, run {last['run_id']}"
    )


def title_figure(figure: Any, title: str, source: str) -> Any:
    """Write what a figure shows above it, and where its numbers come from below that."""
    figure.suptitle(f"{title}\n", fontsize=12)
    figure.text(0.5, 0.002, source, ha="center", va="bottom", fontsize=7, color="dimgrey")
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
    return figure
