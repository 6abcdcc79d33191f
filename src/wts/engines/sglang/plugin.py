"""What the entry point names. It imports neither torch nor SGLang before it is called.

SGLang calls it once in each of its processes, early, most of which never draft; so all that it does
is to register hooks. Everything else waits until a draft model is ready.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Register the hooks, or say why not.

    Source:
        SGLang 0.5.23, sglang/srt/plugins/__init__.py, `load_plugins`.
    """
    from wts.engines.common import reasons, report
    from wts.engines.sglang import version

    report.set_level(version.SGLANG)
    found = reasons.why_switched_off(version.SGLANG) or version.release_of(version.installed())
    if isinstance(found, reasons.Reason):
        report.engine_off(version.SGLANG, found)
        return
    from wts.engines.sglang import hooks

    hooks.Hooks(release=found).install()
