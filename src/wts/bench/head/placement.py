"""Where the weights of a block lie best: the same walk with more and fewer fragments in registers.

A kernel that the compiler spills is timed all the same, and its record says how much was spilled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from wts.bench import clock, record
from wts.bench.clock import Timing
from wts.bench.head.cases import HeadCase
from wts.bench.head.ours import Ours, walker_call
from wts.bench.head.session import HeadBench
from wts.bench.record import Environment
from wts.heads.base import Head
from wts.kernels.launch import LoadedKernel
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.variants import with_register_fragments
from wts.walk.backends import DeviceBackend
from wts.walk.walker import Walker

__all__ = ["Placed", "placed_walker", "record_of", "sweep", "sweep_plans"]

_TIMEOUT_MS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement, timed at one length."""

    case: HeadCase
    steps: int
    plan: ResidentPlan
    spill_bytes: int
    timing: Timing


def placed_walker(head: Head, plan: ResidentPlan) -> tuple[Walker, int]:
    """A device Walker of exactly this plan, and the bytes that its kernel spills."""
    device = torch.device("cuda", torch.cuda.current_device())
    kernel = LoadedKernel(head, plan, device, _TIMEOUT_MS, spills=True)
    return Walker(head, plan, backend=DeviceBackend(kernel)), kernel.spill_bytes


def sweep(
    bench: HeadBench, case: HeadCase, fragments: Sequence[int], say: Callable[[str], None]
) -> list[Placed]:
    """Compare and time a case with each number of fragments in registers, all in turns.

    Raises:
        WalkFault: a walk gave other tokens than it must.
    """
    base = bench.walks.plan(case, bench.material.head(case))
    plans = [with_register_fragments(base, count) for count in fragments]
    return sweep_plans(bench, case, plans, say)


def sweep_plans(
    bench: HeadBench, case: HeadCase, plans: Sequence[ResidentPlan], say: Callable[[str], None]
) -> list[Placed]:
    """Compare and time a case under each of these plans for its head, all in turns.

    Of `variants.with_choice`, for one: how the choices for registers, rings and loads ahead are
    chosen.

    Raises:
        WalkFault: a walk gave other tokens than it must.
    """
    head = bench.material.head(case)
    inputs = {steps: bench.material.inputs(case, steps) for steps in case.steps}
    variants, made = {}, {}
    for plan in plans:
        walker, spilled = placed_walker(head, plan)
        ours = Ours(walker=walker, head=head)
        bench.walks.check(case, "wts", ours, whole=False)
        count = plan.placement.register_fragments
        say(f"{count} fragments in registers, {spilled} bytes spilled: tokens equal")
        made[plan.hash] = (walker, spilled)
        for steps in case.steps:
            variants[f"{plan.hash}@{steps}"] = walker_call(inputs[steps], ours.walk)
    timings = clock.time_replays(
        clock.capture(variants), cache="cold", control=bench.control, rounds=bench.rounds
    )
    for walker, _ in made.values():
        walker.check()
    return [
        Placed(
            case=case,
            steps=steps,
            plan=walker.plan,
            spill_bytes=spilled,
            timing=timings[f"{name}@{steps}"],
        )
        for name, (walker, spilled) in made.items()
        for steps in case.steps
    ]


def record_of(placed: Placed, *, run_id: str, environment: Environment) -> dict[str, object]:
    """The record of a placement."""
    case, plan, timing = placed.case, placed.plan, placed.timing
    return record.build(
        environment,
        bench="placement",
        run_id=run_id,
        path="wts",
        head=case.head,
        weights=plan.request.weights,
        V=case.vocab,
        r=case.rank,
        B=case.batch,
        K=placed.steps,
        T=case.temperature,
        cache="cold",
        p50_us=round(timing.p50_us, 3),
        p05_us=round(timing.p05_us, 3),
        p95_us=round(timing.p95_us, 3),
        n=timing.num_samples,
        inputs="random",
        excludes="",
        resident_share=plan.placement.resident_share,
        plan=plan.hash,
        register_fragments=plan.placement.register_fragments,
        shared_fragments=plan.placement.shared_fragments,
        streamed_fragments=plan.placement.streamed_fragments,
        spill_bytes=placed.spill_bytes,
    )
