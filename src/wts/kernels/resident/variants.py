"""Plans that `plan_residency` does not make, for benchmarks and tests of how it chooses."""

from __future__ import annotations

from dataclasses import replace

from wts.errors import PlanError, check_range
from wts.kernels.resident.arrange import arrange
from wts.kernels.resident.choices import Choice
from wts.kernels.resident.fill import RING_FRAGMENTS, RING_UNITS, place_lone_tiles
from wts.kernels.resident.plan import ResidencyPlan
from wts.kernels.resident.units import TILES_JUDGED

__all__ = ["streaming_plan", "with_async_tiles", "with_choice", "with_register_fragments"]


def streaming_plan(plan: ResidencyPlan) -> ResidencyPlan:
    """The same walk with nothing resident: every weight comes from L2 in every step.

    For benchmarks only: it separates what one launch saves from what residency saves.

    Args:
        plan: of a Markov head, as `plan_residency` makes it.

    Raises:
        PlanError: a head that reads hidden states, or a shard that no ring divides.
    """
    if plan.kind != "markov":
        raise PlanError(f"plan: wanted one of a markov head, found {plan.kind}; stream no other")
    plan = replace(plan, tensor_limit=0, tensor_tiles=0, matrix_tiles=0)
    fragments = plan.warp_tiles * plan.slabs
    if plan.warpgroups:
        # Whole tiles are in flight at once: more of them than a ring holds would wait for ever.
        plan = replace(plan, tiles_in_flight=TILES_JUDGED)
        ring = min(RING_UNITS, fragments // plan.unit_fragments)
    else:
        plan = replace(plan, copied_together=1)
        whole = [length for length in RING_FRAGMENTS if fragments % length == 0]
        ring = max(whole, default=0)
    streaming = replace(
        plan,
        register_fragments=0,
        shared_fragments=0,
        streamed_fragments=fragments,
        ring_units=ring,
    )
    if ring == 0 or streaming.shared_bytes > streaming.shared_limit:
        raise PlanError(
            f"plan {plan.hash}: wanted {fragments} fragments of a warp in whole rings that fit in "
            f"shared memory, found none; stream a head with more rows"
        )
    return streaming


def with_register_fragments(plan: ResidencyPlan, fragments: int) -> ResidencyPlan:
    """The same rows with another number of fragments in registers, the others placed behind them.

    For benchmarks: how a plan's placement was chosen. A compiler may spill such a plan.

    Raises:
        PlanError: none or more than a warp has.
    """
    check_range("fragments", fragments, 1, plan.fragments)
    live = plan.accumulators if plan.warpgroups else plan.live_accumulators
    return place_lone_tiles(plan, fragments, live)


def with_async_tiles(plan: ResidencyPlan, tensor: int, matrix: int) -> ResidencyPlan:
    """The same rows with other numbers of each warp's tiles multiplied by tcgen05.

    For benchmarks and tests. A compiler may spill such a plan.

    Args:
        plan: one with `tensor_memory`.
        tensor: tiles in tensor memory.
        matrix: tiles in shared memory.

    Raises:
        PlanError: a plan without, too few tiles left to a warp itself, tiles of one accumulator
            that not all would be multiplied in the same way, or more than there is room for.
    """
    left = plan.warp_tiles - tensor - matrix
    if min(tensor, matrix) < 0 or left < 1 or left % plan.tiles_per_accumulator:
        raise PlanError.mismatch(
            "tensor, matrix",
            wanted=f"so many that a multiple of {plan.tiles_per_accumulator} of {plan.warp_tiles} "
            "tiles is left",
            found=f"{tensor}, {matrix}",
            fix="give other numbers",
        )
    found = replace(plan, tensor_tiles=tensor, matrix_tiles=matrix)
    if found.tensor_columns > plan.tensor_limit:
        raise PlanError.mismatch(
            "tensor",
            wanted=f"at most {plan.tensor_limit} columns of tensor memory",
            found=f"{tensor} tiles, {found.tensor_columns} columns with their sums",
            fix="give fewer, and plan with tensor_memory=True",
        )
    found = place_lone_tiles(found, plan.register_fragments, plan.live_accumulators)
    if found.shared_bytes > found.shared_limit:
        raise PlanError.mismatch(
            "matrix",
            wanted=f"at most {found.shared_limit} bytes of shared memory",
            found=f"{matrix} tiles, {found.shared_bytes} bytes in all",
            fix="give fewer",
        )
    return found


def with_choice(plan: ResidencyPlan, choice: Choice) -> ResidencyPlan:
    """The same walk divided as another choice says.

    For benchmarks: how the choices were chosen. A compiler may spill such a plan.

    Raises:
        PlanError: it does not fit in shared memory.
    """
    other = arrange(plan, choice)
    if other.shared_bytes > other.shared_limit:
        raise PlanError(
            f"{choice}: wanted at most {other.shared_limit} bytes of shared memory, found "
            f"{other.shared_bytes}; keep more fragments in registers"
        )
    return other
