"""What running walks need from the host: fresh weights after an update, and a look at the status.

Both follow methods of the engine, in the process that drafts, and only there. An engine's methods
hold what follows them weakly: whoever serves walks keeps their upkeep, and a draft that is gone is
not packed again.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from wts.engines.common.engine import Engine, Methods
from wts.engines.common.reasons import Agree, Reason
from wts.errors import HeadError, WalkError, WalkTimeout
from wts.heads.base import Head
from wts.walk.walker_set import WalkerSet

__all__ = ["CHECK_EVERY_S", "MOST_TIMEOUTS", "Upkeep", "class_of", "follow"]

CHECK_EVERY_S = 5.0
"""Seconds between two looks at the status; each waits for the GPU once for each kernel."""

MOST_TIMEOUTS = 3
"""Walks given up, on one rank, before the server is told to stop."""


def _alone(reason: Reason | None) -> Reason | None:
    return reason


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Upkeep:
    """One head's walks, kept true.

    Args:
        engine: whose walks they are.
        walkers: the walks.
        adopt: reads the engine's modules again.
        ranks: how many ranks draft the same block.
        clock: seconds, monotonic.
        agree: makes a reason that of all ranks.
        active: whether walks run. Methods stay followed where they do not, and nothing is done.
    """

    engine: Engine
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

    def attach(
        self,
        *,
        updates: Sequence[Methods],
        parts: Sequence[Methods],
        results: Sequence[Methods],
    ) -> Reason | None:
        """Follow methods of the engine: all of them, or walks are turned off.

        Args:
            updates: after which a change of weights is complete.
            parts: after which a part of the weights has changed; one of `updates` comes later.
            results: after which the host has waited for a batch anyway, outside of every capture.

        Returns:
            Why it cannot be: then walks must stay off, since updated weights would not reach them.
        """
        reason = self._attach(
            [
                *((methods, self.refresh) for methods in updates),
                *((methods, self.mark) for methods in parts),
                *((methods, self.look) for methods in results),
            ]
        )
        self.active = reason is None
        return reason

    def _attach(self, wanted: Sequence[tuple[Methods, Callable[[], None]]]) -> Reason | None:
        found: list[tuple[type, str, Callable[[], None]]] = []
        path = ""
        try:
            for methods, then in wanted:
                path = methods.owner
                owner = class_of(path)
                missing = [name for name in methods.names if not hasattr(owner, name)]
                if missing:
                    return Reason(kind="hook", text=f"{path} has no {', '.join(missing)}")
                found += [(owner, name, then) for name in methods.names]
            for owner, name, then in found:
                follow(owner, name, then, self.engine.logger)
        except Exception as error:  # an import of an engine can fail in any way
            return Reason(kind="hook", text=f"cannot hook {path}: {type(error).__name__}: {error}")
        return None

    def mark(self) -> None:
        """Note that a part of the weights changed: packing waits for the end of the update."""
        self.dirty = True

    def refresh(self) -> None:
        """Pack the weights that the modules hold now, in place: captured graphs read them next.

        Called after an update that failed too, since it may have changed a part.

        Raises:
            HeadError: the modules no longer hold the head that was adopted, or packing it failed,
                here or on another rank. The captured graphs cannot go back to the engine's steps,
                and must not serve the old weights.
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
                fix=f"{self.engine.memory_fix} and restart the server"
                if full
                else "restart the server",
            )
        self.dirty = False
        self.engine.logger.info("wts: packed the updated weights of the draft's head")

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
            self.engine.logger.warning("wts: packing updated weights failed", exc_info=True)
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
            self.engine.logger.warning(
                "wts: weights are being updated; drafts use the head as it was before, until %s",
                self.engine.update_end,
            )
        try:
            self.walkers.check()
        except WalkTimeout as error:
            self.timeouts += 1
            if self.ranks > 1 or self.timeouts >= MOST_TIMEOUTS:
                raise
            self.engine.logger.error(
                "wts: %s. Drafts since the last look may be wrong: greedy output is not affected, "
                "sampled output may be. %s=0 turns walks off",
                error,
                self.engine.switch,
            )
        self.checked = self.clock()

    def _wait(self) -> None:
        device = self.walkers.for_batch(1).head.projection.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def class_of(path: str) -> Any:
    """The class that a dotted path names; its module is imported."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


_Follower: TypeAlias = Callable[[], Callable[[], None] | None]
"""Gives what is to be called; None where its owner is gone."""

_FOLLOWERS = "wts_followers"


def follow(owner: type, name: str, then: Callable[[], None], logger: logging.Logger) -> None:
    """Let `then` run after a method of a class, also where it raised: it may have done a part.

    Where both raise, the method's error is raised and that of `then` is logged. A method is wrapped
    once, whatever follows it.

    Args:
        owner: the class.
        name: of the method.
        then: what follows. The owner of a bound method is not kept alive.
        logger: of errors that are not raised.

    Raises:
        AttributeError: no such method.
    """
    method = getattr(owner, name)
    follower: _Follower = weakref.WeakMethod(then) if inspect.ismethod(then) else lambda: then
    followers: list[_Follower] | None = getattr(method, _FOLLOWERS, None)
    if followers is not None:
        followers.append(follower)
        return
    followers = [follower]

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except Exception:
            _call(followers, name, logger, failed=True)
            raise
        _call(followers, name, logger, failed=False)
        return result

    setattr(wrapped, _FOLLOWERS, followers)
    setattr(owner, name, wrapped)


def _call(followers: list[_Follower], name: str, logger: logging.Logger, *, failed: bool) -> None:
    """Call all that follows a method; the first error is raised, unless the method has one."""
    first: Exception | None = None
    for follower in tuple(followers):
        then = follower()
        if then is None:
            followers.remove(follower)
            continue
        try:
            then()
        except Exception as error:
            if failed or first is not None:
                logger.exception("wts: what follows a failed %s failed too", name)
            else:
                first = error
    if first is not None:
        raise first
