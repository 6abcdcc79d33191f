"""What running walks need from the host: fresh weights after an update, and a look at the status.

Both are hung on methods of SGLang in the process that drafts, and only there.
"""

from __future__ import annotations

import functools
import importlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from wts.cells import AnyHead
from wts.errors import HeadError, WalkError, WalkTimeout
from wts.sglang.support import Reason
from wts.walkers import WalkerSet

__all__ = [
    "CHECK_EVERY_S",
    "MOST_TIMEOUTS",
    "RESULTS",
    "UPDATES",
    "Upkeep",
    "attach",
    "wrap_after",
]

logger = logging.getLogger("wts.sglang")

CHECK_EVERY_S = 5.0
"""Seconds between two looks at the status; each waits for the GPU once."""

MOST_TIMEOUTS = 3
"""Walks given up, on one rank, before the server is told to stop."""

UPDATES = (
    "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater",
    (
        "update_weights_from_disk",
        "load_weights_from_distributed",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
        "end_weight_update",
    ),
)
"""Every way in which SGLang changes weights online, the target's and the draft's."""

RESULTS = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor",
    ("process_batch_result_decode",),
)
"""Where the host has waited for a batch's results anyway, outside of every capture."""


@dataclass(slots=True, kw_only=True, eq=False)
class Upkeep:
    """One head's walks, kept true.

    Args:
        walkers: the walks.
        adopt: reads SGLang's modules again.
        ranks: how many ranks draft the same block.
        clock: seconds, monotonic.
    """

    walkers: WalkerSet
    adopt: Callable[[], AnyHead | Reason]
    ranks: int
    clock: Callable[[], float] = time.monotonic
    checked: float = field(init=False)
    timeouts: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.checked = self.clock()

    def refresh(self) -> None:
        """Pack the weights that the modules hold now, in place: captured graphs read them next.

        Called after an update that failed too, since it may have changed a part.

        Raises:
            HeadError: the modules no longer hold the head that was adopted. The captured graphs
                cannot go back to SGLang's steps, and must not serve the old weights.
        """
        head = self.adopt()
        if isinstance(head, Reason):
            raise HeadError.mismatch(
                "updated weights",
                wanted="the head that was adopted, with new values",
                found=str(head),
                fix="restart the server",
            )
        self._wait()
        try:
            self.walkers.refresh(head)
        except WalkError as error:
            raise HeadError.mismatch(
                "updated weights",
                wanted="the shapes and types of the first ones",
                found=str(error),
                fix="restart the server",
            ) from error
        self._wait()
        logger.info("wts: packed the updated weights of the draft's head")

    def look(self) -> None:
        """Every few seconds see whether a walk was given up.

        Raises:
            WalkTimeout: for the third time; or for the first time where several ranks draft, since
                their tokens may differ from then on.
        """
        now = self.clock()
        if now - self.checked < CHECK_EVERY_S:
            return
        try:
            self.walkers.check()
        except WalkTimeout as error:
            self.timeouts += 1
            if self.ranks > 1 or self.timeouts >= MOST_TIMEOUTS:
                raise
            logger.error(
                "wts: %s. Drafts since the last look may be wrong: greedy output is not affected, "
                "sampled output may be. WTS_SGLANG=0 turns walks off",
                error,
            )
        self.checked = self.clock()

    def _wait(self) -> None:
        device = self.walkers.for_batch(1).head.projection.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def wrap_after(owner: type, name: str, then: Callable[[], None]) -> None:
    """Let `then` run after a method of a class, also where it raised: it may have done a part.

    Raises:
        AttributeError: no such method.
    """
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            then()

    setattr(owner, name, wrapped)


def attach(upkeep: Upkeep) -> Reason | None:
    """Hang an upkeep on SGLang's methods.

    Returns:
        Why it cannot be: then walks must stay off, since updated weights would not reach them.
    """
    try:
        for (path, names), then in ((UPDATES, upkeep.refresh), (RESULTS, upkeep.look)):
            module, _, owner_name = path.rpartition(".")
            owner = getattr(importlib.import_module(module), owner_name)
            missing = [name for name in names if not hasattr(owner, name)]
            if missing:
                return Reason(kind="hook", text=f"{path} has no {', '.join(missing)}")
            for name in names:
                wrap_after(owner, name, then)
    except Exception as error:  # an import of SGLang can fail in any way
        return Reason(kind="hook", text=f"cannot hook {path}: {type(error).__name__}: {error}")
    return None
