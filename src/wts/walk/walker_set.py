"""Walkers of one head for several batches, each batch under the plan that is made for it.

The table is packed once, the projection once for each order of its bytes (`placement.tile_order`):
plans for few requests have one, those for warpgroups another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from wts.dtypes import NumberType, WeightType
from wts.errors import CompileError, InputError, PlanError
from wts.hardware.gpu import GpuSpec
from wts.heads.base import Head
from wts.kernels.launch import check_each
from wts.kernels.packed import packed_bytes
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.walk.backends import BackendName
from wts.walk.walker import Walker

__all__ = ["WalkerSet"]

logger = logging.getLogger("wts")


class WalkerSet:
    """One head, ready to walk at any batch up to the largest of `batches`.

    Args:
        head: the head.
        gpu: a GpuSpec, or a name that `wts.hardware.gpu.gpu_spec` knows.
        batches: the batches to plan for; others use the next larger one.
        steps: most steps of a walk.
        base_type: number type of the base logits.
        weights: what the rows of the projection are kept as, "int8" or "bf16".
        exact: whether walks are exact (docs/exact.md).
        sampled: whether rows may have a temperature above 0. On the device batches without such a
            row then walk under greedy plans, where there are some: see `Walker`, `greedy_plan`.
        backend: of the Walkers.
        timeout_ms: of the Walkers.

    Raises:
        InputError: no batches.
        WalkError: what planning or a Walker raises.
    """

    walkers: tuple[Walker, ...]
    """Its Walkers, by rising batch."""

    def __init__(
        self,
        head: Head,
        gpu: GpuSpec | str,
        *,
        batches: Sequence[int],
        steps: int,
        base_type: NumberType = "bf16",
        weights: WeightType = "int8",
        exact: bool = False,
        sampled: bool = False,
        backend: BackendName = "device",
        timeout_ms: int = 2000,
    ) -> None:
        if not batches:
            raise InputError.mismatch(
                "batches", wanted="at least one", found="none", fix="name the batches to walk"
            )
        walkers: list[Walker] = []
        plan_of = partial(
            plan_residency,
            head,
            gpu,
            steps=steps,
            base_type=base_type,
            weights=weights,
            exact=exact,
        )
        for batch in sorted(set(batches)):
            plan = plan_of(batch=batch, sampled=sampled)
            walker_of = partial(
                Walker, head, plan, backend=backend, timeout_ms=timeout_ms, sharing=walkers
            )
            walkers.append(
                _with_greedy_plan(walker_of, partial(plan_of, batch=batch))
                if sampled
                else walker_of()
            )
        self.walkers = tuple(walkers)

    def for_batch(self, batch: int) -> Walker:
        """The Walker of the smallest plan that takes `batch` requests.

        Raises:
            InputError: more requests than any plan takes.
        """
        for walker in self.walkers:
            if walker.plan.request.batch >= batch:
                return walker
        raise InputError.mismatch(
            "batch",
            wanted=f"at most {self.walkers[-1].plan.request.batch}, as planned",
            found=batch,
            fix="name a larger batch when the set is made",
        )

    @property
    def plans(self) -> tuple[ResidentPlan, ...]:
        """The plans, by rising batch."""
        return tuple(walker.plan for walker in self.walkers)

    @property
    def greedy_beside(self) -> bool:
        """Whether batches without a sampled row walk under greedy plans."""
        return any(walker.greedy_plan is not None for walker in self.walkers)

    @property
    def memory_bytes(self) -> int:
        """Bytes held beyond the head; what several Walkers share counts once."""
        packs = [one for walker in self.walkers for one in walker.packs]
        return packed_bytes(packs) + sum(walker.workspace_bytes for walker in self.walkers)

    def refresh(self, head: Head) -> None:
        """Take changed weights in place, each packed once; see `Walker.refresh`."""
        for walker in self.walkers:  # so that all or none have them
            walker.check_refresh(head)
        for number, walker in enumerate(self.walkers):
            walker.take(head, self.walkers[:number])

    def check(self) -> None:
        """Wait for all walks so far and raise if one was given up; see `Walker.check`.

        Each Walker is asked, so that each that gave up is cleared; the first error is raised.
        """
        check_each(self.walkers)


def _with_greedy_plan(
    walker_of: Callable[..., Walker], plan_of: Callable[..., ResidentPlan]
) -> Walker:
    """A Walker with a greedy plan; without, as the log says, where none can be made."""
    try:
        return walker_of(greedy_plan=plan_of(sampled=False))
    except (PlanError, CompileError) as error:
        walker = walker_of()  # what is wrong with both is raised here
        logger.warning("wts: greedy batches walk under the plan for sampled rows: %s", error)
        return walker
