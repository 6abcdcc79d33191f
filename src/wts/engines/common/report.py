"""The line that says which path runs: one for each process that drafts."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wts.engines.common.buckets import Bucket, Walks
    from wts.engines.common.engine import Draft, Engine
    from wts.engines.common.reasons import Reason

__all__ = ["describe_buckets", "engine_off", "set_level", "stays_off", "walks_line", "will_walk"]


def set_level(engine: Engine) -> None:
    """Have plans and hooks in the log, where the user asks for them."""
    if os.environ.get(engine.verbose) == "1":
        engine.logger.setLevel(logging.DEBUG)


def engine_off(engine: Engine, reason: Reason) -> None:
    """Log that no draft of an engine will walk, and why.

    While plugins load an engine has not set up its log: only a warning is seen then.
    """
    level = logging.INFO if reason.kind == "switch" else logging.WARNING
    engine.logger.log(level, "wts: off for %s: %s", engine.name, reason)


def stays_off(draft: Draft, reason: Reason) -> None:
    """Log that the engine's own steps run, and why."""
    draft.engine.logger.info("wts: off for %s: %s", draft.name, reason)


def will_walk(walks: Walks) -> None:
    """Log that walks run: of what, in which batches, and what they hold.

    It raises nothing: ranks have agreed on walking by then.
    """
    draft = walks.draft
    logger = draft.engine.logger
    try:
        line = walks_line(walks)
    except Exception:  # the line is of less use than the walks
        logger.warning("wts: on for %s, but not described", draft.name, exc_info=True)
        return
    logger.info("%s", line)
    for plan in walks.walkers.plans:
        logger.debug("wts: %s", plan)


def walks_line(walks: Walks) -> str:
    """The line of walks: head, sizes, path of each batch, bytes held, build time."""
    head, engine = walks.head, walks.draft.engine
    return (
        f"wts: on for {walks.draft.name}: {head.kind} head, V {head.vocab}, r {head.rank}, "
        f"K {walks.steps}; {describe_buckets(engine, walks.buckets)}; "
        f"{'a greedy plan beside each sampled one; ' if walks.walkers.greedy_beside else ''}"
        f"{walks.walkers.memory_bytes / 2**20:.0f} MiB held, built in {walks.built_s:.1f} s"
    )


def describe_buckets(engine: Engine, buckets: tuple[Bucket, ...]) -> str:
    """Which path each batch takes, neighbours of one path together.

    Args:
        engine: whose own steps run where walks do not.
        buckets: by rising batch.
    """
    own = f"{engine.name}'s own steps"
    parts: list[tuple[int, int, str]] = []
    least = 1
    for bucket in buckets:
        if bucket.reason is not None:
            path = f"{own} ({bucket.reason})"
        else:
            product = " and a matrix product" if bucket.product else ""
            path = f"1 kernel{product} a block, {100 * bucket.resident_share:.0f} % resident"
        if parts and parts[-1][2] == path:
            parts[-1] = (parts[-1][0], bucket.batch, path)
        else:
            parts.append((least, bucket.batch, path))
        least = bucket.batch + 1
    parts.append((least, 0, own))
    return "; ".join(
        f"batch {low} and above: {path}"
        if high == 0
        else f"batch {low}: {path}"
        if low == high
        else f"batch {low} to {high}: {path}"
        for low, high, path in parts
    )
