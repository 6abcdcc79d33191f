"""Time stamps that a kernel writes which is built to be traced."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["traced_events"]


def traced_events() -> tuple[list[str], int]:
    """Names of the kernel's events in their order, and rounds that it traces: its source says."""
    text = (resources.files("wts") / "csrc" / "trace.cuh").read_text(encoding="utf-8")
    events = re.search(r"enum Event \{([^}]*)\}", text)
    rounds = re.search(r"constexpr int TRACED_ROUNDS = (\d+);", text)
    assert events is not None
    assert rounds is not None
    *names, last = (name.strip() for name in events[1].split(","))
    assert last == "NUM_EVENTS"
    return names, int(rounds[1])
