"""Where each fragment goes: registers first, then shared or tensor memory; the rest is streamed."""

from __future__ import annotations

from dataclasses import replace

from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.product import TILES_JUDGED
from wts.kernels.resident.shard import FRAGMENT_BYTES

__all__ = ["RING_FRAGMENTS", "RING_HALVES", "fill", "fill_own_tiles"]

# Half tiles of a warpgroup's ring: of two batches being multiplied, and of one on its way.
RING_HALVES = 6

# Fragments of a warp's ring, where warps multiply alone: what covers the way from L2. Of bulk
# copies, which also come while blocks exchange: about as many as come in that time.
RING_FRAGMENTS = range(8, 17)
BULK_RING_FRAGMENTS = 16
LEAST_BULK_SLOTS = 3


def fill(plan: ResidentPlan, most_registers: int, at_once: int) -> ResidentPlan:
    """Place the weights: in registers, then in tensor memory where a plan may, then elsewhere.

    Tiles that share an accumulator are multiplied in the same way, so registers may be left
    unused; of what streams as little, the plan that uses most of them is taken, and of these one
    whose warps read the least from shared memory themselves.

    Args:
        plan: whatever is placed in it is placed anew.
        most_registers: fragments of a warp in registers.
        at_once: accumulators of a warp at once.
    """
    sharing, tiles = plan.product.tiles_per_accumulator, plan.shard.warp_tiles
    plan = _with_tcgen05_tiles(plan, 0, 0)
    filled = [fill_own_tiles(plan, most_registers, at_once)]
    if not plan.placement.tmem_limit:
        return filled[0]
    for own in range((tiles - 1) // sharing * sharing, 0, -sharing):
        splits = (
            _with_tcgen05_tiles(plan, tiles - own - matrix, matrix) for matrix in range(tiles - own)
        )
        split = next(
            (s for s in splits if s.placement.tmem_columns <= s.placement.tmem_limit), None
        )
        if split is not None:
            filled.append(fill_own_tiles(split, most_registers, at_once))
    return min([one for one in filled if one.fits] or filled, key=_worse)


def _worse(plan: ResidentPlan) -> tuple[int, ...]:
    """Smaller for the better one of two."""
    placement, product = plan.placement, plan.product
    return (
        placement.streamed_fragments,
        -placement.register_fragments,
        placement.shared_fragments + product.matrix_tiles * plan.shard.slabs,
        -product.matrix_tiles,
    )


def _with_tcgen05_tiles(plan: ResidentPlan, tensor: int, matrix: int) -> ResidentPlan:
    product = replace(plan.product, tensor_tiles=tensor, matrix_tiles=matrix)
    return plan.replaced(product=product)


def fill_own_tiles(plan: ResidentPlan, most_registers: int, at_once: int) -> ResidentPlan:
    """Place what warps multiply themselves; weights of hidden states too, if they displace none.

    Warps that make the latents of few requests together have time to multiply them, and no other
    kernel has to run before the walk. Lanes read eight elements at once.
    """
    hidden, product = plan.request.shape.hidden, plan.product
    if hidden > 0 and hidden % 8 == 0 and product.groups == 1 and product.columns <= 2:
        fitting = []
        for buffers in (2, 1):  # with two, one step's are multiplied while the next one's come
            inside = _with_hidden(plan, inside=True, buffers=buffers)
            inside = _fill_projection(inside, most_registers, at_once)
            if inside.fits and inside.placement.streamed_fragments == 0:
                fitting.append(inside)
        if fitting:  # the first one, unless its second buffer is in the way of base logits
            return max(fitting, key=lambda inside: inside.rounds.base_buffers)
    plan = _with_hidden(plan, inside=False, buffers=1)
    return _fill_projection(plan, most_registers, at_once)


def _with_hidden(plan: ResidentPlan, *, inside: bool, buffers: int) -> ResidentPlan:
    recurrence = replace(plan.recurrence, hidden_inside=inside, hidden_buffers=buffers)
    return plan.replaced(recurrence=recurrence)


def _with_base_buffers(plan: ResidentPlan, buffers: int) -> ResidentPlan:
    return plan.replaced(rounds=replace(plan.rounds, base_buffers=buffers))


def _with_fragments(
    plan: ResidentPlan, *, registers: int, shared: int, streamed: int, ring_slots: int
) -> ResidentPlan:
    placement = replace(
        plan.placement,
        register_fragments=registers,
        shared_fragments=shared,
        streamed_fragments=streamed,
        ring_slots=ring_slots,
    )
    return plan.replaced(placement=placement)


def _fill_projection(plan: ResidentPlan, most_registers: int, at_once: int) -> ResidentPlan:
    """Fill registers, then shared memory; stream the rest; stage base logits in what is left."""
    fragments = plan.product.fragments
    registers = min(fragments, most_registers)
    passes = -(-plan.product.own_accumulators // at_once)
    plan = plan.replaced(product=replace(plan.product, sweep_passes=passes))
    plan = _with_base_buffers(plan, 2)
    plan = _with_fragments(
        plan, registers=registers, shared=fragments - registers, streamed=0, ring_slots=0
    )
    if plan.product.warpgroups and not plan.fits:
        # With one group, base logits of one round: they come while blocks exchange.
        plan = _with_base_buffers(plan, 1 if plan.product.groups == 1 else 2)
        return plan if plan.fits else _stream_halves(plan, most_registers)
    if not plan.fits:
        return _stream_fragments(plan)
    while plan.rounds.base_buffers < 4:  # further ahead where it costs no residency
        deeper = _with_base_buffers(plan, plan.rounds.base_buffers + 1)
        if not deeper.fits:
            break
        plan = deeper
    return plan


def _stream_fragments(plan: ResidentPlan) -> ResidentPlan:
    """What there is no room for passes through warps' rings; too large a plan where none is left.

    A ring of lanes' copies divides what is streamed, so that a fragment has the same slot in each
    sweep; of bulk copies some are a fragment shorter.
    """
    placement = plan.placement
    too_many = plan.shared_bytes - plan.gpu.shared_bytes_per_block
    lacking = -(-too_many // (plan.shard.sweep_warps * FRAGMENT_BYTES))
    most = placement.shared_fragments
    if placement.copied_together > 1:
        slots = max(LEAST_BULK_SLOTS, BULK_RING_FRAGMENTS // placement.copied_together)
        least = lacking + slots * placement.copied_together
        rings = [(streamed, slots) for streamed in range(least, most + 1)]
    else:
        rings = [
            (missing + length, length)
            for missing in range(max(lacking, RING_FRAGMENTS[0]), most + 1)
            for length in reversed(RING_FRAGMENTS)
            if missing % length == 0 and missing + length <= most
        ]
    for streamed, slots in rings:
        streaming = _with_fragments(
            plan,
            registers=placement.register_fragments,
            shared=most - streamed,
            streamed=streamed,
            ring_slots=slots,
        )
        if streaming.fits:
            return streaming
    return plan


def _stream_halves(plan: ResidentPlan, most_registers: int) -> ResidentPlan:
    """As few half tiles streamed as there is no room for; too large a plan where none fits."""
    fragments, half = plan.shard.warp_fragments, plan.placement.chunk_fragments
    ring = RING_HALVES if plan.product.tiles_in_flight > TILES_JUDGED else RING_HALVES - 2
    plan = plan.replaced(placement=replace(plan.placement, ring_slots=ring))
    for streamed in range(ring * half, fragments + 1, half):
        registers = min(fragments - streamed, most_registers)
        plan = _with_fragments(
            plan,
            registers=registers,
            shared=fragments - streamed - registers,
            streamed=streamed,
            ring_slots=ring,
        )
        if plan.fits:
            break
    return plan
