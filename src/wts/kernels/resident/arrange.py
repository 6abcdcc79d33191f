"""A measured choice made into a plan, and what to try when a compiler spills."""

from __future__ import annotations

from dataclasses import replace

from wts.errors import PlanError
from wts.kernels.resident.choices import Choice, choices_for
from wts.kernels.resident.fill import fill
from wts.kernels.resident.plan import ResidentPlan

__all__ = ["arrange", "first_that_fits", "with_fewer_registers", "with_single_warps"]

LEAST_SWEEP_REGISTERS = 184
MOST_UNROLLED_TILES = 20  # of a warp of a warpgroup: more take the compiler minutes


def first_that_fits(unplaced: ResidentPlan, widest: int) -> ResidentPlan:
    """The plan of the first choice that can be; of the last one, too large, where none can."""
    plan = unplaced
    for choice in choices_for(unplaced, widest, streaming=False):
        plan = arrange(unplaced, choice)
        if not plan.fits:
            continue  # large shards may leave no room to stage so many requests' base logits
        warpgroups, placement = plan.product.warpgroups, plan.placement
        if warpgroups and plan.shard.warp_tiles > MOST_UNROLLED_TILES:
            continue
        # Where little streams, and by warpgroups, the choice for resident weights is as good.
        streamed = placement.streamed_fragments
        resident = placement.register_fragments + placement.shared_fragments
        if streamed == 0 or (warpgroups and streamed < resident):
            return plan
        for other in choices_for(unplaced, widest, streaming=True):
            if other.columns == plan.product.columns:
                streaming = arrange(unplaced, other)
                if streaming.fits:
                    return streaming
        return plan
    return plan


def arrange(plan: ResidentPlan, choice: Choice) -> ResidentPlan:
    """The same rows arranged as a choice says; it may need more shared memory than there is."""
    groups = -(-plan.request.batch // choice.columns)
    warpgroups = choice.instruction == "wgmma"
    sharing = 1 if warpgroups else max(1, 4 // choice.columns)
    accumulators = -(-plan.shard.warp_tiles // sharing)
    operand_slabs = choice.operands or plan.shard.slabs
    plan = plan.replaced(
        product=replace(
            plan.product,
            instruction=choice.instruction,
            columns=choice.columns,
            groups=groups,
            tiles_per_accumulator=-(-plan.shard.warp_tiles // accumulators),
            queue_depth=max(1, choice.queue),
            operand_slabs=operand_slabs,
            tiles_in_flight=choice.live if warpgroups else 1,
        ),
        placement=replace(plan.placement, copied_together=choice.copied),
        roles=replace(
            plan.roles,
            sweep_registers=choice.registers[0],
            service_registers=choice.registers[1],
            columns_per_wait=choice.together,
        ),
        rounds=replace(plan.rounds, exchange_lag=1 if groups > 2 else 0),
    )
    # A longer latent takes as many registers.
    longer = 0 if warpgroups else max(0, operand_slabs - 8) // 2
    return fill(plan, choice.fragments - longer, accumulators if warpgroups else choice.live)


def with_fewer_registers(plan: ResidentPlan) -> ResidentPlan:
    """The same rows with four fragments fewer in registers, for a compiler that spilled.

    Half of what is gained is left to the sweeping warps, half goes to the service warps: either may
    have spilled.

    Raises:
        PlanError: too few are left to take away.
    """
    registers = plan.placement.register_fragments
    if registers <= 8:
        raise PlanError(
            f"plan {plan.hash}: wanted more than 8 fragments in registers, found "
            f"{registers}; report this plan: {plan!r}"
        )
    # Fewer loads ahead and more sums at once are what else was seen to help where tiles are many.
    product, roles = plan.product, plan.roles
    shift = 8 if roles.sweep_registers > LEAST_SWEEP_REGISTERS else 0
    fewer = plan.replaced(
        product=replace(product, queue_depth=min(product.queue_depth, 2)),
        roles=replace(
            roles,
            sweep_registers=roles.sweep_registers - shift,
            service_registers=roles.service_registers + 2 * shift,
        ),
    )
    fewer = fill(fewer, registers - 4, product.own_accumulators if product.warpgroups else 5)
    if not fewer.fits:
        raise PlanError(
            f"plan {plan.hash}: wanted room in shared memory for four more fragments a warp, found "
            f"none; report this plan: {plan!r}"
        )
    return fewer


def with_single_warps(plan: ResidentPlan) -> ResidentPlan:
    """The same rows and batch for warps that multiply alone.

    For a warpgroup's plan that a compiler spills and that has no register left to give.
    """
    return first_that_fits(plan, widest=4)
