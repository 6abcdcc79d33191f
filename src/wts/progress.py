"""What commands say while they work: on standard error, with the time since they began."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Say", "progress_printer"]

Say: TypeAlias = Callable[[str], None]
"""Takes one line of progress."""


def progress_printer() -> Say:
    """Begin to count seconds; what is said from then on comes with them."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {text}", file=sys.stderr, flush=True)

    return say
