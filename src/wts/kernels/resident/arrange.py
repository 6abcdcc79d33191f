"""A measured choice made into a plan, and what to try when a compiler spills."""

from __future__ import annotations

from dataclasses import replace

from wts.errors import PlanError
from wts.kernels.resident.choices import Choice, choices_for
from wts.kernels.resident.fill import place
from wts.kernels.resident.plan import ResidencyPlan

__all__ = ["arrange", "first_that_fits", "with_fewer_registers", "with_lone_warps"]

LEAST_SWEEP_REGISTERS = 184
MOST_UNROLLED_TILES = 20  # of a warp of a warpgroup: more take the compiler minutes


def first_that_fits(unplaced: ResidencyPlan, widest: int) -> ResidencyPlan:
    """The plan of the first choice that can be; of the last one, too large, where none can."""
    plan = unplaced
    for choice in choices_for(unplaced, widest, streaming=False):
        plan = arrange(unplaced, choice)
        if plan.shared_bytes > plan.shared_limit:
            continue  # large shards may leave no room to stage so many requests' base logits
        if plan.warpgroups and plan.warp_tiles > MOST_UNROLLED_TILES:
            continue
        # Where little streams, and by warpgroups, the choice for resident weights is as good.
        resident = plan.register_fragments + plan.shared_fragments
        if plan.streamed_fragments == 0 or (plan.warpgroups and plan.streamed_fragments < resident):
            return plan
        for other in choices_for(unplaced, widest, streaming=True):
            if other.columns == plan.columns:
                streaming = arrange(unplaced, other)
                if streaming.shared_bytes <= streaming.shared_limit:
                    return streaming
        return plan
    return plan


def arrange(plan: ResidencyPlan, choice: Choice) -> ResidencyPlan:
    """The same rows arranged as a choice says; it may need more shared memory than there is."""
    groups = -(-plan.batch // choice.columns)
    warpgroups = choice.instruction == "wgmma"
    sharing = 1 if warpgroups else max(1, 4 // choice.columns)
    accumulators = -(-plan.warp_tiles // sharing)
    plan = replace(
        plan,
        instruction=choice.instruction,
        sweep_registers=choice.registers[0],
        service_registers=choice.registers[1],
        columns=choice.columns,
        groups=groups,
        tiles_per_accumulator=-(-plan.warp_tiles // accumulators),
        queue_depth=max(1, choice.queue),
        operand_slabs=choice.operands or plan.slabs,
        copied_together=choice.copied,
        tiles_in_flight=choice.live if warpgroups else 1,
        served_together=choice.together,
        exchange_lag=1 if groups > 2 else 0,
    )
    longer = (
        0 if warpgroups else max(0, plan.operand_slabs - 8) // 2
    )  # a longer latent takes as many
    live = accumulators if warpgroups else choice.live
    return place(plan, choice.fragments - longer, live)


def with_fewer_registers(plan: ResidencyPlan) -> ResidencyPlan:
    """The same rows with four fragments fewer in registers, for a compiler that spilled.

    Half of what is gained is left to the sweeping warps, half goes to the service warps: either may
    have spilled.

    Raises:
        PlanError: too few are left to take away.
    """
    if plan.register_fragments <= 8:
        raise PlanError(
            f"plan {plan.hash}: wanted more than 8 fragments in registers, found "
            f"{plan.register_fragments}; report this plan: {plan!r}"
        )
    # Fewer loads ahead and more sums at once are what else was seen to help where tiles are many.
    live = plan.lone_accumulators if plan.warpgroups else 5
    shift = 8 if plan.sweep_registers > LEAST_SWEEP_REGISTERS else 0
    fewer = replace(
        plan,
        queue_depth=min(plan.queue_depth, 2),
        sweep_registers=plan.sweep_registers - shift,
        service_registers=plan.service_registers + 2 * shift,
    )
    fewer = place(fewer, plan.register_fragments - 4, live)
    if fewer.shared_bytes > fewer.shared_limit:
        raise PlanError(
            f"plan {plan.hash}: wanted room in shared memory for four more fragments a warp, found "
            f"none; report this plan: {plan!r}"
        )
    return fewer


def with_lone_warps(plan: ResidencyPlan) -> ResidencyPlan:
    """The same rows and batch for warps that multiply alone.

    For a warpgroup's plan that a compiler spills and that has no register left to give.
    """
    return first_that_fits(plan, widest=4)
