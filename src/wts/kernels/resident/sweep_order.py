"""The order in which a warp multiplies its own fragments, and the place of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wts.kernels.resident.units import Place

if TYPE_CHECKING:
    from wts.kernels.resident.plan import ResidencyPlan

__all__ = ["places", "stored_order", "sweep_order"]


def sweep_order(plan: ResidencyPlan) -> list[tuple[int, int]]:
    """(tile, slab) in the order in which a warp multiplies its own."""
    if plan.warpgroups:  # tile after tile: one is judged while the next is multiplied
        return [(tile, slab) for tile in range(plan.warp_tiles) for slab in range(plan.slabs)]
    live = plan.live_accumulators
    order = []
    for phase in range(plan.phases):
        for slab in range(plan.slabs):
            for variant in range(plan.tiles_per_accumulator):
                for i in range(live):
                    tile = (phase * live + i) * plan.tiles_per_accumulator + variant
                    if tile < plan.lone_tiles:
                        order.append((tile, slab))
    return order


def places(plan: ResidencyPlan) -> list[tuple[Place, int]]:
    """Place of each fragment in the order of `sweep_order`, and its index in that place.

    What is streamed is spread evenly over the sweep, so that L2 is asked all the time. Where
    warps multiply alone, every slab has its share of fragments from elsewhere, at its end:
    each has the slab's register fragments in front of it to hide behind.
    """
    if plan.warpgroups:
        return _warpgroup_places(plan)
    order = sweep_order(plan)
    total, shared = len(order), plan.shared_fragments + plan.streamed_fragments
    starts = [i for i in range(total) if i == 0 or order[i][1] != order[i - 1][1]]
    kinds: list[bool] = []
    for start, end in zip(starts, [*starts[1:], total], strict=True):
        count = end * shared // total - start * shared // total
        kinds += [False] * (end - start - count) + [True] * count
    result: list[tuple[Place, int]] = []
    counts = [0, 0]
    for away in kinds:
        index = counts[away]
        counts[away] += 1
        if not away:
            result.append(("register", index))
            continue
        before = index * plan.streamed_fragments // shared
        streamed = (index + 1) * plan.streamed_fragments // shared > before
        result.append(("streamed", before) if streamed else ("shared", index - before))
    return result


def stored_order(plan: ResidencyPlan) -> list[int]:
    """Place among a warp's packed fragments of each (tile, slab), tile after tile.

    What a warp streams lies together, in the order of its use: copies ask for one address after
    the other.
    """
    fragments = plan.warp_tiles * plan.slabs
    if plan.warpgroups or not plan.streamed_fragments:
        return list(range(fragments))
    order = [tile * plan.slabs + slab for tile, slab in sweep_order(plan)]
    found = zip(order, places(plan), strict=True)
    streamed = [fragment for fragment, (place, _) in found if place == "streamed"]
    resident = sorted(set(range(fragments)) - set(streamed))
    stored = [0] * fragments
    for place, fragment in enumerate(streamed + resident):
        stored[fragment] = place
    return stored


def _warpgroup_places(plan: ResidencyPlan) -> list[tuple[Place, int]]:
    """Streamed half tiles spread evenly over the sweep, resident fragments over the rest."""
    units = plan.warp_tiles * plan.slabs // plan.unit_fragments
    streamed = plan.streamed_fragments // plan.unit_fragments
    resident = plan.register_fragments + plan.shared_fragments
    result: list[tuple[Place, int]] = []
    counts = {"register": 0, "shared": 0, "streamed": 0}

    def put(place: Place) -> None:
        result.append((place, counts[place]))
        counts[place] += 1

    for unit in range(units):
        passing = (unit + 1) * streamed // units > unit * streamed // units
        for _ in range(plan.unit_fragments):
            at = counts["register"] + counts["shared"]
            if passing:
                put("streamed")
            elif (at + 1) * plan.shared_fragments // resident > counts["shared"]:
                put("shared")
            else:
                put("register")
    return result
