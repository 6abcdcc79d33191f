"""Checkpoint tensors to packed bytes and back: quantise, pad, tile, fragment order.

A row is int8 levels with a scale, or the head's own bf16 numbers: 32 bytes of it are a slab.

The byte order is that of the matrix instruction. For m16n8k32 (PTX ISA 9.7.14.5.11) lane 4 g + t of
a warp holds words {row g, row g + 8} x {k, k + 16} of a tile's slab, so one 16-byte load per lane
fetches a whole operand; a latent's elements 8 t .. 8 t + 3 and 8 t + 4 .. 8 t + 7 play k = 4 t and
16 + 4 t, so that a lane finds its two words side by side. m16n8k16 of bf16 has the same words, of
two elements each, so its bytes are in the same order. For wgmma (9.7.15.5.1) four warps' tiles
make one operand of 8 x 16-byte core matrices. Rows are placed so that a lane's two results are two
consecutive tokens: row g and row g + 8 of half h of a pair of tiles are tokens 4 g + 2 h and
4 g + 2 h + 1 of its 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from wts.heads.base import DeviceSteps, Head, HeadState
from wts.heads.latent_rows import unpack_latents
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.shard import PAIR_ROWS, TILE_ROWS
from wts.kernels.resident.tiles import load_rows, store_rows
from wts.numerics.exact_bounds import Residuals, latent_bounds, residuals_of
from wts.numerics.quantise import Latents, pack_bits, quantise_latents, quantise_rows, split_rows
from wts.selection.exact_head import ExactHead, exact_head

__all__ = ["CHUNK_ROWS", "PackedHead", "nonfinite_rows", "pack_head", "packed_bytes"]

CHUNK_ROWS = 1 << 15  # rows that are quantised at once, in a handful of fp32 copies
_INPUT_ROWS = 1 << 12  # at once: their products are made in fp64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedHead:
    """One head as the device reads it; the only copy a Walker keeps.

    Args:
        tiles: uint8 [padded_vocab / 16, 16 rows' bytes], in the order of the plan's instruction.
        row_scale: fp32 [padded_vocab], 0 for padding rows. With bf16 weights int32 [padded_vocab /
            32], a bit for each row, lowest first: set where its scale is NaN, not 1.
        table: uint8 [table_rows, ...], what a step fetches for a token: `packed_rows` of the head.
            Of a latent, in an exact walk, also the bounds of its step logits, behind the scale.
        draft_to_target: int32 [vocab] or None.
        steps: the weights of a head's steps, and what is computed with them.
        latents_are_rows: whether the table has the latents.
        hidden_inside: whether the kernel makes the hidden term.
        quantised: whether the weights are levels, and so latents are quantised.
        storage: the plan's, of the order of bytes in tiles.
        exact: the unquantised weights of an exact walk, else None.
    """

    tiles: torch.Tensor
    row_scale: torch.Tensor
    table: torch.Tensor
    draft_to_target: torch.Tensor | None
    steps: DeviceSteps = field(default_factory=DeviceSteps)
    latents_are_rows: bool = True
    hidden_inside: bool = False
    quantised: bool = True
    storage: tuple[object, ...] = ()
    exact: ExactHead | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that is held; other packed heads of the same weights may share them."""
        parts = [self.tiles, self.row_scale, self.table]
        parts += [] if self.draft_to_target is None else [self.draft_to_target]
        parts += [] if self.exact is None else self.exact.tensors
        return [*parts, *self.steps.tensors.values()]

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def copied(self, device: torch.device) -> PackedHead:
        """The same on a device: a copy of every tensor, even where it is there already."""
        made: PackedHead = _copied(self, device)
        return made

    def hidden_term(self, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """What the hidden states [B, K, H] of a walk add to its steps; None where none are read."""
        return self.steps.hidden_term(hidden, by_lanes=self.hidden_inside)

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step of `batch` requests."""
        return self.steps.initial_state(batch)

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, term: torch.Tensor | None
    ) -> tuple[HeadState, Latents | None]:
        """The latent function as the device has it.

        Args:
            state: of the step before.
            prev_token: int64 [B], inside the table.
            term: fp32 [B, P], the hidden term of the step; None where there is none.

        Returns:
            The new state and the latents, quantised or bf16 [B, r]; None at a step without.
        """
        if self.latents_are_rows:
            rows = self.table[prev_token]
            return state, unpack_latents(rows) if self.quantised else rows.view(torch.bfloat16)
        state, latent = self.exact_latent(state, prev_token, term)
        return state, quantise_latents(latent) if self.quantised and latent is not None else latent

    def exact_latent(
        self, state: HeadState, prev_token: torch.Tensor, term: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        """The same before it is quantised, bf16 [B, r]; of a row where a walk is exact."""
        if self.latents_are_rows:
            assert self.exact is not None
            assert self.exact.table is not None
            return state, self.exact.table[prev_token]
        return self.steps.latent(state, self.table[prev_token], term)


def _copied(parts: Any, device: torch.device) -> Any:
    """A dataclass of tensors, of such dataclasses and of other things, its tensors copied."""
    if isinstance(parts, torch.Tensor):
        return parts.detach().to(device, copy=True)
    if not is_dataclass(parts) or isinstance(parts, type):
        return parts
    copies = {field.name: _copied(getattr(parts, field.name), device) for field in fields(parts)}
    return type(parts)(**copies)


# ---- a whole head ------------------------------------------------------------------------------


def packed_bytes(packs: Iterable[PackedHead]) -> int:
    """Bytes that packed heads hold together; what several share counts once."""
    return sum({id(tensor): tensor.nbytes for one in packs for tensor in one.tensors}.values())


def pack_head(
    head: Head,
    plan: ResidentPlan,
    device: torch.device,
    into: PackedHead | None = None,
    *,
    share_with: Sequence[PackedHead] = (),
) -> PackedHead:
    """Pack a head for a plan, some rows at a time so that little extra memory is needed.

    Args:
        head: the head; its weights may lie on any device.
        plan: a plan for its shape.
        device: where the packed bytes go.
        into: an earlier result of the same shape, overwritten in place (its addresses stay valid
            for captured graphs); a new one by default.
        share_with: what these weights were packed to already, on the same device. A new packed head
            shares all of it that it can; nothing that is shared with one is packed again.

    Returns:
        The packed head; that of `into` holds what was packed, but its unquantised weights only
        the result names.
    """
    share_with = [
        other
        for other in share_with
        if (other.quantised, other.exact is not None)
        == (plan.request.quantised, plan.request.exact)
    ]
    packed = into or _room_for(head, plan, device, share_with)
    if not any(packed.tiles is other.tiles for other in share_with):
        _pack_projection(head, plan, packed, device)
    shared = next((other for other in share_with if packed.table is other.table), None)
    if shared is not None:
        return replace(packed, exact=shared.exact)
    residuals = None
    if plan.request.exact:
        levels, scale = (
            load_rows(packed.tiles, plan)[: plan.request.shape.vocab],
            packed.row_scale[: plan.request.shape.vocab],
        )
        exact = exact_head(head, scale, levels)
        packed = replace(packed, exact=exact)
        if head.latents_are_rows:
            weight = exact.projection[: plan.request.shape.vocab]
            residuals = residuals_of(weight, scale, levels, head.table_rows)
    at_once = CHUNK_ROWS if head.latents_are_rows else _INPUT_ROWS
    for first, rows in _chunks(head.table, device, at_once):
        fetched = head.packed_rows(rows, plan.request.weights)
        if packed.exact is not None and head.latents_are_rows:
            _add_bounds(fetched, rows, packed.exact, residuals)
        packed.table[first : first + len(rows)] = fetched
    if head.draft_to_target is not None and packed.draft_to_target is not None:
        packed.draft_to_target.copy_(head.draft_to_target[: plan.request.shape.vocab])
    if into is not None:
        into.steps.refresh(head.device_steps(device))
    return packed


def _pack_projection(
    head: Head, plan: ResidentPlan, packed: PackedHead, device: torch.device
) -> None:
    for first, rows in _chunks(head.projection[: plan.request.shape.vocab], device):
        padding = -len(rows) % PAIR_ROWS
        if plan.request.quantised:
            levels, scale = quantise_rows(rows)
            packed.row_scale[first : first + len(rows)] = scale
        else:
            levels, nonfinite = split_rows(rows)
            nonfinite = F.pad(nonfinite, (0, padding))
            packed.row_scale[first // 32 : (first + len(nonfinite)) // 32] = pack_bits(nonfinite)
        store_rows(F.pad(levels, (0, 0, 0, padding)), plan, packed.tiles, first)


def _room_for(
    head: Head, plan: ResidentPlan, device: torch.device, share_with: Sequence[PackedHead]
) -> PackedHead:
    """The memory of a packed head; the weights of its steps are in it already."""
    storage, inside = plan.placement.tile_order, plan.recurrence.hidden_inside
    for other in share_with:
        if other.storage == storage:
            return replace(other, hidden_inside=inside)
    tile_bytes = (plan.shard.padded_vocab // TILE_ROWS, plan.shard.tile_bytes)
    tiles = torch.zeros(tile_bytes, dtype=torch.uint8, device=device)
    scale_words = plan.shard.num_blocks * plan.shard.row_scale_words
    scale_type = torch.float32 if plan.request.quantised else torch.int32
    row_scale = torch.zeros(scale_words, dtype=scale_type, device=device)
    if share_with:
        return replace(
            share_with[0], tiles=tiles, row_scale=row_scale, hidden_inside=inside, storage=storage
        )
    return PackedHead(
        tiles=tiles,
        row_scale=row_scale,
        table=torch.empty(
            plan.request.table_rows, plan.request.table_row_bytes, dtype=torch.uint8, device=device
        ),
        draft_to_target=None
        if head.draft_to_target is None
        else torch.empty(plan.request.shape.vocab, dtype=torch.int32, device=device),
        steps=head.device_steps(device),
        latents_are_rows=head.latents_are_rows,
        hidden_inside=inside,
        quantised=plan.request.quantised,
        storage=storage,
    )


def _add_bounds(
    packed: torch.Tensor, rows: torch.Tensor, exact: ExactHead, residuals: Residuals | None
) -> None:
    """Write bounds of what quantising changes behind the scales of packed latents [n, 2 r + 32].

    Args:
        packed: the latents, in place.
        rows: the same before they were packed, [n, r].
        exact: the unquantised weights.
        residuals: of the quantised rows of the projection.
    """
    high, low, scale = unpack_latents(packed)
    levels = 256 * high.int() + low.int()
    bounds = latent_bounds(rows, levels, scale, exact.screen, residuals)
    first = 2 * rows.shape[1] + 4
    packed[:, first : first + 8] = torch.stack(bounds, 1).view(torch.uint8)


def _chunks(
    matrix: torch.Tensor, device: torch.device, at_once: int = CHUNK_ROWS
) -> Iterator[tuple[int, torch.Tensor]]:
    for first in range(0, len(matrix), at_once):
        yield first, matrix[first : first + at_once].to(device)


def nonfinite_rows(packed: PackedHead) -> torch.Tensor:
    """Rows of bf16 weights that are not finite, bool [padded_vocab]."""
    bits = packed.row_scale[:, None] >> torch.arange(32, device=packed.row_scale.device)
    return (bits & 1).flatten() != 0
