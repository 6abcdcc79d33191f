"""Exact walks without a kernel: what they compute, and that the bounds they screen by hold.

The emulator's tokens are the formula's with sums in their fixed order; int8 tokens are not. Every
exact logit lies between its key and what the kernel takes for certain of it, for any finite head.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import hopper
from wts.errors import HeadError, PlanError
from wts.heads.kinds import Shape
from wts.heads.markov import MarkovHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.variants import with_selection
from wts.numerics.exact_bounds import exact_logits, latent_bounds, residuals_of, screen_of
from wts.numerics.lane_sums import lane_product
from wts.numerics.quantise import quantise_latents, quantise_rows
from wts.walk.reference import exact_walk, reference_walk
from wts.walk.walker import Walker

CPU = torch.device("cpu")


def plan_of(head: MarkovHead, **changes: Any) -> ResidentPlan:
    arguments: dict[str, Any] = {"batch": 4, "steps": 8, "exact": True} | changes
    return plan_residency(head, hopper(3), **arguments)


def near_ties(vocab: int, rank: int, seed: int) -> tuple[MarkovHead, torch.Tensor, torch.Tensor]:
    """A head whose rows differ in less than an int8 level, so that int8 turns tokens."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(1, rank, generator=generator)
    rows = row + torch.randn(vocab, rank, generator=generator) * 2e-3
    table = torch.randn(vocab, rank, generator=generator)
    head = MarkovHead(table=table.bfloat16(), projection=(rows / rank).bfloat16())
    base = torch.zeros(4, 8, vocab, dtype=torch.bfloat16)
    return head, base, torch.randint(0, vocab, (4,), generator=generator)


class TestWhatIsComputed:
    @pytest.mark.parametrize("rank", [64, 128, 256, 512])
    def test_emulator_and_formula_agree_where_int8_does_not(self, rank: int) -> None:
        head, base, anchor = near_ties(500, rank, rank)
        plan = plan_of(head)
        tokens = Walker(head, plan, backend="emulator", exact=True)(base, anchor)
        assert torch.equal(tokens, exact_walk(head, base, anchor))
        int8 = Walker(head, with_selection(plan, "greedy"), backend="emulator")(base, anchor)
        assert not torch.equal(tokens, int8)

    def test_a_draft_vocabulary(self) -> None:
        head = MarkovHead.random(vocab=900, rank=64, seed=2, draft_vocab=333)
        base = torch.randn(2, 5, 333).bfloat16()
        anchor = torch.tensor([3, 899])
        tokens = Walker(head, plan_of(head), backend="emulator")(base, anchor)
        assert torch.equal(tokens, exact_walk(head, base, anchor))

    def test_logits_are_the_lane_products(self) -> None:
        head = MarkovHead.random(vocab=300, rank=256, seed=1)
        latent, base = head.table[:3], torch.randn(3, 300).bfloat16()
        bias = lane_product(head.projection, latent).bfloat16()
        wanted = (base.double() + bias.double()).float().bfloat16()
        assert torch.equal(exact_logits(head.projection, base, latent), wanted)
        assert torch.equal(exact_logits(head.projection, base, None), base)

    def test_tokens_are_the_reference_s_where_no_order_matters(self) -> None:
        head = MarkovHead.random(vocab=400, rank=64, seed=5)
        base, anchor = torch.randn(3, 6, 400).bfloat16(), torch.tensor([1, 2, 3])
        assert torch.equal(exact_walk(head, base, anchor), reference_walk(head, base, anchor))

    def test_refresh_takes_new_weights(self) -> None:
        head, base, anchor = near_ties(300, 64, 1)
        other, *_ = near_ties(300, 64, 2)
        walker = Walker(head, plan_of(head), backend="emulator")
        walker.refresh(other)
        assert torch.equal(walker(base, anchor), exact_walk(other, base, anchor))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_a_refresh_that_is_refused_changes_nothing(self, dtype: torch.dtype) -> None:
        head, base, anchor = near_ties(300, 64, 1)
        other, *_ = near_ties(300, 64, 2)
        wrong = MarkovHead(table=other.table, projection=other.projection.to(dtype))
        walker = Walker(head, plan_of(head), backend="emulator")
        assert walker.packed is not None
        before = [weight.clone() for weight in walker.packed.tensors]
        with pytest.raises(HeadError, match="projection: wanted bfloat16 for an exact walk"):
            walker.refresh(wrong)
        assert all(map(torch.equal, before, walker.packed.tensors))
        assert torch.equal(walker(base, anchor), exact_walk(head, base, anchor))


class TestWhatIsRefused:
    def test_a_sampled_plan(self) -> None:
        with pytest.raises(PlanError, match="exports the very logits"):
            plan_residency(Shape(vocab=300, rank=64), hopper(), sampled=True, exact=True)

    @pytest.mark.parametrize("changes", [{"base_type": "fp32"}, {"table_type": "fp16"}])
    def test_other_number_types(self, changes: dict[str, Any]) -> None:
        table = changes.pop("table_type", "bf16")
        with pytest.raises(PlanError, match="wanted base logits and a table in bf16"):
            plan_residency(
                Shape(vocab=300, rank=64, table_type=table), hopper(), exact=True, **changes
            )

    def test_more_rows_than_a_word_can_name(self) -> None:
        with pytest.raises(PlanError, match="at most 2048 rows a block, found 2176"):
            plan_residency(Shape(vocab=2100, rank=64), hopper(1), exact=True)

    def test_a_projection_of_another_type(self) -> None:
        head = MarkovHead.random(vocab=300, rank=64, seed=1)
        wide = MarkovHead(table=head.table, projection=head.projection.float())
        with pytest.raises(HeadError, match="projection: wanted bfloat16"):
            Walker(wide, plan_of(wide), backend="emulator")

    @pytest.mark.parametrize("exact", [True, False])
    def test_a_plan_that_says_otherwise(self, exact: bool) -> None:
        head = MarkovHead.random(vocab=300, rank=64, seed=1)
        with pytest.raises(PlanError, match=f"exact={exact}"):
            Walker(head, plan_of(head, exact=not exact), backend="emulator", exact=exact)


def test_weights_are_not_copied_where_they_can_be_read() -> None:
    head = MarkovHead.random(vocab=300, rank=64, seed=1)
    plan = plan_of(head)
    exact = pack_head(head, plan, CPU).exact
    assert exact is not None
    assert exact.table is not None
    assert exact.projection.data_ptr() == head.projection.data_ptr()
    assert exact.table.data_ptr() == head.table.data_ptr()
    assert exact.memory_bytes == exact.screen.nbytes
    odd = torch.zeros(300 * 64 + 1, dtype=torch.bfloat16)[1:].view(300, 64)
    odd.copy_(head.projection)
    copied = pack_head(MarkovHead(table=head.table, projection=odd), plan, CPU).exact
    assert copied is not None
    assert copied.projection.data_ptr() % 16 == 0
    assert copied.memory_bytes == odd.nbytes + copied.screen.nbytes


def test_the_ledger_says_exact() -> None:
    head = MarkovHead.random(vocab=300, rank=64, seed=1)
    plan, other = plan_of(head), plan_of(head, exact=False)
    assert "exact" in str(plan)
    assert "exact" not in str(other)
    assert plan.hash != other.hash


# ---- bounds ------------------------------------------------------------------------------------

SPECIAL = (0.0, 2.0**-140, 1e-35, 1e-20, 1e-6, 30.0, 1e4, 1e15, 1e30)


def of_kernel(name: str) -> float:
    """A number of csrc/select/exact_bounds.cuh, which is typed there alone."""
    source = (files("wts") / "csrc" / "select" / "exact_bounds.cuh").read_text()
    found = re.findall(rf"\b{name} = ([0-9.e+-]+)f\b", source)
    assert len(found) == 1, name
    return float(found[0])


FP32_PLACES, LEAST_PLACE = of_kernel("FP32_PLACES"), of_kernel("LEAST_PLACE")
HALF_PLACE, LARGEST_DECIDED = of_kernel("HALF_PLACE"), of_kernel("LARGEST_DECIDED")


def bounds(base: torch.Tensor, dot: torch.Tensor, scale: torch.Tensor, slack: torch.Tensor) -> Any:
    """Raised sums of csrc/weights/int8.cuh, rounding by rounding: fp32 [n, V]."""
    raised = dot.int().float() + slack[:, None]
    return base + raised * scale


def least(
    bound: torch.Tensor, relative: float, scale: torch.Tensor, margin: torch.Tensor
) -> torch.Tensor:
    """What the kernel takes for certain (`least_key` of csrc/select/exact_bounds.cuh)."""
    below = bound.abs().double() * relative + scale.double() * margin[:, None] + LEAST_PLACE
    return (bound.double() - below).float().bfloat16().float()


def kept(bound: torch.Tensor, *, largest: bool) -> torch.Tensor:
    """The bound that is left of a candidate, whose eleven last bits name its row."""
    bits = bound.view(torch.int32)
    flip = (bits >> 31) & 0x7FFFFFFF
    ordered = (bits ^ flip) & -2048 | (2047 if largest else 0)
    return (ordered ^ flip).view(torch.float32)


@given(
    st.integers(0, 1 << 30),
    st.sampled_from([64, 256, 512]),
    st.sampled_from(["normal", "heavy", "flat", "sparse"]),
    st.sampled_from(SPECIAL),
    st.sampled_from(SPECIAL),
    st.sampled_from(SPECIAL),
)
@settings(max_examples=150, deadline=None)
def test_exact_logits_lie_within_their_bounds(
    seed: int, rank: int, shape: str, of_row: float, of_latent: float, of_base: float
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> torch.Tensor:
        values = torch.randn(rows, rank, generator=generator)
        if shape == "heavy":
            values = values**5
        if shape == "flat":
            values = values.sign()
        if shape == "sparse":
            values *= torch.rand(rows, rank, generator=generator) < 0.05
        return values

    weight, latent = draw(64), draw(6)
    weight[::3] *= of_row
    latent[::2] *= of_latent
    weight[5], latent[5] = 0.0, 0.0
    latent[4] = weight[7] / weight[7].abs().amax().clamp_min(1e-38)  # the worst one of row 7
    weight, latent = weight.bfloat16(), latent.bfloat16()
    base = (torch.randn(6, 64, generator=generator) * of_base).bfloat16()
    exact = exact_logits(weight, base, latent).float()
    levels, scale = quantise_rows(weight)
    high, low, latent_scale = quantise_latents(latent)
    screen = screen_of(weight, scale, levels)
    whole = 256 * high.int() + low.int()
    dot = whole.double() @ levels.double().T
    residuals = residuals_of(weight, scale, levels, len(latent))
    assert residuals is not None
    slacks = []
    for measured in (None, residuals):
        slack, margin = latent_bounds(latent, whole, latent_scale, screen, measured)
        bound = bounds(base.float(), dot, scale[None] * latent_scale[:, None], slack)
        key = kept(bound, largest=True).bfloat16().float()
        # Else the block is undecided, and its exact logits are computed whatever the bound.
        decided = kept(bound, largest=False).abs() < LARGEST_DECIDED
        assert bool((key >= exact)[decided].all())
        certain = least(kept(bound, largest=False), FP32_PLACES, scale, margin)
        assert bool((certain <= exact)[decided].all())
        # By a word that does not say how many places, and the largest scale.
        rough = least(key, HALF_PLACE, screen[0], margin)
        assert bool((rough <= exact)[decided].all())
        slacks.append(slack)
    assert bool((slacks[1] <= slacks[0]).all())
    if shape == "normal" and (of_row, of_latent, of_base) == (30.0, 30.0, 0.0):
        assert float((key - certain).max()) < 1e4, "bounds say something"


def test_bounds_are_of_use_beside_rows_of_large_scale() -> None:
    """One row a thousand times the others: theirs stay as narrow as they are."""
    head = MarkovHead.random(vocab=2000, rank=256, seed=1)
    large = head.projection.clone()
    large[7] *= 1000
    for weight in (head.projection, large):
        levels, scale = quantise_rows(weight)
        screen = screen_of(weight, scale, levels)
        high, low, latent_scale = quantise_latents(head.table[:1])
        whole = 256 * high.int() + low.int()
        for residuals in (None, residuals_of(weight, scale, levels, 1)):
            _, margin = latent_bounds(head.table[:1], whole, latent_scale, screen, residuals)
            assert float((scale * margin).median()) < 1.0


def test_measured_bounds_are_narrow() -> None:
    head = MarkovHead.random(vocab=3000, rank=256, seed=1)
    levels, scale = quantise_rows(head.projection)
    screen = screen_of(head.projection, scale, levels)
    high, low, latent_scale = quantise_latents(head.table[:50])
    given = head.table[:50], 256 * high.int() + low.int(), latent_scale, screen
    residuals = residuals_of(head.projection, scale, levels, 50)
    (by_length, _), (measured, _) = latent_bounds(*given), latent_bounds(*given, residuals)
    assert float((measured / by_length).median()) < 0.15
    assert residuals_of(head.projection, scale, levels, 1 << 20) is None, "not on a CPU"


def test_rows_that_are_not_finite_are_left_out_of_residuals() -> None:
    weight = torch.randn(40, 64).bfloat16()
    weight[3, 5], weight[7] = torch.nan, 0.0
    levels, scale = quantise_rows(weight)
    found = residuals_of(weight, scale, levels, 1)
    assert found is not None
    numbers = found.rows, found.levels, found.scale, found.length
    assert all(bool(one.isfinite().all()) for one in numbers)
    assert not found.rows[[3, 7]].any()
