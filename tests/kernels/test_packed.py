"""Packing: how far quantised weights may be off, which byte goes where, and packing in place."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wts.kernels.packed
from strategies import DTYPES, heads, hopper
from wts.heads.kinds import RANKS, Shape
from wts.heads.latent_rows import pack_latents, unpack_latents
from wts.heads.markov import MarkovHead
from wts.kernels.packed import PackedHead, pack_head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.tiles import load_rows, pack_rows, store_rows, unpack_rows
from wts.numerics.quantise import quantise_latents, quantise_rows

CPU = torch.device("cpu")
SMALLEST_SCALE = 1e-30
U32 = 2.0**-24

matrices = st.builds(
    lambda rows, rank, seed, dtype, magnitude: (
        torch.randn(rows, rank, generator=torch.Generator().manual_seed(seed))
        .mul(10.0**magnitude)
        .to(DTYPES[dtype])
    ),
    rows=st.integers(1, 40),
    rank=st.sampled_from(RANKS),
    seed=st.integers(0, 1 << 16),
    dtype=st.sampled_from(sorted(DTYPES)),
    magnitude=st.integers(-4, 3),
)


def random_levels(rows: int, rank: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, (rows, rank), generator=generator).to(torch.int8)


class TestQuantisation:
    @given(matrices)
    def test_a_weight_is_off_by_at_most_half_a_step(self, weight: torch.Tensor) -> None:
        levels, scale = quantise_rows(weight)
        assert levels.dtype == torch.int8
        assert scale.dtype == torch.float32
        assert levels.min() >= -127, "-128 has no counterpart"
        off = (weight.double() - levels.double() * scale.double()[:, None]).abs()
        assert bool((off <= scale.double()[:, None] * (0.5 + 2.0**-16)).all())

    @given(matrices)
    def test_a_latent_is_off_by_at_most_half_a_step(self, latent: torch.Tensor) -> None:
        high, low, scale = quantise_latents(latent)
        assert high.dtype == low.dtype == torch.int8
        whole = 256 * high.double() + low.double()
        off = (latent.double() - whole * scale.double()[:, None]).abs()
        assert bool((off <= scale.double()[:, None] * (0.5 + 2.0**-9)).all())

    @given(matrices)
    def test_the_scale_is_that_of_the_largest(self, weight: torch.Tensor) -> None:
        largest = weight.double().abs().amax(1)
        for levels, (*_, scale) in (
            (127, quantise_rows(weight)),
            (127 * 256 + 127, quantise_latents(weight)),
        ):
            wanted = (largest / levels).clamp_min(SMALLEST_SCALE)
            assert torch.allclose(scale.double(), wanted, rtol=2 * U32, atol=0)

    @given(matrices)
    def test_the_largest_weight_of_a_row_has_the_last_level(self, weight: torch.Tensor) -> None:
        levels, _ = quantise_rows(weight)
        at = weight.float().abs().argmax(1, keepdim=True)
        assert torch.equal(levels.gather(1, at).abs(), torch.full_like(at, 127).to(torch.int8))

    def test_all_levels_of_both_planes_come_back(self) -> None:
        whole = torch.arange(-32639, 32640, dtype=torch.float32)
        whole = torch.nn.functional.pad(whole, (0, -len(whole) % 63)).view(-1, 63)
        # Each row's largest is 32639, so that its scale is exactly 1.
        rows = torch.cat([whole, torch.full((len(whole), 1), 32639.0)], 1)
        high, low, scale = quantise_latents(rows)
        assert torch.equal(scale, torch.ones_like(scale))
        assert torch.equal(256 * high.float() + low.float(), rows)

    def test_halves_go_to_the_even_level(self) -> None:
        row = torch.zeros(1, 64)
        row[0, :5] = torch.tensor([127.0, 0.5, 1.5, -0.5, -2.5])
        levels, scale = quantise_rows(row)
        assert scale.item() == 1
        assert levels[0, :5].tolist() == [127, 0, 2, 0, -2]

    def test_rows_of_zeros_and_of_almost_nothing_have_the_smallest_scale(self) -> None:
        rows = torch.zeros(2, 64)
        rows[1] = 1e-38
        for *levels, scale in (quantise_rows(rows), quantise_latents(rows)):
            assert scale.tolist() == pytest.approx([SMALLEST_SCALE] * 2)
            assert all(not part.any() for part in levels)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("dtype", DTYPES.values())
    def test_a_row_that_is_not_finite_has_a_nan_scale_and_harms_no_other(
        self, bad: float, dtype: torch.dtype
    ) -> None:
        rows = torch.ones(3, 64, dtype=dtype)
        rows[1, 7] = bad
        for *levels, scale in (quantise_rows(rows), quantise_latents(rows)):
            assert scale.isnan().tolist() == [False, True, False]
            for part in levels:
                assert not part[1].any()
                assert torch.equal(part[0], part[2])

    def test_a_finite_row_near_the_largest_number_is_finite(self) -> None:
        rows = torch.full((1, 64), torch.finfo(torch.float32).max)
        for *_, scale in (quantise_rows(rows), quantise_latents(rows)):
            assert bool(scale.isfinite().all())


class TestFragmentOrder:
    """Against the operand layout of mma.m16n8k32 with 8-bit elements in the PTX ISA.

    A: lane 4 g + t holds words a0..a3: (row g, k 4t..4t+3), (row g + 8, same k), (row g, k + 16),
    (row g + 8, k + 16). B: lane 4 g + t holds words b0, b1: column g, k 4t..4t+3 and k + 16.
    C: lane 4 g + t holds c0, c1: row g, columns 2t and 2t + 1; c2, c3: row g + 8.
    """

    @pytest.mark.parametrize("rank", RANKS)
    def test_every_byte_of_a_tile(self, rank: int) -> None:
        levels = random_levels(96, rank)
        tiles = pack_rows(levels).view(torch.int8)
        assert tiles.shape == (6, 16 * rank)
        wanted = torch.empty_like(tiles)
        for tile in range(6):
            pair, half = divmod(tile, 2)
            for slab in range(rank // 32):
                for lane in range(32):
                    g, t = divmod(lane, 4)
                    for word in range(4):
                        # Rows g and g + 8 of the matrix instruction are neighbouring tokens.
                        token = 32 * pair + 4 * g + 2 * half + word % 2
                        # Elements 8 t .. play k = 4 t .., those after them k = 16 + 4 t ...
                        k = 32 * slab + 8 * t + 4 * (word // 2)
                        at = 512 * slab + 16 * lane + 4 * word
                        wanted[tile, at : at + 4] = levels[token, k : k + 4]
        assert torch.equal(tiles, wanted)

    def test_one_byte_by_hand(self) -> None:
        levels = torch.zeros(64, 128, dtype=torch.int8)
        levels[32 + 4 * 5 + 2 + 1, 32 * 3 + 8 * 2 + 4 + 1] = 77  # pair 1, g 5, half 1, row g + 8
        tiles = pack_rows(levels)
        assert tiles.nonzero().tolist() == [[3, 512 * 3 + 16 * (4 * 5 + 2) + 4 * 3 + 1]]
        assert tiles.max() == 77

    @pytest.mark.parametrize("rank", RANKS)
    def test_every_byte_of_a_latent(self, rank: int) -> None:
        high, low = random_levels(3, rank, 1), random_levels(3, rank, 2)
        scale = torch.tensor([1.5, -0.0, 3e-30])
        table = pack_latents(high, low, scale)
        assert table.shape == (3, 2 * rank + 32)
        signed = table.view(torch.int8)
        for slab in range(rank // 32):
            for plane, levels in enumerate((high, low)):
                at, k = 64 * slab + 32 * plane, 32 * slab
                assert torch.equal(signed[:, at : at + 32], levels[:, k : k + 32])
        assert torch.equal(table[:, 2 * rank : 2 * rank + 4].view(torch.float32)[:, 0], scale)
        assert not table[:, 2 * rank + 4 :].any()

    @pytest.mark.parametrize("rank", RANKS)
    def test_the_matrix_instruction_multiplies_tokens_with_latents(self, rank: int) -> None:
        """Lane (g, t = j) of the product holds both planes' sums of request j and two tokens."""
        levels, high, low = (random_levels(n, rank, n) for n in (32, 4, 5))
        low = low[:4]
        tiles = pack_rows(levels).view(torch.int8).long()
        latents = pack_latents(high, low, torch.ones(4)).view(torch.int8).long()
        for tile in range(2):
            product = torch.zeros(16, 8, dtype=torch.long)
            for slab in range(rank // 32):
                a, b = torch.zeros(16, 32).long(), torch.zeros(32, 8).long()
                for lane in range(32):
                    g, t = divmod(lane, 4)
                    words = tiles[tile, 512 * slab + 16 * lane :][:16].view(4, 4)
                    for word, (row, k) in enumerate(((g, 0), (g + 8, 0), (g, 16), (g + 8, 16))):
                        a[row, 4 * t + k : 4 * t + k + 4] = words[word]
                    # Column 2 j is the high plane of request j, column 2 j + 1 the low one.
                    at = 64 * slab + 32 * (g % 2) + 8 * t
                    words = latents[g // 2, at : at + 8].view(2, 4)
                    b[4 * t : 4 * t + 4, g], b[4 * t + 16 : 4 * t + 20, g] = words[0], words[1]
                product += a @ b
            whole = 256 * high.long() + low.long()
            for g in range(8):
                for request in range(4):
                    for j, row in enumerate((g, g + 8)):
                        token = 4 * g + 2 * tile + j
                        sums = product[row, 2 * request : 2 * request + 2]
                        wanted = (levels[token].long() * whole[request]).sum()
                        assert 256 * sums[0] + sums[1] == wanted

    @given(st.integers(1, 5), st.sampled_from(RANKS), st.integers(0, 99))
    def test_rows_come_back(self, pairs: int, rank: int, seed: int) -> None:
        levels = random_levels(32 * pairs, rank, seed)
        assert torch.equal(unpack_rows(pack_rows(levels)), levels)

    @given(st.integers(1, 20), st.sampled_from(RANKS), st.integers(0, 99))
    def test_latents_come_back(self, rows: int, rank: int, seed: int) -> None:
        high, low = random_levels(rows, rank, seed), random_levels(rows, rank, seed + 1)
        scale = torch.rand(rows, generator=torch.Generator().manual_seed(seed))
        back = unpack_latents(pack_latents(high, low, scale))
        assert all(map(torch.equal, back, (high, low, scale)))

    def test_the_scale_keeps_its_bits(self) -> None:
        """Rows that differ only in sign or NaN are not made equal on the way."""
        scale = torch.tensor([0.0, -0.0, math.nan, math.inf])
        planes = torch.zeros(4, 64, dtype=torch.int8)
        back = unpack_latents(pack_latents(planes, planes, scale))[2]
        assert torch.equal(back.view(torch.int32), scale.view(torch.int32))


class TestWarpgroups:
    """Against the operand layout of wgmma.m64nNk32 without swizzle in the PTX ISA.

    Core matrices of 8 rows of 16 bytes lie [k half][row group]; warp w owns rows 16 w .. 16 w + 15.
    """

    @pytest.mark.parametrize(("vocab", "blocks", "rank"), [(1000, 1, 64), (3000, 2, 128)])
    def test_every_row_of_an_operand(self, vocab: int, blocks: int, rank: int) -> None:
        plan = plan_residency(Shape(vocab=vocab, rank=rank), hopper(blocks), batch=8)
        assert plan.product.warpgroups
        levels = random_levels(plan.shard.padded_vocab, rank)
        tiles = torch.zeros(plan.shard.padded_vocab // 16, plan.shard.tile_bytes, dtype=torch.uint8)
        store_rows(levels, plan, tiles, 0)
        operands = tiles.view(torch.int8).view(-1, plan.shard.warp_tiles, rank // 32, 2048)
        assert len(operands) == 2 * blocks
        whole = plan.shard.warp_tiles // 2 * 2
        for warp in range(8 * blocks):
            block, own = divmod(warp, 8)
            for tile in range(plan.shard.warp_tiles):
                if tile < whole:
                    half, first = tile % 2, 16 * (own * whole + tile // 2 * 2)
                else:  # the odd tile: half of a pair behind all whole ones
                    half, first = own % 2, 16 * (8 * whole + own // 2 * 2)
                for row in range(16):
                    j, g = divmod(row, 8)
                    token = block * plan.shard.rows + first + 4 * g + 2 * half + j
                    for slab in range(rank // 32):
                        operand = operands[warp // 4, tile, slab].view(2, 8, 8, 16)
                        found = operand[:, 2 * (warp % 4) + j, g].reshape(32)
                        assert torch.equal(found, levels[token, 32 * slab : 32 * slab + 32])

    @given(st.integers(1, 2000), st.sampled_from((64, 256)), st.integers(1, 3), st.integers(1, 64))
    def test_rows_come_back(self, vocab: int, rank: int, blocks: int, batch: int) -> None:
        plan = plan_residency(Shape(vocab=vocab, rank=rank), hopper(blocks), batch=batch)
        levels = random_levels(plan.shard.padded_vocab, rank)
        tiles = torch.zeros(plan.shard.padded_vocab // 16, plan.shard.tile_bytes, dtype=torch.uint8)
        for first in range(0, plan.shard.padded_vocab, 96):
            store_rows(levels[first : first + 96], plan, tiles, first)
        assert torch.equal(load_rows(tiles, plan), levels)


def packed_equal(one: PackedHead, other: PackedHead) -> bool:
    """Byte for byte: NaN scales too."""

    def same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
        if first is None or second is None:
            return first is second
        return torch.equal(first.view(torch.uint8), second.view(torch.uint8))

    fields = ("tiles", "row_scale", "table", "draft_to_target")
    return all(same(getattr(one, name), getattr(other, name)) for name in fields)


class TestHead:
    @given(heads(), st.integers(1, 3))
    def test_holds_each_row_once_and_padding_as_zeros(self, head: MarkovHead, blocks: int) -> None:
        plan = plan_residency(head, hopper(blocks))
        packed = pack_head(head, plan, CPU)
        levels, scale = quantise_rows(head.projection)
        rows = load_rows(packed.tiles, plan)
        assert rows.shape == (plan.shard.padded_vocab, plan.request.shape.rank)
        assert torch.equal(rows[: head.vocab], levels)
        assert torch.equal(packed.row_scale[: head.vocab], scale)
        assert not rows[head.vocab :].any()
        assert not packed.row_scale[head.vocab :].any()
        back = unpack_latents(packed.table)
        assert all(map(torch.equal, back, quantise_latents(head.table)))
        if head.draft_to_target is None:
            assert packed.draft_to_target is None
        else:
            assert packed.draft_to_target is not None
            assert torch.equal(packed.draft_to_target.long(), head.draft_to_target)

    def test_leaves_padding_rows_of_the_head_out(self) -> None:
        projection = torch.ones(48, 64)
        projection[40:] = math.nan
        mapping = torch.cat([torch.arange(40), torch.full((8,), -7)])
        head = MarkovHead(
            table=torch.ones(40, 64),
            projection=projection,
            logical_vocab=40,
            draft_to_target=mapping,
        )
        plan = plan_residency(head, "h200")
        packed = pack_head(head, plan, CPU)
        assert not packed.row_scale.isnan().any()
        assert not load_rows(packed.tiles, plan)[40:].any()
        assert packed.draft_to_target is not None
        assert packed.draft_to_target.tolist() == list(range(40))

    @pytest.mark.parametrize("vocab", [63, 64, 65, 150])
    def test_chunks_leave_no_seam(self, vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
        head = MarkovHead.random(vocab=vocab, rank=64, seed=3)
        plan = plan_residency(head, hopper(2))
        whole = pack_head(head, plan, CPU)
        monkeypatch.setattr(wts.kernels.packed, "CHUNK_ROWS", 64)
        assert packed_equal(pack_head(head, plan, CPU), whole)

    @given(st.data())
    def test_repacking_in_place_is_packing_anew(self, data: st.DataObject) -> None:
        kept = data.draw(heads(max_vocab=80, ranks=(64,)))
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
        changes: dict[str, Any] = {}
        if kept.draft_to_target is not None:
            ids = torch.randperm(kept.table_rows, generator=generator)[: kept.vocab]
            changes["draft_to_target"] = ids
        changed = MarkovHead(
            table=torch.randn(kept.table.shape, generator=generator).to(kept.table.dtype),
            projection=torch.randn(kept.projection.shape, generator=generator).to(
                kept.projection.dtype
            ),
            **changes,
        )
        changed.projection[0, 0] = math.nan
        plan = plan_residency(kept, hopper(2))
        packed = pack_head(kept, plan, CPU)
        parts = [packed.tiles, packed.row_scale, packed.table, packed.draft_to_target]
        addresses = [None if part is None else part.data_ptr() for part in parts]
        again = pack_head(changed, plan, CPU, into=packed)
        assert again is packed
        assert addresses == [None if part is None else part.data_ptr() for part in parts]
        assert packed_equal(packed, pack_head(changed, plan, CPU))
        # And back: nothing of the other head is left, its NaN row neither.
        pack_head(kept, plan, CPU, into=packed)
        assert packed_equal(packed, pack_head(kept, plan, CPU))

    @pytest.mark.parametrize("draft_vocab", [None, 70])
    def test_counts_what_it_holds(self, draft_vocab: int | None) -> None:
        head = MarkovHead.random(vocab=90, rank=128, seed=1, draft_vocab=draft_vocab)
        plan = plan_residency(head, "h200")
        tables = 90 * (2 * 128 + 32)
        projection = plan.shard.padded_vocab * (128 + 4)
        mapping = 0 if draft_vocab is None else 4 * draft_vocab
        assert pack_head(head, plan, CPU).memory_bytes == tables + projection + mapping
