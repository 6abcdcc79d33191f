"""Rows of weights in the byte order of the matrix instruction, warp by warp, and back."""

from __future__ import annotations

import torch

from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.product import WARPGROUP
from wts.kernels.resident.shard import FRAGMENT_BYTES, PAIR_ROWS, TILE_ROWS
from wts.numerics.limits import SLAB_BYTES

__all__ = ["load_rows", "store_rows", "unpack_rows"]


# ---- fragment order ----------------------------------------------------------------------------


def pack_rows(levels: torch.Tensor) -> torch.Tensor:
    """Put int8 rows [n, r] into tiles: uint8 [n / 16, 16 r]; n is a multiple of 32."""
    rows, rank = levels.shape
    # token = (pair, g, half, j), element = (slab, t, k half, byte); word of a lane = 2 (k half) + j
    parts = levels.view(rows // PAIR_ROWS, 8, 2, 2, rank // SLAB_BYTES, 4, 2, 4)
    packed = parts.permute(0, 2, 4, 1, 5, 6, 3, 7).contiguous()
    return packed.view(torch.uint8).view(rows // TILE_ROWS, TILE_ROWS * rank)


def unpack_rows(tiles: torch.Tensor) -> torch.Tensor:
    """Undo `pack_rows`: uint8 [n / 16, 16 r] to int8 [n, r]."""
    count, size = tiles.shape
    rank = size // TILE_ROWS
    parts = tiles.view(torch.int8).view(count // 2, 2, rank // SLAB_BYTES, 8, 4, 2, 2, 4)
    return parts.permute(0, 3, 1, 6, 2, 4, 5, 7).reshape(count * TILE_ROWS, rank)


def _warp_tiles(plan: ResidentPlan, tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which warp of all owns a tile of the vocabulary, and as which of its own.

    Warps own whole pairs of tiles, in order; where each has one tile more, those tiles are pairs
    behind all others of the shard, the halves of a pair owned by neighbouring warps.
    """
    warps, own = plan.shard.sweep_warps, plan.shard.warp_tiles
    block, within = tiles // (warps * own), tiles % (warps * own)
    whole = own & ~1
    spare = within - warps * whole
    warp = torch.where(spare < 0, within // max(whole, 1), spare)
    tile = torch.where(spare < 0, within % max(whole, 1), torch.full_like(within, whole))
    return block * warps + warp, tile


def _stored(tiles: torch.Tensor, plan: ResidentPlan) -> torch.Tensor:
    """A plan's packed tiles by owner: [warp of all, fragment, byte].

    A warpgroup's four warps have their tiles together, by core matrix: the view is then [warpgroup,
    warp, tile, slab, k half, row half, byte].
    """
    if not plan.product.warpgroups:
        return tiles.view(-1, plan.shard.warp_fragments, FRAGMENT_BYTES)
    warpgroups = plan.shard.num_blocks * plan.shard.sweep_warps // WARPGROUP
    parts = tiles.view(warpgroups, plan.shard.warp_tiles, plan.shard.slabs, 2, WARPGROUP, 2, 128)
    return parts.permute(0, 4, 1, 2, 3, 5, 6)


def _fragments(plan: ResidentPlan, tile: torch.Tensor) -> torch.Tensor:
    """Where the fragments of a warp's tiles are stored among its own: [n, slabs]."""
    order = torch.tensor(plan.placement.stored_order(), device=tile.device)
    return order.view(plan.shard.warp_tiles, plan.shard.slabs)[tile]


def store_rows(levels: torch.Tensor, plan: ResidentPlan, tiles: torch.Tensor, first: int) -> None:
    """Put rows into a plan's tiles.

    Args:
        levels: int8 [n, row_bytes]: levels, or the bytes of bf16 weights; n is a multiple of 32.
        plan: the plan.
        tiles: uint8 [padded_vocab / 16, tile_bytes], written.
        first: token of the first row, a multiple of 32.
    """
    count = len(levels) // TILE_ROWS
    number = torch.arange(count, device=tiles.device) + first // TILE_ROWS
    warp, tile = _warp_tiles(plan, number)
    if not plan.product.warpgroups:
        packed = pack_rows(levels).view(count, plan.shard.slabs, FRAGMENT_BYTES)
        _stored(tiles, plan)[warp[:, None], _fragments(plan, tile)] = packed
        return
    # token = (pair, g, half, j), element = (slab, k half, byte)
    parts = levels.view(torch.uint8).view(count // 2, 8, 2, 2, plan.shard.slabs, 2, 16)
    packed = parts.permute(0, 2, 4, 5, 3, 1, 6).reshape(count, plan.shard.slabs, 2, 2, 128)
    stored = _stored(tiles, plan)
    stored[warp // WARPGROUP, warp % WARPGROUP, tile] = packed


def load_rows(tiles: torch.Tensor, plan: ResidentPlan) -> torch.Tensor:
    """Undo `store_rows` for all rows: int8, or bf16 as the weights are, [padded_vocab, r]."""
    number = torch.arange(plan.shard.padded_vocab // TILE_ROWS, device=tiles.device)
    warp, tile = _warp_tiles(plan, number)
    stored = _stored(tiles, plan)
    if not plan.product.warpgroups:
        packed = stored[warp[:, None], _fragments(plan, tile)]
        rows = unpack_rows(packed.reshape(len(number), plan.shard.tile_bytes))
        return rows if plan.request.quantised else rows.contiguous().view(torch.bfloat16)
    packed = stored[warp // WARPGROUP, warp % WARPGROUP, tile]
    parts = packed.reshape(len(number) // 2, 2, plan.shard.slabs, 2, 2, 8, 16)
    rows = parts.permute(0, 5, 1, 4, 2, 3, 6).reshape(
        plan.shard.padded_vocab, plan.request.shape.rank
    )
    return rows.view(torch.int8)
