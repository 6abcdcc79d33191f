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

from wts.engines.common.reasons import Agree, Reason
from wts.errors import HeadError, WalkError, WalkTimeout
from wts.heads.base import Head
from wts.walk.walker_set import WalkerSet

__all__ = [
    "BUCKETS",
    "CHECK_EVERY_S",
    "MOST_TIMEOUTS",
    "RESULTS",
    "STAGING",
    "UPDATES",
    "Upkeep",
    "attach",
    "clear_padding",
    "wrap_after",
]

logger = logging.getLogger("wts.sglang")

CHECK_EVERY_S = 5.0
"""Seconds between two looks at the status; each waits for the GPU once for each kernel."""

MOST_TIMEOUTS = 3
"""Walks given up, on one rank, before the server is told to stop."""

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"

UPDATES = (
    _UPDATER,
    ("update_weights_from_disk", "update_weights_from_ipc", "end_weight_update"),
)
"""Where an online change of weights is complete, the target's or the draft's."""

BUCKETS = (_UPDATER, ("load_weights_from_distributed", "update_weights_from_tensor"))
"""What changes a part of the weights; SGLang takes these only before an `end_weight_update`."""

RESULTS = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor",
    ("process_batch_result_decode",),
)
"""Where the host has waited for a batch's results anyway, outside of every capture."""


STAGING = (
    "sglang.srt.speculative.dspark_components.dspark_draft_sampler.DsparkDraftSampler",
    "stage_sampling_params",
)
"""Where a batch's temperatures are written before its graph is replayed, those of padding not."""


def _alone(reason: Reason | None) -> Reason | None:
    return reason


@dataclass(slots=True, kw_only=True, eq=False)
class Upkeep:
    """One head's walks, kept true.

    Args:
        walkers: the walks.
        adopt: reads SGLang's modules again.
        ranks: how many ranks draft the same block.
        clock: seconds, monotonic.
        agree: makes a reason that of all ranks.
        active: whether walks run. Methods stay hooked where they do not, and then do nothing.
    """

    walkers: WalkerSet
    adopt: Callable[[], Head | Reason]
    ranks: int
    clock: Callable[[], float] = time.monotonic
    agree: Agree = _alone
    active: bool = True
    checked: float = field(init=False)
    timeouts: int = field(init=False, default=0)
    dirty: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.checked = self.clock()

    def mark(self) -> None:
        """Note that a part of the weights changed: packing waits for the end of the update."""
        self.dirty = True

    def refresh(self) -> None:
        """Pack the weights that the modules hold now, in place: captured graphs read them next.

        Called after an update that failed too, since it may have changed a part.

        Raises:
            HeadError: the modules no longer hold the head that was adopted, or packing it failed,
                here or on another rank. The captured graphs cannot go back to SGLang's steps, and
                must not serve the old weights.
        """
        if not self.active:
            return
        # All ranks answer before one raises: none is left waiting for tokens of one that stopped.
        reason = self.agree(self._pack())
        if reason is not None:
            full = reason.kind == "memory"
            raise HeadError.mismatch(
                "updated weights",
                wanted="memory to pack them in"
                if full
                else "the head that was adopted, with new values of the same shapes and types",
                found=str(reason),
                fix="lower --mem-fraction-static and restart the server"
                if full
                else "restart the server",
            )
        self.dirty = False
        logger.info("wts: packed the updated weights of the draft's head")

    def _pack(self) -> Reason | None:
        """Pack once, or twice where memory that torch keeps was in the way; why it failed."""
        reason = self._pack_once()
        if reason is None or reason.kind != "memory":
            return reason
        torch.cuda.empty_cache()
        return self._pack_once()

    def _pack_once(self) -> Reason | None:
        try:
            head = self.adopt()
            if isinstance(head, Reason):
                return head
            self._wait()
            self.walkers.refresh(head)
            self._wait()
        except torch.OutOfMemoryError as error:
            return Reason(kind="memory", text=f"packing ran out of memory: {error}")
        except WalkError as error:
            return Reason(kind="head", text=str(error))
        except Exception as error:  # other ranks wait for this one's answer, whatever it is
            logger.warning("wts: packing updated weights failed", exc_info=True)
            return Reason(kind="build", text=f"{type(error).__name__}: {error}")
        return None

    def look(self) -> None:
        """Every few seconds see whether a walk was given up.

        Raises:
            WalkTimeout: for the third time; or for the first time where several ranks draft, since
                their tokens may differ from then on.
        """
        now = self.clock()
        if not self.active or now - self.checked < CHECK_EVERY_S:
            return
        if self.dirty:
            logger.warning(
                "wts: weights are being updated; drafts use the head as it was before, until "
                "end_weight_update"
            )
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

    Where both raise, the method's error is raised and that of `then` is logged.

    Raises:
        AttributeError: no such method.
    """
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except Exception:
            try:
                then()
            except Exception:
                logger.exception("wts: what follows a failed %s failed too", name)
            raise
        then()
        return result

    setattr(owner, name, wrapped)


def attach(upkeep: Upkeep) -> Reason | None:
    """Hang an upkeep on SGLang's methods: on all of them, or it is turned off.

    Returns:
        Why it cannot be: then walks must stay off, since updated weights would not reach them.
    """
    reason = _attach(upkeep)
    upkeep.active = reason is None
    return reason


def _attach(upkeep: Upkeep) -> Reason | None:
    hooked = ((UPDATES, upkeep.refresh), (BUCKETS, upkeep.mark), (RESULTS, upkeep.look))
    found: list[tuple[type, str, Callable[[], None]]] = []
    try:
        for (path, names), then in hooked:
            module, _, owner_name = path.rpartition(".")
            owner = getattr(importlib.import_module(module), owner_name)
            missing = [name for name in names if not hasattr(owner, name)]
            if missing:
                return Reason(kind="hook", text=f"{path} has no {', '.join(missing)}")
            found += [(owner, name, then) for name in names]
        for owner, name, then in found:
            wrap_after(owner, name, then)
    except Exception as error:  # an import of SGLang can fail in any way
        return Reason(kind="hook", text=f"cannot hook {path}: {type(error).__name__}: {error}")
    return None


def clear_padding() -> bool:
    """Let rows that only fill a graph up be greedy, or a greedy batch would not be seen as one.

    SGLang leaves them what an earlier batch had.

    Returns:
        Whether its method could be hooked; if not, such batches walk under the slower plan.
    """
    path, name = STAGING
    module, _, owner_name = path.rpartition(".")
    try:
        owner = getattr(importlib.import_module(module), owner_name)
        method = getattr(owner, name)
    except Exception:  # an import of SGLang can fail in any way
        logger.info("wts: greedy batches in padded graphs may walk under plans for sampled rows")
        return False
    if hasattr(method, "wts_clears_padding"):
        return True

    @functools.wraps(method)
    def wrapped(sampler: Any, *args: Any, bs: int, **kwargs: Any) -> Any:
        result = method(sampler, *args, bs=bs, **kwargs)
        temperatures = getattr(getattr(sampler, "params", None), "step_temperatures", None)
        if isinstance(temperatures, torch.Tensor):
            temperatures[bs:].zero_()
        return result

    wrapped.wts_clears_padding = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
    return True
