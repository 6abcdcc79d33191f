"""The kernel's exact walk, executed on the CPU, equals the emulator bit for bit.

Few rows or many may have won by their int8 bounds: in one warp, in one block, in several, or all of
them; every one of the paths that decide is taken. An int8 walk of the same head has other tokens.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import test_cells_on_cpu as cells
from simulator import Simulator
from strategies import noise_head
from test_kernel_on_cpu import WHOLE
from wts.hardware.gpu import gpu_spec
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels import packed as pack
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.variants import with_selection
from wts.numerics.lane_sums import lane_product
from wts.numerics.quantise import quantise_rows
from wts.walk.walker import Walker

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TURNS = 20_000_000


def plan_of(
    head: MarkovHead, *, batch: int = 1, blocks: int = 1, shared_bytes: int = WHOLE
) -> ResidentPlan:
    gpu = replace(gpu_spec("h200").with_blocks(blocks), shared_bytes_per_block=shared_bytes)
    return plan_residency(head, gpu, batch=batch, steps=32, exact=True)


def inputs(
    head: MarkovHead, batch: int, steps: int, seed: int, *, deviation: float, padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(batch, steps, head.vocab + padding, generator=generator) * deviation
    anchor = torch.randint(0, head.table_rows, (batch,), generator=generator)
    anchor[-1] = -1
    first = padding // 2
    return base.bfloat16()[:, :, first : first + head.vocab], anchor


def check(
    head: MarkovHead,
    plan: ResidentPlan,
    base: torch.Tensor,
    anchor: torch.Tensor,
    *,
    seed: int = 0,
) -> tuple[int, int]:
    """Simulator and emulator agree; steps and rows that were computed exactly."""
    simulator = Simulator(head, plan)
    tokens = simulator(base, anchor, seed=seed, most_turns=TURNS)
    assert torch.equal(tokens, Walker(head, plan, backend="emulator")(base, anchor))
    sequence, error, _, _, _, steps, rows, _ = simulator.status.tolist()
    assert (sequence, error) == (2 + base.shape[1], 0)
    return steps, rows


@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch", "shared_bytes"),
    [
        pytest.param(1, 64, 1, 1, WHOLE, id="one row"),
        pytest.param(700, 256, 1, 1, WHOLE, id="one block"),
        pytest.param(700, 256, 3, 1, WHOLE, id="one request"),
        pytest.param(1100, 128, 2, 2, WHOLE, id="two requests"),
        pytest.param(1100, 256, 3, 4, WHOLE, id="four requests"),
        pytest.param(500, 512, 3, 3, WHOLE, id="long latents"),
        pytest.param(500, 128, 3, 8, WHOLE, id="a warpgroup's requests"),
        pytest.param(1150, 256, 1, 7, WHOLE, id="warpgroups, odd tiles"),
        pytest.param(500, 64, 2, 9, WHOLE, id="two groups"),
        pytest.param(500, 64, 2, 23, WHOLE, id="three groups"),
        pytest.param(333, 64, 3, 64, WHOLE, id="eight groups"),
        pytest.param(1500, 256, 1, 1, 80_000, id="streamed"),
        pytest.param(1500, 256, 1, 5, 120_000, id="streamed, groups"),
        pytest.param(1500, 256, 1, 8, 186_000, id="warpgroups stream"),
    ],
)
def test_plans(vocab: int, rank: int, blocks: int, batch: int, shared_bytes: int) -> None:
    head = noise_head(vocab, rank, vocab)
    plan = plan_of(head, batch=batch, blocks=blocks, shared_bytes=shared_bytes)
    assert (plan.placement.streamed_fragments > 0) == (shared_bytes < WHOLE)
    for more, deviation in enumerate((0.5, 4.0)):
        walked = max(1, batch - more)
        base, anchor = inputs(head, walked, 2, more, deviation=deviation, padding=3)
        steps, rows = check(head, plan, base, anchor, seed=more)
        assert steps <= rows
        assert steps <= 2 * walked


def test_what_is_decided_costs_nothing() -> None:
    head = noise_head(700, 64, 3, bias=0.01)
    base, anchor = inputs(head, 2, 4, 1, deviation=0.1)
    base.scatter_(2, torch.tensor([5, 600, 299, 0]).expand(2, 4)[..., None], 9.0)
    assert check(head, plan_of(head, batch=2, blocks=3), base, anchor) == (0, 0)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_equal_logits_that_are_known_need_not_be_computed(batch: int) -> None:
    """Of several blocks: the lowest token wins. Of one: only its best row's logit is known."""
    head = noise_head(700, 64, 3, bias=0.01)
    plan = plan_of(head, batch=batch, blocks=3)
    base, anchor = inputs(head, batch, 4, 1, deviation=0.1)
    base[:, :, [299, 600]] = 9.0
    assert check(head, plan, base, anchor) == (0, 0)
    base[:, 1, 601] = base[:, 2, 298] = 9.0
    steps, rows = check(head, plan, base, anchor)
    assert steps == batch
    assert rows >= 2 * steps


class TestContenders:
    """Rows of very different scales, whose base logits make their exact logits nearly equal.

    So an int8 logit's error, which grows with the row's scale, often puts another row in front.
    """

    VOCAB, RANK, BLOCKS = 600, 64, 3

    def head(self, seed: int) -> MarkovHead:
        generator = torch.Generator().manual_seed(seed)
        scale = torch.exp(1.5 * torch.randn(self.VOCAB, 1, generator=generator)) / 8
        rows = scale * torch.randn(self.VOCAB, self.RANK, generator=generator)
        table = torch.randn(self.VOCAB, self.RANK, generator=generator)
        return MarkovHead(table=table.bfloat16(), projection=rows.bfloat16())

    def levelled(
        self, head: MarkovHead, chosen: list[int], batch: int, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step's inputs: the chosen rows' logits are a few places of bf16 apart, near 4."""
        generator = torch.Generator().manual_seed(seed)
        anchor = torch.randint(0, self.VOCAB, (batch,), generator=generator)
        bias = lane_product(head.projection[chosen], head.table[anchor])
        places = torch.randint(0, 4, bias.shape, generator=generator)
        base = torch.full((batch, 1, self.VOCAB), -1000.0)
        base[:, 0, chosen] = 4.0 + places * 2.0**-5 - bias
        return base.bfloat16(), anchor

    @pytest.mark.parametrize("batch", [1, 4, 8])
    @pytest.mark.parametrize(
        "where", ["one lane", "one warp", "one block", "blocks", "two of each", "all"]
    )
    def test_of_every_kind(self, where: str, batch: int) -> None:
        plan = plan_of(self.head(0), batch=batch, blocks=self.BLOCKS)
        rows, own = plan.shard.rows, plan.shard.rows // plan.shard.sweep_warps // 32 * 32
        assert plan.shard.num_blocks == self.BLOCKS
        chosen = {
            "one lane": [rows + 4, rows + 5, rows + 6, rows + 7],
            "one warp": [rows + 1, rows + 2, rows + 17, rows + 30],
            "one block": [rows + own * warp + 5 for warp in range(4)],
            "blocks": [3, rows + 7, 2 * rows + 11],
            "two of each": [3, own + 3, rows + 7, rows + own + 9, 2 * rows, 2 * rows + 1],
            "all": list(range(self.VOCAB)),
        }[where]
        computed = 0
        for seed in range(1 if where == "all" else 12 // batch + 2):
            head = self.head(seed)
            base, anchor = self.levelled(head, chosen, batch, seed)
            computed += check(head, plan, base, anchor)[1]
        assert computed >= (0.9 * len(chosen) if where == "all" else batch)

    def test_int8_walks_of_them_have_other_tokens(self) -> None:
        head = self.head(0)
        plan = plan_of(head, batch=8, blocks=self.BLOCKS)
        exact = Walker(head, plan, backend="emulator")
        int8 = Walker(head, with_selection(plan, "greedy"), backend="emulator")
        turned = 0
        for seed in range(5):
            inputs = self.levelled(head, [3, 200, 300, 550], 8, seed)
            turned += int((int8(*inputs) != exact(*inputs)).sum())
        assert turned > 0

    @pytest.mark.parametrize("batch", [1, 4, 8])
    def test_a_latent_along_the_rounding_of_a_large_row(self, batch: int) -> None:
        """Its int8 logit is four too low, more than a small row's bound allows that one."""
        drawn = self.head(0)
        rows, table = drawn.projection.clone(), drawn.table.clone()
        generator = torch.Generator().manual_seed(1)
        rows[3] = 0.1 * torch.randn(self.RANK, generator=generator)
        rows[400] = 20 * torch.randn(self.RANK, generator=generator)
        levels, scale = quantise_rows(rows[400:401])
        lost = (rows[400].float() - scale * levels[0].float()).bfloat16()
        table[7] = lost / lost.abs().amax()
        head = MarkovHead(table=table, projection=rows)
        base, _ = self.levelled(head, [3, 400], batch, 1)
        bias = lane_product(rows[[3, 400]], table[7:8])
        base[:, 0, [3, 400]] = (torch.tensor([4.0, 4.5]) - bias).bfloat16()
        plan = plan_of(head, batch=batch, blocks=self.BLOCKS)
        anchor = torch.full((batch,), 7)
        check(head, plan, base, anchor)
        assert Walker(head, plan, backend="emulator")(base, anchor).tolist() == [[400]] * batch
        int8 = Walker(head, with_selection(plan, "greedy"), backend="emulator")
        assert int8(base, anchor).tolist() == [[3]] * batch

    @pytest.mark.parametrize("batch", [1, 4])
    def test_a_crowded_warp_costs_the_rows_of_few_lanes(self, batch: int) -> None:
        drawn = MarkovHead.random(vocab=1150, rank=64, seed=3)
        rows, chosen = drawn.projection.clone(), [5, 9, 77, 130]
        rows[chosen] = rows[5].clone()  # equal, so all four contend
        head = MarkovHead(table=drawn.table, projection=rows)
        plan = plan_of(head, batch=batch)
        assert (plan.shard.num_blocks, plan.shard.warp_tiles) == (1, 9)
        base = torch.full((batch, 1, 1150), -1000.0)
        base[:, :, chosen] = 0.0
        steps, computed = check(head, plan, base.bfloat16(), torch.arange(batch))
        assert steps == batch
        # A lane holds 6, 10 or 18 rows of a request; a warp 144.
        assert 4 * batch <= computed <= 40 * batch

    @pytest.mark.parametrize("batch", [1, 2, 4])
    def test_wide_bounds_open_all_rows_of_lanes(
        self, batch: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Winners are rows that no lane keeps, those of an odd tile among them."""
        bounds = pack.latent_bounds
        monkeypatch.setattr(
            pack, "latent_bounds", lambda *given: [300 * one for one in bounds(*given)]
        )
        head = MarkovHead.random(vocab=1150, rank=64, seed=3)
        plan = plan_of(head, batch=batch)
        assert (plan.shard.num_blocks, plan.shard.warp_tiles) == (1, 9)
        base, anchor = inputs(head, batch, 4, 1, deviation=0.1)
        steps, rows = check(head, plan, base, anchor, seed=3)
        assert steps == 4 * batch
        assert rows > 100 * steps

    def test_identical_rows_give_the_lowest(self) -> None:
        head = MarkovHead(
            table=torch.ones(600, 64).bfloat16(), projection=torch.ones(600, 64).bfloat16()
        )
        plan = plan_of(head, blocks=3)
        base = torch.zeros(1, 2, 600, dtype=torch.bfloat16)
        base[0, 1, :350] = -1.0
        tokens = Simulator(head, plan)(base, torch.tensor([5]), most_turns=TURNS)
        assert tokens.tolist() == [[0, 350]]

    def test_rows_out_of_the_vocabulary_never_win(self) -> None:
        head = MarkovHead.random(vocab=65, rank=64, seed=1)
        base = torch.full((1, 2, 65), -math.inf).bfloat16()
        base[0, 1, 64] = -5.0
        tokens = Simulator(head, plan_of(head))(base, torch.tensor([5]), most_turns=TURNS)
        assert tokens.tolist() == [[0, 64]]


@pytest.mark.parametrize("kind", [GatedHead, RnnHead, DominoHead])
@pytest.mark.parametrize(
    ("vocab", "rank", "blocks", "batch"),
    [
        pytest.param(700, 256, 2, 1, id="one request"),
        pytest.param(500, 128, 3, 2, id="two requests"),
        pytest.param(500, 128, 3, 7, id="a warpgroup's requests"),
        pytest.param(300, 64, 2, 16, id="two groups"),
        pytest.param(300, 64, 2, 30, id="four groups, latents fetched later"),
    ],
)
def test_heads_that_read_hidden_states(
    kind: Any, vocab: int, rank: int, blocks: int, batch: int
) -> None:
    """Rows are few copies, nearly, so that steps are close at any latent."""
    drawn = cells.head_of(kind, vocab, rank)
    generator = torch.Generator().manual_seed(vocab)
    same = drawn.projection[torch.arange(vocab) % (vocab // 3)].float()
    same += 1e-3 * torch.randn(vocab, rank, generator=generator)
    head = replace(drawn, projection=same.bfloat16())
    gpu = gpu_spec("h200").with_blocks(blocks)
    plan = plan_residency(head, gpu, batch=batch, steps=32, exact=True)
    simulator, walker = Simulator(head, plan), Walker(head, plan, backend="emulator")
    base, anchor, hidden = cells.inputs(head, batch, 4, 1)
    base = base * 0.25
    tokens = simulator(base, anchor, hidden=hidden, seed=batch, most_turns=TURNS)
    assert torch.equal(tokens, walker(base, anchor, hidden=hidden))
    assert simulator.status.tolist()[5] > 0


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("bits", [0x7FC0, 0xFFC0])
def test_a_nan_of_either_sign_wins_where_base_logits_alone_decide(batch: int, bits: int) -> None:
    head = cells.head_of(DominoHead, 300, 64)
    gpu = gpu_spec("h200").with_blocks(2)
    plan = plan_residency(head, gpu, batch=batch, steps=32, exact=True)
    base, anchor, hidden = cells.inputs(head, batch, 1, 1)
    base = (base * 0.1).bfloat16()
    base[:, 0, 3] = 5.0
    base.view(torch.uint16)[:, 0, 200] = bits
    tokens = Simulator(head, plan)(base, anchor, hidden=hidden, most_turns=TURNS)
    assert tokens.tolist() == [[200]] * batch


def test_biases_whose_share_of_a_scale_is_no_fp32_number() -> None:
    """Measured errors are in levels, and a bias over its row's scale may be larger than fp32."""
    generator = torch.Generator().manual_seed(0)
    rows = -(0.25 + 0.25 * torch.rand(64, 64, generator=generator)).bfloat16()
    latents = ((1 + torch.rand(4, 64, generator=generator)) * 1e36).bfloat16()
    projection = torch.zeros(600, 64).bfloat16()
    for row, latent in ((11, 0), (34, 0), (35, 0), (5, 2)):
        projection[300] = rows[row]
        head = MarkovHead(table=latents[latent].repeat(600, 1), projection=projection.clone())
        exact = lane_product(rows[row : row + 1], latents[latent : latent + 1])[0, 0].bfloat16()
        for near in (exact, torch.nextafter(exact, torch.tensor(-torch.inf).bfloat16())):
            base = torch.full((1, 1, 600), -3.3e38).bfloat16()
            base[0, 0, 300], base[0, 0, 5] = 0.0, near
            check(head, plan_of(head, blocks=3), base, torch.tensor([0]))


@pytest.mark.parametrize("batch", [1, 8])
def test_an_undecided_block_below_zero(batch: int) -> None:
    """Its word's key is half a place from its bound, and what a candidate does not keep more."""
    generator = torch.Generator().manual_seed(3)
    row = (torch.randn(64, generator=generator) * 0.1).bfloat16()
    levels, scale = quantise_rows(row[None])
    lost = row.float() - scale * levels.float()[0]
    size = torch.exp(torch.rand(256, 1, generator=generator) * 3) * 3
    latent = torch.randn(256, 64, generator=generator) * 0.05 * size
    latent = (latent - lost / lost.abs().max() * size).bfloat16()[197]
    projection = torch.zeros(600, 64).bfloat16()
    projection[300] = row
    head = MarkovHead(table=latent.repeat(600, 1), projection=projection)
    base = torch.full((batch, 1, 600), -1000.0)
    base[:, 0, 300], base[:, 0, 5] = -0.8359375, -1.109375
    anchor = torch.zeros(batch, dtype=torch.int64)
    check(head, plan_of(head, blocks=3, batch=batch), base.bfloat16(), anchor)


HEAD = noise_head(300, 64, 3)
PLAN = plan_of(HEAD, batch=4, blocks=3)


@given(st.integers(0, 1 << 30), st.sampled_from(["base", "rows", "latents"]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nan_and_infinity(seed: int, where: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0]).bfloat16()

    def spoiled(tensor: torch.Tensor, share: float) -> torch.Tensor:
        chosen = special[torch.randint(0, 5, tensor.shape, generator=generator)]
        return torch.where(torch.rand(tensor.shape, generator=generator) < share, chosen, tensor)

    base, anchor = inputs(HEAD, 4, 3, seed, deviation=1.0)
    table, projection = HEAD.table, HEAD.projection
    if where == "base":
        base = torch.stack(
            [spoiled(b, share) for b, share in zip(base[:3], (0.01, 0.5, 1.0), strict=True)]
        )
        base = torch.cat([base, torch.full_like(base[:1], -math.inf)])
    elif where == "rows":
        projection = spoiled(projection, 0.001)
    else:
        table = spoiled(table, 0.003)
    head = MarkovHead(table=table, projection=projection)
    check(head, PLAN, base, anchor, seed=seed)


@given(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(0, 9))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schedule_and_layout(seed: int, batch: int, padding: int) -> None:
    """One workspace, walk after walk: second words of earlier exchanges are nobody's."""
    simulator = Simulator(HEAD, PLAN, sequence=seed % 50 + 2)
    walker = Walker(HEAD, PLAN, backend="emulator")
    for more in range(2):
        base, anchor = inputs(HEAD, batch, 5, seed + more, deviation=1.0, padding=padding)
        tokens = simulator(base, anchor, seed=seed, most_turns=TURNS)
        assert torch.equal(tokens, walker(base, anchor))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e10, 1e30])
def test_weights_of_any_size(scale: float) -> None:
    head = MarkovHead(table=HEAD.table * scale, projection=HEAD.projection)
    other = MarkovHead(table=HEAD.table, projection=HEAD.projection * scale)
    tiny = MarkovHead(table=HEAD.table * scale, projection=HEAD.projection * scale)
    base, anchor = inputs(HEAD, 2, 2, 1, deviation=0.0)
    for one in (head, other, tiny):
        check(one, PLAN, base, anchor)


@pytest.mark.parametrize("batch", [1, 8])
def test_numbers_of_very_different_size(batch: int) -> None:
    """Some latents' bounds are infinite: of their words nothing is sure."""
    generator = torch.Generator().manual_seed(batch)

    def mixed(tensor: torch.Tensor, sizes: list[float]) -> torch.Tensor:
        chosen = torch.randint(0, len(sizes), (len(tensor), 1), generator=generator)
        return (tensor.float() * torch.tensor(sizes)[chosen]).bfloat16()

    drawn = noise_head(600, 64, 4)
    head = MarkovHead(
        table=mixed(drawn.table, [1.0, 1e-36, 1e30, 0.0, 1e-30]),
        projection=mixed(drawn.projection, [1.0, 1.0, 1e-3, 1e8, 0.0]),
    )
    plan = plan_of(head, batch=batch, blocks=3)
    for seed in range(3):
        base, anchor = inputs(head, batch, 3, seed, deviation=1.0)
        check(head, plan, base, anchor, seed=seed)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_huge_row_widens_nobodys_margin(batch: int) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, table = (torch.randn(1400, 64, generator=generator) * size for size in (0.1, 1.0))
    rows[-1] *= 1000
    head = MarkovHead(table=table.bfloat16(), projection=rows.bfloat16())
    base = torch.randn(batch, 1, 1400, generator=generator)
    anchor = torch.randint(0, 1400, (batch,), generator=generator)
    bias = head.table[anchor].float() @ head.projection.float().T
    base[:, 0, -1] = -bias[:, -1] - 20
    base[:, 0, [3, 70]] = 8.0 - bias[:, [3, 70]]  # nearly equal, in one block, which is undecided
    steps, computed = check(head, plan_of(head, batch=batch, blocks=6), base.bfloat16(), anchor)
    assert steps <= computed <= 5 * batch


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("rows", ["one is not finite", "one is tiny"])
def test_no_weight_reaches_the_first_token_of_a_domino_head(rows: str, batch: int) -> None:
    drawn = cells.head_of(DominoHead, 300, 64)
    projection = drawn.projection.clone()
    if rows == "one is tiny":
        projection[250] = 1e-6
    else:
        projection[200, 5] = math.nan
    head = replace(drawn, projection=projection)
    gpu = gpu_spec("h200").with_blocks(2)
    plan = plan_residency(head, gpu, batch=batch, steps=32, exact=True)
    base, anchor, hidden = cells.inputs(head, batch, 1, 1)
    base = base * 0.1
    base[:, 0, 3] = base[:, 0, 200] = 5.0
    if rows == "one is tiny":
        base[:, 0, 3] = 50.0
    simulator = Simulator(head, plan)
    tokens = simulator(base.bfloat16(), anchor, hidden=hidden, most_turns=TURNS)
    assert tokens.tolist() == [[3]] * batch
    assert (simulator.status[5] == 0) == (rows == "one is tiny")
