"""Which SGLang the hooks are made for."""

from __future__ import annotations

import re
from importlib import metadata

from wts.engines.common.reasons import Reason

__all__ = ["MADE_FOR", "sglang_version", "why_not_version"]

MADE_FOR = "0.5.23"
"""The SGLang whose functions are known to be the ones that are hooked."""


def sglang_version() -> str | None:
    """The installed version of SGLang; None where it is not installed."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def why_not_version(version: str | None) -> Reason | None:
    """Ask whether this SGLang is the one that the hooks were made for; post-releases are."""
    if version is None:
        return Reason(kind="version", text="SGLang is not installed")
    if re.fullmatch(re.escape(MADE_FOR) + r"(\.post\d+)?(\+.*)?", version):
        return None
    return Reason(kind="version", text=f"this is SGLang {version}, wanted is {MADE_FOR}")
