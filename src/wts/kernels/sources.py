"""The files that a kernel is compiled from, found by following what the entry includes."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["ENTRY", "RENDERED", "read_sources"]

ENTRY = "resident.cu"
RENDERED = ("plan_constants.h", "args.cuh")
"""Files that stand beside them, rendered from the plan and from tables that the host shares."""

_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def read_sources() -> dict[str, str]:
    """The kernel's files by their path in csrc: the entry, then what it includes, as it is met."""
    folder = resources.files("wts") / "csrc"
    sources: dict[str, str] = {}
    unread = [ENTRY]
    while unread:
        name = unread.pop()
        if name in sources or name in RENDERED:
            continue
        sources[name] = folder.joinpath(*name.split("/")).read_text()
        unread += reversed(_INCLUDE.findall(sources[name]))
    return sources
