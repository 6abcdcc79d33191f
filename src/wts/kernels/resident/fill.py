"""Where each fragment goes: registers first, then shared or tensor memory; the rest is streamed."""

from __future__ import annotations

from dataclasses import replace

from wts.kernels.resident.plan import ResidencyPlan
from wts.kernels.resident.units import FRAGMENT_BYTES, TILES_JUDGED

__all__ = ["RING_FRAGMENTS", "RING_UNITS", "place", "place_lone_tiles"]

# Half tiles of a warpgroup's ring: of two batches being multiplied, and of one on its way.
RING_UNITS = 6

# Fragments of a warp's ring, where warps multiply alone: what covers the way from L2. Of bulk
# copies, which also come while blocks exchange: about as many as come in that time.
RING_FRAGMENTS = range(8, 17)
BULK_RING_FRAGMENTS = 16
LEAST_BULK_PLACES = 3


def place(plan: ResidencyPlan, most_registers: int, live: int) -> ResidencyPlan:
    """Place the weights: in registers, then in tensor memory where a plan may, then elsewhere.

    Tiles that share an accumulator are multiplied in the same way, so registers may be left
    unused; of what streams as little, the plan that uses most of them is taken, and of these one
    whose warps read the least from shared memory themselves.
    """
    sharing = plan.tiles_per_accumulator
    plan = replace(plan, tensor_tiles=0, matrix_tiles=0)
    placed = [place_lone_tiles(plan, most_registers, live)]
    if not plan.tensor_limit:
        return placed[0]
    for lone in range((plan.warp_tiles - 1) // sharing * sharing, 0, -sharing):
        tiles = plan.warp_tiles - lone
        splits = (
            replace(plan, tensor_tiles=tiles - matrix, matrix_tiles=matrix)
            for matrix in range(tiles)
        )
        split = next((s for s in splits if s.tensor_columns <= plan.tensor_limit), None)
        if split is not None:
            placed.append(place_lone_tiles(split, most_registers, live))
    fitting = [p for p in placed if p.shared_bytes <= p.shared_limit] or placed
    return min(
        fitting,
        key=lambda p: (
            p.streamed_fragments,
            -p.register_fragments,
            p.shared_fragments + p.matrix_tiles * p.slabs,
            -p.matrix_tiles,
        ),
    )


def place_lone_tiles(plan: ResidencyPlan, most_registers: int, live: int) -> ResidencyPlan:
    """Place what warps multiply themselves; weights of hidden states too, if they displace none.

    Warps that make the latents of few requests together have time to multiply them, and no other
    kernel has to run before the walk. Lanes read eight elements at once.
    """
    if plan.hidden > 0 and plan.hidden % 8 == 0 and plan.groups == 1 and plan.columns <= 2:
        fitting = []
        for places in (2, 1):  # with two, one step's are multiplied while the next one's come
            inside = replace(plan, hidden_inside=True, hidden_places=places)
            inside = _place_projection(inside, most_registers, live)
            if inside.shared_bytes <= inside.shared_limit and inside.streamed_fragments == 0:
                fitting.append(inside)
        if fitting:  # the first one, unless its second place is in the way of base logits
            return max(fitting, key=lambda inside: inside.base_slots)
    plan = replace(plan, hidden_inside=False, hidden_places=1)
    return _place_projection(plan, most_registers, live)


def _place_projection(plan: ResidencyPlan, most_registers: int, live: int) -> ResidencyPlan:
    """Fill registers, then shared memory; stream the rest; stage base logits in what is left."""
    fragments = plan.fragments
    registers = min(fragments, most_registers)
    plan = replace(
        plan,
        register_fragments=registers,
        shared_fragments=fragments - registers,
        streamed_fragments=0,
        ring_units=0,
        phases=-(-plan.lone_accumulators // live),
        base_slots=2,
    )
    if plan.warpgroups and plan.shared_bytes > plan.shared_limit:
        # With one group, base logits of one round: they come while blocks exchange.
        plan = replace(plan, base_slots=1 if plan.groups == 1 else 2)
        return (
            plan if plan.shared_bytes <= plan.shared_limit else _stream_units(plan, most_registers)
        )
    if plan.shared_bytes > plan.shared_limit:
        return _stream_fragments(plan)
    while plan.base_slots < 4:  # further ahead where it costs no residency
        deeper = replace(plan, base_slots=plan.base_slots + 1)
        if deeper.shared_bytes > plan.shared_limit:
            break
        plan = deeper
    return plan


def _stream_fragments(plan: ResidencyPlan) -> ResidencyPlan:
    """What there is no room for passes through warps' rings; too large a plan where none is left.

    A ring of lanes' copies divides what is streamed, so that a fragment has the same place in each
    sweep; of bulk copies some are a fragment shorter.
    """
    too_many = plan.shared_bytes - plan.shared_limit
    lacking = -(-too_many // (plan.sweep_warps * FRAGMENT_BYTES))
    most = plan.shared_fragments
    if plan.copied_together > 1:
        places = max(LEAST_BULK_PLACES, BULK_RING_FRAGMENTS // plan.copied_together)
        least = lacking + places * plan.copied_together
        rings = [(streamed, places) for streamed in range(least, most + 1)]
    else:
        rings = [
            (missing + length, length)
            for missing in range(max(lacking, RING_FRAGMENTS[0]), most + 1)
            for length in reversed(RING_FRAGMENTS)
            if missing % length == 0 and missing + length <= most
        ]
    for streamed, units in rings:
        streaming = replace(
            plan,
            shared_fragments=most - streamed,
            streamed_fragments=streamed,
            ring_units=units,
        )
        if streaming.shared_bytes <= plan.shared_limit:
            return streaming
    return plan


def _stream_units(plan: ResidencyPlan, most_registers: int) -> ResidencyPlan:
    """As few half tiles streamed as there is no room for; too large a plan where none fits."""
    fragments = plan.warp_tiles * plan.slabs
    ring = RING_UNITS if plan.tiles_in_flight > TILES_JUDGED else RING_UNITS - 2
    plan = replace(plan, ring_units=ring)
    for streamed in range(ring * plan.unit_fragments, fragments + 1, plan.unit_fragments):
        registers = min(fragments - streamed, most_registers)
        plan = replace(
            plan,
            register_fragments=registers,
            shared_fragments=fragments - streamed - registers,
            streamed_fragments=streamed,
        )
        if plan.shared_bytes <= plan.shared_limit:
            break
    return plan
