"""Plans that `plan_residency` does not make, for benchmarks and tests of how it chooses."""

from __future__ import annotations

from dataclasses import replace

from wts.errors import PlanError, check_range
from wts.kernels.resident.arrange import arrange
from wts.kernels.resident.choices import Choice
from wts.kernels.resident.fill import RING_FRAGMENTS, RING_HALVES, fill_own_tiles
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.product import TILES_JUDGED
from wts.selection import SIZES

__all__ = [
    "streaming_plan",
    "with_choice",
    "with_register_fragments",
    "with_selection",
    "with_tcgen05_tiles",
]


def streaming_plan(plan: ResidentPlan) -> ResidentPlan:
    """The same walk with nothing resident: every weight comes from L2 in every step.

    For benchmarks only: it separates what one launch saves from what residency saves.

    Args:
        plan: of a Markov head, as `plan_residency` makes it.

    Raises:
        PlanError: a head that reads hidden states, or a shard that no ring divides.
    """
    kind, fragments = plan.request.shape.kind, plan.shard.warp_fragments
    if kind != "markov":
        raise PlanError(f"plan: wanted one of a markov head, found {kind}; stream no other")
    product = replace(plan.product, tensor_tiles=0, matrix_tiles=0)
    copied_together = plan.placement.copied_together
    if product.warpgroups:
        # Whole tiles are in flight at once: more of them than a ring holds would wait for ever.
        product = replace(product, tiles_in_flight=TILES_JUDGED)
        ring = min(RING_HALVES, fragments // plan.placement.chunk_fragments)
    else:
        copied_together = 1
        whole = [length for length in RING_FRAGMENTS if fragments % length == 0]
        ring = max(whole, default=0)
    streaming = plan.replaced(
        request=replace(plan.request, tensor_memory=False),
        product=product,
        placement=replace(
            plan.placement,
            register_fragments=0,
            shared_fragments=0,
            streamed_fragments=fragments,
            ring_slots=ring,
            copied_together=copied_together,
        ),
    )
    if ring == 0 or not streaming.fits:
        raise PlanError(
            f"plan {plan.hash}: wanted {fragments} fragments of a warp in whole rings that fit in "
            f"shared memory, found none; stream a head with more rows"
        )
    return streaming


def with_register_fragments(plan: ResidentPlan, fragments: int) -> ResidentPlan:
    """The same rows with another number of fragments in registers, the others placed behind them.

    For benchmarks: how a plan's placement was chosen. A compiler may spill such a plan.

    Raises:
        PlanError: none or more than a warp has.
    """
    product = plan.product
    check_range("fragments", fragments, 1, product.fragments)
    at_once = product.accumulators if product.warpgroups else product.accumulators_at_once
    return fill_own_tiles(plan, fragments, at_once)


def with_tcgen05_tiles(plan: ResidentPlan, tensor: int, matrix: int) -> ResidentPlan:
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
    sharing, tiles, limit = (
        plan.product.tiles_per_accumulator,
        plan.shard.warp_tiles,
        plan.placement.tmem_limit,
    )
    left = tiles - tensor - matrix
    if min(tensor, matrix) < 0 or left < 1 or left % sharing:
        raise PlanError.mismatch(
            "tensor, matrix",
            wanted=f"so many that a multiple of {sharing} of {tiles} tiles is left",
            found=f"{tensor}, {matrix}",
            fix="give other numbers",
        )
    product = replace(plan.product, tensor_tiles=tensor, matrix_tiles=matrix)
    found = plan.replaced(product=product)
    if found.placement.tmem_columns > limit:
        raise PlanError.mismatch(
            "tensor",
            wanted=f"at most {limit} columns of tensor memory",
            found=f"{tensor} tiles, {found.placement.tmem_columns} columns with their sums",
            fix="give fewer, and plan with tensor_memory=True",
        )
    registers, at_once = plan.placement.register_fragments, plan.product.accumulators_at_once
    found = fill_own_tiles(found, registers, at_once)
    if not found.fits:
        raise PlanError.mismatch(
            "matrix",
            wanted=f"at most {found.gpu.shared_bytes_per_block} bytes of shared memory",
            found=f"{matrix} tiles, {found.shared_bytes} bytes in all",
            fix="give fewer",
        )
    return found


def with_choice(plan: ResidentPlan, choice: Choice) -> ResidentPlan:
    """The same walk divided as another choice says.

    For benchmarks: how the choices were chosen. A compiler may spill such a plan.

    Raises:
        PlanError: it does not fit in shared memory.
    """
    other = arrange(plan, choice)
    if not other.fits:
        raise PlanError(
            f"{choice}: wanted at most {other.gpu.shared_bytes_per_block} bytes of shared memory, "
            f"found {other.shared_bytes}; keep more fragments in registers"
        )
    return other


def with_selection(plan: ResidentPlan, name: str) -> ResidentPlan:
    """The same rows in the same places, with tokens chosen in another way.

    For tests: what one selection changes. A compiler may spill such a plan.
    """
    return plan.replaced(
        request=replace(plan.request, selection=name),
        selection=SIZES[name](
            request=plan.request,
            shard=plan.shard,
            product=plan.product,
            roles=plan.roles,
            rounds=plan.rounds,
            recurrence=plan.recurrence,
        ),
    )
