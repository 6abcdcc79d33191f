"""Servers with Domino drafters on machines without flashinfer: greedy requests only.

When it starts, SGLang's worker for these drafters rehearses how drafts of sampled requests are
verified, to learn how much memory that takes. The rehearsal renormalises probabilities with
flashinfer and compiles a kernel of SGLang's own with flashinfer's headers; greedy rounds use
neither. SGLang has a switch for builds that lack these kernels: no rehearsal, and every draft is
verified greedily. Where flashinfer is not there the benchmark sets that switch, in the starts of
every path alike.

Like the null head this is an SGLang plugin of its own, no part of this package's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Sequence

from wts.errors import InputError

__all__ = ["LOG_LINE", "NOTE", "check_temperatures", "install", "is_needed"]

NOTE = "sampled verification off (no flashinfer)"
"""What records say of such a server."""

LOG_LINE = f"wts serving: {NOTE}: nothing of it is rehearsed, every request is to be greedy"

# Asked before the rehearsal, and in rounds that are not greedy.
# Source: sglang/srt/speculative/dflash_worker_v2.py, `prewarm_sampling` and `_accept_block`. What
# they call needs flashinfer.sampling (sglang/kernels/ops/sampling/renorm.py) and flashinfer's
# headers (sglang/kernels/ops/speculative/sampling.py).
_SWITCH = "sglang.srt.speculative.dflash_utils.is_dflash_sampling_verify_available"

_LOGGER = logging.getLogger(__name__)


def is_needed(drafter: str) -> bool:
    """Whether a drafter cannot be served here but greedily."""
    return drafter == "domino" and not _has_flashinfer()


def check_temperatures(drafter: str, temperatures: Sequence[float]) -> None:
    """Refuse sampled requests where a drafter can only be served greedily.

    Args:
        drafter: its kind.
        temperatures: of the requests.

    Raises:
        InputError: one of them is above 0, which would be verified greedily.
    """
    if is_needed(drafter) and any(temperatures):
        raise InputError.mismatch(
            "temperature",
            wanted="0: SGLang verifies sampled drafts of a Domino drafter with flashinfer",
            found=f"{max(temperatures):g}, and no flashinfer",
            fix="pass --temperature 0, or install flashinfer-python",
        )


def _has_flashinfer() -> bool:
    return importlib.util.find_spec("flashinfer") is not None


def install() -> None:
    """Set the switch; SGLang calls this in each of its processes."""
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    registry.HookRegistry.register(_SWITCH, _unavailable, registry.HookType.REPLACE)


@functools.cache  # its line once per process
def _unavailable() -> bool:
    _LOGGER.info(LOG_LINE)
    return False
