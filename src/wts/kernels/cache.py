"""Compiled kernels on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "fingerprint", "load_cubin", "store_file"]


def cache_folder() -> Path:
    """Where cubins are kept: `wts` in the user's cache folder (XDG_CACHE_HOME or ~/.cache)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "wts"


def fingerprint(cubin: bytes) -> str:
    return f"sha256 {hashlib.sha256(cubin).hexdigest()}"


def load_cubin(path: Path, log_path: Path) -> tuple[bytes, str] | None:
    """A cubin of the cache and its log; None where there is none, or only a damaged one."""
    try:
        cubin, log = path.read_bytes(), log_path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return (cubin, log) if log.startswith(fingerprint(cubin)) else None


def store_file(path: Path, data: bytes) -> None:
    """Write a file of the cache so that a reader sees it whole; a full disk is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            whole = Path(folder) / path.name
            whole.write_bytes(data)
            os.replace(whole, path)
    except OSError:
        return
