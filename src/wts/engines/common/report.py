"""The line that says which path runs: one for each process that drafts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wts.engines.common.buckets import Bucket, Walks
    from wts.engines.common.reasons import Reason

__all__ = ["describe_buckets", "stays_off", "walks_line", "will_walk"]

logger = logging.getLogger("wts.sglang")

_DRAFTS = {
    "dspark": "SGLang's DSpark draft",
    "domino": "SGLang's Domino rollout",
    "plugin": "SGLang",
}


def stays_off(draft: str, reason: Reason) -> None:
    """Log that SGLang's own steps run, and why.

    While plugins load SGLang has not set up its log: only a warning is seen then.

    Args:
        draft: "dspark", "domino", or "plugin" where none was reached.
        reason: why.
    """
    unseen = draft == "plugin" and reason.kind != "switch"
    level = logging.WARNING if unseen else logging.INFO
    logger.log(level, "wts: off for %s: %s", _DRAFTS[draft], reason)


def will_walk(draft: str, walks: Walks) -> None:
    """Log that walks run: of what, in which batches, and what they hold.

    It raises nothing: ranks have agreed on walking by then.
    """
    try:
        line = walks_line(draft, walks)
    except Exception:  # the line is of less use than the walks
        logger.warning("wts: on for %s, but not described", _DRAFTS[draft], exc_info=True)
        return
    logger.info("%s", line)
    for plan in walks.walkers.plans:
        logger.debug("wts: %s", plan)


def walks_line(draft: str, walks: Walks) -> str:
    """The line of walks: head, sizes, path of each batch, bytes held, build time."""
    head = walks.head
    return (
        f"wts: on for {_DRAFTS[draft]}: {head.kind} head, V {head.vocab}, r {head.rank}, "
        f"K {walks.steps}; {describe_buckets(walks.buckets)}; "
        f"{'a greedy plan beside each sampled one; ' if walks.walkers.greedy_beside else ''}"
        f"{walks.walkers.memory_bytes / 2**20:.0f} MiB held, built in {walks.built_s:.1f} s"
    )


def describe_buckets(buckets: tuple[Bucket, ...]) -> str:
    """Which path each batch takes, neighbours of one path together.

    Args:
        buckets: by rising batch.
    """
    parts: list[tuple[int, int, str]] = []
    least = 1
    for bucket in buckets:
        if bucket.reason is not None:
            path = f"SGLang's own steps ({bucket.reason})"
        else:
            product = " and a matrix product" if bucket.product else ""
            path = f"1 kernel{product} a block, {100 * bucket.resident_share:.0f} % resident"
        if parts and parts[-1][2] == path:
            parts[-1] = (parts[-1][0], bucket.batch, path)
        else:
            parts.append((least, bucket.batch, path))
        least = bucket.batch + 1
    parts.append((least, 0, "SGLang's own steps"))
    return "; ".join(
        f"batch {low} and above: {path}"
        if high == 0
        else f"batch {low}: {path}"
        if low == high
        else f"batch {low} to {high}: {path}"
        for low, high, path in parts
    )
