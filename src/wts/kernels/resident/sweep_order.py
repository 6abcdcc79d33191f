"""The order in which a warp multiplies its own fragments, and the memory of each of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from wts.kernels.resident.product import Product

__all__ = ["Memory", "memories", "stored_order", "sweep_order"]

Memory: TypeAlias = Literal["register", "shared", "streamed"]  # of a fragment


def sweep_order(product: Product) -> list[tuple[int, int]]:
    """(tile, slab) in the order in which a warp multiplies its own."""
    slabs = product.shard.slabs
    if product.warpgroups:  # tile after tile: one is judged while the next is multiplied
        return [(tile, slab) for tile in range(product.shard.warp_tiles) for slab in range(slabs)]
    at_once = product.accumulators_at_once
    order = []
    for sweep_pass in range(product.sweep_passes):
        for slab in range(slabs):
            for variant in range(product.tiles_per_accumulator):
                for i in range(at_once):
                    tile = (sweep_pass * at_once + i) * product.tiles_per_accumulator + variant
                    if tile < product.own_tiles:
                        order.append((tile, slab))
    return order


def memories(
    product: Product, *, shared: int, streamed: int, at_once: int
) -> list[tuple[Memory, int]]:
    """Memory of each fragment in the order of `sweep_order`, and its index in that memory.

    What is streamed is spread evenly over the sweep, so that L2 is asked all the time. Where
    warps multiply alone, every slab has its share of fragments from elsewhere, at its end:
    each has the slab's register fragments in front of it to hide behind.

    Args:
        shared, streamed: fragments of a warp in shared memory, and in L2.
        at_once: fragments that a warpgroup streams together.
    """
    if product.warpgroups:
        return _warpgroup_memories(product, shared, streamed, at_once)
    order = sweep_order(product)
    total, elsewhere = len(order), shared + streamed
    starts = [i for i in range(total) if i == 0 or order[i][1] != order[i - 1][1]]
    kinds: list[bool] = []
    for start, end in zip(starts, [*starts[1:], total], strict=True):
        count = end * elsewhere // total - start * elsewhere // total
        kinds += [False] * (end - start - count) + [True] * count
    result: list[tuple[Memory, int]] = []
    counts = [0, 0]
    for away in kinds:
        index = counts[away]
        counts[away] += 1
        if not away:
            result.append(("register", index))
            continue
        before = index * streamed // elsewhere
        passing = (index + 1) * streamed // elsewhere > before
        result.append(("streamed", before) if passing else ("shared", index - before))
    return result


def stored_order(product: Product, found: list[tuple[Memory, int]]) -> list[int]:
    """Number among a warp's packed fragments of each (tile, slab), tile after tile.

    What a warp streams lies together, in the order of its use: copies ask for one address after
    the other.

    Args:
        found: where each is, as `memories` says it.
    """
    fragments, slabs = product.shard.warp_fragments, product.shard.slabs
    if product.warpgroups or all(memory != "streamed" for memory, _ in found):
        return list(range(fragments))
    order = [tile * slabs + slab for tile, slab in sweep_order(product)]
    passing = [
        fragment for fragment, (memory, _) in zip(order, found, strict=True) if memory == "streamed"
    ]
    resident = sorted(set(range(fragments)) - set(passing))
    stored = [0] * fragments
    for number, fragment in enumerate(passing + resident):
        stored[fragment] = number
    return stored


def _warpgroup_memories(
    product: Product, shared: int, streamed: int, at_once: int
) -> list[tuple[Memory, int]]:
    """Streamed half tiles spread evenly over the sweep, resident fragments over the rest."""
    halves = product.shard.warp_fragments // at_once
    passing_halves = streamed // at_once
    resident = product.fragments - streamed
    result: list[tuple[Memory, int]] = []
    counts = {"register": 0, "shared": 0, "streamed": 0}

    def put(memory: Memory) -> None:
        result.append((memory, counts[memory]))
        counts[memory] += 1

    for half in range(halves):
        passing = (half + 1) * passing_halves // halves > half * passing_halves // halves
        for _ in range(at_once):
            at = counts["register"] + counts["shared"]
            if passing:
                put("streamed")
            elif (at + 1) * shared // resident > counts["shared"]:
                put("shared")
            else:
                put("register")
    return result
