"""Walks of an adopted head, ready before an engine captures: planned, packed, compiled, tried.

Engines capture a graph for each of a few padded batches. Batches share plans in buckets, each made
for its largest batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wts.dtypes import NumberType
from wts.engines.common.engine import Draft
from wts.engines.common.reasons import (
    Reason,
    why_not_draft,
    why_not_gpu,
    why_not_memory,
    why_step_wise,
)
from wts.errors import DeviceError, WalkError
from wts.hardware.gpu import GpuSpec
from wts.heads.base import Head, weights_of
from wts.kernels.packed import CHUNK_ROWS
from wts.kernels.planner import MAX_BATCH, MAX_STEPS, plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.numerics.torch_dtypes import DTYPE_OF
from wts.walk.backends import BackendName
from wts.walk.walker import Walker
from wts.walk.walker_set import WalkerSet

__all__ = ["BATCHES", "Bucket", "Walks", "build_walks", "held_bytes", "packing_bytes"]

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Batches with a plan of their own; others use the next larger one."""

_COPIES = 5  # of the rows that are packed at once, in fp32
_ROW_NUMBERS = 4  # scales and the like of a row, beside each copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The batches that share a plan.

    Args:
        batch: the largest of them.
        resident_share: of the projection, on chip for the whole walk.
        product: whether a matrix product of the hidden states goes before each walk.
        reason: why the engine's own steps run instead; None where walks do.
    """

    batch: int
    resident_share: float
    product: bool
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walks:
    """A head that is ready to walk.

    Args:
        draft: what walks.
        head: the head.
        walkers: ready Walkers of the buckets that walk.
        buckets: all, by rising batch.
        steps: K, steps of a block.
        sampled: whether rows may have a temperature above 0.
        built_s: how long it took.
    """

    draft: Draft
    head: Head
    walkers: WalkerSet
    buckets: tuple[Bucket, ...]
    steps: int
    sampled: bool
    built_s: float

    @property
    def walking(self) -> tuple[int, ...]:
        """The buckets that walk, each by its largest batch."""
        return tuple(bucket.batch for bucket in self.buckets if bucket.reason is None)

    def for_batch(self, batch: int) -> Walker | None:
        """The Walker of a batch; None where the engine's own steps run."""
        for bucket in self.buckets:
            if bucket.batch >= batch:
                return None if bucket.reason is not None else self.walkers.for_batch(batch)
        return None


def build_walks(
    head: Head,
    gpu: GpuSpec,
    *,
    draft: Draft,
    most_requests: int,
    steps: int,
    base_type: NumberType,
    sampled: bool,
    backend: BackendName = "device",
) -> Walks | Reason:
    """Plan, pack and compile for all batches, and try each Walker once.

    Args:
        head: the head; its weights lie where the walks will run.
        gpu: the GPU that the walks are planned for.
        draft: what will walk, and of which engine.
        most_requests: the largest batch that will be asked for; above 64 the engine's own steps
            run.
        steps: K.
        base_type: number type of the base logits.
        sampled: whether rows may have a temperature above 0.
        backend: "device", or "emulator" to try the same on a CPU.

    Returns:
        The walks, or why there are none. Nothing is raised that an engine could serve without.
    """
    asked = _Asked(
        draft=draft,
        head=head,
        gpu=gpu,
        steps=steps,
        base_type=base_type,
        sampled=sampled,
        backend=backend,
    )
    try:
        return _built(asked, most_requests)
    except (WalkError, torch.OutOfMemoryError) as error:
        return _reason_of(error)
    except Exception as error:  # whatever it is, the engine can serve without walks
        draft.engine.logger.warning("wts: building walks failed", exc_info=True)
        return _reason_of(error)


def _reason_of(error: Exception) -> Reason:
    if isinstance(error, torch.OutOfMemoryError):
        return Reason(kind="memory", text=f"building ran out of memory: {error}")
    kind = "gpu" if isinstance(error, DeviceError) else "build"
    return Reason(kind=kind, text=f"{type(error).__name__}: {error}")  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """What walks are asked for, but for the batch: see `build_walks`."""

    draft: Draft
    head: Head
    gpu: GpuSpec
    steps: int
    base_type: NumberType
    sampled: bool
    backend: BackendName

    def plan(self, batch: int, *, sampled: bool) -> ResidentPlan | Reason:
        """The plan of a batch, or why none can be made."""
        try:
            return plan_residency(
                self.head,
                self.gpu,
                batch=batch,
                steps=self.steps,
                sampled=sampled,
                base_type=self.base_type,
            )
        except WalkError as error:
            return Reason(kind="plan", text=str(error))

    def why_not(self) -> Reason | None:
        """Why there are no walks whatever the batch."""
        reason = why_not_gpu(self.gpu)
        reason = reason or why_not_draft(self.draft, self.head.kind, sampled=self.sampled)
        if reason is None and not 1 <= self.steps <= MAX_STEPS:
            return Reason(
                kind="plan", text=f"a block has {self.steps} steps, wanted are 1 to {MAX_STEPS}"
            )
        return reason

    def why_not_memory(self, plans: Sequence[ResidentPlan]) -> Reason | None:
        """Ask whether what these plans will hold fits, and greedy ones beside sampled ones."""
        if self.backend != "device":
            return None
        greedy = [self.plan(plan.request.batch, sampled=False) for plan in plans if self.sampled]
        both = [*plans, *(plan for plan in greedy if not isinstance(plan, Reason))]
        return why_not_memory(
            self.draft.engine,
            needed_bytes=held_bytes(self.head, both) + packing_bytes(self.head),
            free_bytes=torch.cuda.mem_get_info()[0],
        )

    def walkers(self, batches: Sequence[int]) -> WalkerSet:
        """Walkers of these batches, each of which has walked once."""
        walkers = WalkerSet(
            self.head,
            self.gpu,
            batches=batches,
            steps=self.steps,
            base_type=self.base_type,
            sampled=self.sampled,
            backend=self.backend,
        )
        for batch in batches:
            _try_once(walkers.for_batch(batch))
        walkers.check()
        return walkers


def _built(asked: _Asked, most_requests: int) -> Walks | Reason:
    started = time.perf_counter()
    reason = asked.why_not()
    if reason is not None:
        return reason
    most = min(most_requests, MAX_BATCH)
    plans: dict[int, ResidentPlan] = {}
    buckets: list[Bucket] = []
    for batch in sorted({min(batch, most) for batch in BATCHES}):
        plan = asked.plan(batch, sampled=asked.sampled)
        buckets.append(_bucket(batch, plan))
        if not isinstance(plan, Reason) and buckets[-1].reason is None:
            plans[batch] = plan
    if not plans:
        return next(bucket.reason for bucket in buckets if bucket.reason is not None)
    reason = asked.why_not_memory(list(plans.values()))
    if reason is not None:
        return reason
    walkers = asked.walkers(list(plans))
    # A compiler that spills gets a plan of fewer registers, which may read more.
    walked = [
        _bucket(bucket.batch, walkers.for_batch(bucket.batch).plan)
        if bucket.batch in plans
        else bucket
        for bucket in buckets
    ]
    if asked.backend == "device":
        torch.cuda.empty_cache()  # what packing used: a captured graph has memory of its own
    return Walks(
        draft=asked.draft,
        head=asked.head,
        walkers=walkers,
        buckets=tuple(walked),
        steps=asked.steps,
        sampled=asked.sampled,
        built_s=time.perf_counter() - started,
    )


def _bucket(batch: int, plan: ResidentPlan | Reason) -> Bucket:
    """What a batch does under its plan, or without one."""
    if isinstance(plan, Reason):
        return Bucket(batch=batch, resident_share=0.0, product=False, reason=plan)
    return Bucket(
        batch=batch,
        resident_share=plan.placement.resident_share,
        product=plan.request.shape.hidden > 0 and not plan.recurrence.hidden_inside,
        reason=why_step_wise(plan),
    )


def _try_once(walker: Walker) -> None:
    """Walk one step of one request: the first launch loads the kernel, which no capture allows.

    Under a greedy plan beside the sampled one, too.
    """
    plan, head = walker.plan, walker.head
    device = head.projection.device
    noise = Noise(key=0, offset=torch.zeros(1, dtype=torch.int64, device=device))
    for temperature in (1.0, 0.0) if plan.request.sampled else (None,):
        walker(
            torch.zeros(
                1,
                1,
                plan.request.shape.vocab,
                dtype=DTYPE_OF[plan.request.base_type],
                device=device,
            ),
            torch.zeros(1, dtype=torch.int64, device=device),
            hidden=None
            if head.hidden_size is None
            else torch.zeros(1, 1, head.hidden_size, dtype=torch.bfloat16, device=device),
            temperatures=None
            if temperature is None
            else torch.full((1,), temperature, device=device),
            noise=None if temperature is None else noise,
        )


def held_bytes(head: Head, plans: Sequence[ResidentPlan]) -> int:
    """Bytes that walks under these plans will hold, before any is allocated.

    The table is packed once, the projection once for each order of its bytes, and each plan has a
    workspace.
    """
    first = plans[0]
    total = (
        first.request.table_rows * first.request.table_row_bytes
        + 4 * first.request.shape.vocab * first.request.shape.mapped
    )
    total += sum(
        weight.nbytes
        for name, weight in weights_of(head).items()
        if name not in ("table", "projection", "draft_to_target", "gru_input_weight")
    )
    orders = {plan.placement.tile_order: plan for plan in plans}
    total += sum(
        plan.shard.padded_vocab * (plan.request.shape.rank + 4) for plan in orders.values()
    )
    for plan in plans:
        positions = plan.request.batch * plan.request.steps
        total += (
            plan.selection.workspace_words * plan.exchange.word_bytes
            + 8 * plan.recurrence.state_words
        )
        total += positions * (4 * plan.recurrence.hidden_term + 2 * (head.hidden_size or 0))
    return total


def packing_bytes(head: Head) -> int:
    """Bytes that packing takes for a moment beside them."""
    widest = max(head.rank, head.table.shape[1] // 4)
    return _COPIES * 4 * CHUNK_ROWS * (widest + _ROW_NUMBERS)
