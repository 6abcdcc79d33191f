"""What the entry point names. It imports neither torch nor SGLang before it is called.

SGLang calls it once in each of its processes, early, most of which never draft; so all that it does
is to register hooks. Everything else waits until a draft model is ready.
"""

from __future__ import annotations

import logging
import os

__all__ = ["SWITCH", "VERBOSE", "register"]

SWITCH = "WTS_SGLANG"
"""Set to 0 to leave SGLang as it is."""

VERBOSE = "WTS_SGLANG_VERBOSE"
"""Set to 1 to have plans and hooks in the log."""

logger = logging.getLogger("wts.sglang")


def register() -> None:
    """Register the hooks, or say why not.

    Source:
        SGLang 0.5.23, sglang/srt/plugins/__init__.py, `load_plugins`.
    """
    from wts.engines.common import report
    from wts.engines.common.reasons import Reason
    from wts.engines.sglang import version

    if os.environ.get(VERBOSE) == "1":
        logger.setLevel(logging.DEBUG)
    if os.environ.get(SWITCH) == "0":
        report.stays_off("plugin", Reason(kind="switch", text=f"{SWITCH}=0"))
        return
    reason = version.why_not_version(version.sglang_version())
    if reason is not None:
        report.stays_off("plugin", reason)
        return
    from wts.engines.sglang import hooks

    hooks.install()
