"""A set of Walkers: the tokens of single ones, at every batch, of weights packed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from strategies import KINDS, anchors, base_logits, hidden_states, hopper, recurrent_head
from wts.errors import HeadError, InputError, PlanError, WalkTimeout
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.numerics.gumbel import Noise
from wts.walk.backends import BackendName
from wts.walk.walker import Walker
from wts.walk.walker_set import WalkerSet

BATCHES = (1, 2, 4, 8, 16)
EMULATOR: BackendName = "emulator"


def markov(seed: int = 1, **others: Any) -> MarkovHead:
    return MarkovHead.random(**({"vocab": 700, "rank": 64, "seed": seed} | others))


def set_of(head: Any, batches: tuple[int, ...] = BATCHES, **others: Any) -> WalkerSet:
    options: dict[str, Any] = {"backend": EMULATOR, **others}
    return WalkerSet(head, hopper(3), batches=batches, steps=8, **options)


def check(walkers: WalkerSet, head: Any, batch: int, seed: int) -> torch.Tensor:
    """Tokens of the set's Walker and of one that shares nothing."""
    base, anchor = base_logits(head, batch=batch, steps=4, seed=seed), anchors(head, batch, seed)
    hidden = None
    if head.hidden_size is not None:
        hidden = hidden_states(head, batch=batch, steps=4, seed=seed)
    walker = walkers.for_batch(batch)
    tokens = walker(base, anchor, hidden=hidden)
    alone = Walker(head, walker.plan, backend=EMULATOR)
    assert torch.equal(tokens, alone(base, anchor, hidden=hidden))
    return tokens


@pytest.mark.parametrize("head", [markov(), markov(draft_vocab=300), *map(recurrent_head, KINDS)])
def test_every_batch_has_the_tokens_of_a_walker_of_its_own(head: Any) -> None:
    walkers = set_of(head)
    for batch in (1, 2, 3, 4, 5, 8, 9, 16):
        walker = walkers.for_batch(batch)
        assert walker.plan.request.batch >= batch
        assert walker.packed is not None
        assert walker.packed.hidden_inside == walker.plan.recurrence.hidden_inside
        check(walkers, head, batch, batch)


@pytest.mark.parametrize("head", [markov(), *map(recurrent_head, KINDS)])
def test_refreshed_weights_are_walked_at_every_batch(head: Any) -> None:
    walkers = set_of(head, (1, 4, 8))
    before = [check(walkers, head, batch, 3) for batch in (1, 4, 8)]
    tensors = [id(tensor) for walker in walkers.walkers for tensor in walker.packed.tensors]  # type: ignore[union-attr]
    other = markov(seed=2) if isinstance(head, MarkovHead) else recurrent_head(type(head), seed=99)
    walkers.refresh(other)
    after = [check(walkers, other, batch, 3) for batch in (1, 4, 8)]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert tensors == [id(t) for walker in walkers.walkers for t in walker.packed.tensors]  # type: ignore[union-attr]


def test_the_table_is_packed_once_and_the_projection_once_for_each_order() -> None:
    walkers = set_of(markov())
    packed = [walker.packed for walker in walkers.walkers]
    assert all(one is not None and one.table is packed[0].table for one in packed)  # type: ignore[union-attr]
    orders = {plan.placement.tile_order for plan in walkers.plans}
    assert len(orders) == 2  # of lone warps and of warpgroups
    assert len({id(one.tiles) for one in packed if one is not None}) == len(orders)
    alone = [Walker(markov(), plan, backend=EMULATOR).memory_bytes for plan in walkers.plans]
    first, last = packed[0], packed[-1]
    assert first is not None
    assert last is not None
    assert walkers.memory_bytes == first.memory_bytes + last.tiles.nbytes + last.row_scale.nbytes
    assert walkers.memory_bytes < sum(alone)


@pytest.mark.parametrize("head", [markov(), *map(recurrent_head, KINDS)])
def test_exact_walks_share_what_they_read_too(head: Any) -> None:
    walkers = set_of(head, (1, 8), exact=True)
    first, last = (walkers.for_batch(batch).packed for batch in (1, 8))
    assert first is not None
    assert last is not None
    assert first.exact is last.exact is not None
    assert walkers.memory_bytes == first.memory_bytes + last.tiles.nbytes + last.row_scale.nbytes
    for batch in (1, 8):
        assert walkers.for_batch(batch).plan.request.exact
        check(walkers, head, batch, batch)


def every_kind_of_walk(head: MarkovHead) -> list[Walker]:
    """Walkers that share what they can, of plans that can share some."""
    walkers: list[Walker] = []
    for kind in ({}, {"exact": True}, {"weights": "bf16"}, {"sampled": True}) * 2:
        options: dict[str, Any] = {"batch": 1 if len(walkers) < 4 else 8, "steps": 8, **kind}
        plan = plan_residency(head, hopper(3), **options)
        walkers.append(Walker(head, plan, backend=EMULATOR, sharing=list(walkers)))
    return walkers


def held(walkers: Sequence[Walker]) -> list[torch.Tensor]:
    return [t for walker in walkers for t in walker.packed.tensors]  # type: ignore[union-attr]


def test_walkers_of_every_kind_share_only_what_is_the_same() -> None:
    head, other = markov(), markov(seed=2)
    mixed = set_of(head, (1,))
    mixed.walkers = tuple(every_kind_of_walk(head))
    for packed in (head, other):
        fresh = [Walker(packed, walker.plan, backend=EMULATOR) for walker in mixed.walkers]
        assert all(map(torch.equal, held(mixed.walkers), held(fresh)))
        mixed.refresh(other)


def test_a_refresh_that_one_cannot_take_changes_none() -> None:
    head, other = markov(), markov(seed=2)
    mixed = set_of(head, (1,))
    mixed.walkers = tuple(every_kind_of_walk(head))
    before = [tensor.clone() for tensor in held(mixed.walkers)]
    wrong = MarkovHead(table=other.table, projection=other.projection.float())
    with pytest.raises(HeadError, match="projection: wanted bfloat16 for an exact walk"):
        mixed.refresh(wrong)
    assert all(map(torch.equal, held(mixed.walkers), before))


def test_plans_of_other_orders_do_not_share() -> None:
    """What is streamed lies in another order; so do the tiles of fewer blocks."""
    small, large = (hopper(blocks) for blocks in (2, 3))
    one, other = (plan_residency(markov(), gpu, batch=1) for gpu in (small, large))
    assert one.placement.tile_order != other.placement.tile_order
    head = markov(vocab=5003, rank=256)
    streamed = plan_residency(head, small, batch=1, steps=8)
    assert streamed.placement.streamed_fragments > 0
    walkers = WalkerSet(head, small, batches=(1, 2, 4), steps=8, backend=EMULATOR)
    for batch in (1, 2, 4):
        check(walkers, head, batch, 1)


def test_reference_walkers_hold_weights_of_their_own() -> None:
    walkers = set_of(markov(), (1, 4), backend="reference")
    assert walkers.memory_bytes == sum(walker.memory_bytes for walker in walkers.walkers)


def test_every_walker_is_asked_before_one_error_is_raised() -> None:
    class GivenUp:
        def __init__(self, name: str) -> None:
            self.name, self.asked = name, 0

        def check(self) -> None:
            self.asked += 1
            raise WalkTimeout(self.name)

    walkers = set_of(markov(), (1,))
    walkers.check()
    given_up = [GivenUp("first"), GivenUp("second")]
    walkers.walkers = [*given_up, *walkers.walkers]  # type: ignore[list-item]
    with pytest.raises(WalkTimeout, match="first"):
        walkers.check()
    assert [walker.asked for walker in given_up] == [1, 1]


def test_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match="batches: wanted at least one, found none"):
        set_of(markov(), ())
    walkers = set_of(markov(), (1, 4))
    with pytest.raises(InputError, match="batch: wanted at most 4, as planned, found 5"):
        walkers.for_batch(5)
    with pytest.raises(PlanError):
        walkers.refresh(markov(vocab=701))


def test_a_walker_that_shares_its_weights_is_not_refreshed_alone() -> None:
    walkers = set_of(markov(), (1, 4))
    with pytest.raises(InputError, match=r"found one that shares them; .* WalkerSet\.refresh"):
        walkers.for_batch(1).refresh(markov(seed=2))


@pytest.mark.parametrize("others", [[3], "another head"])
def test_only_walkers_of_the_same_head_are_shared(others: Any) -> None:
    plan = plan_residency(markov(), hopper(3), batch=1, steps=8)
    if others == "another head":
        others = [Walker(markov(seed=2), plan, backend=EMULATOR)]
    with pytest.raises(InputError, match="sharing: wanted Walkers of this very head, found"):
        Walker(markov(), plan, backend=EMULATOR, sharing=others)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({"sampled": True}, "none sampled", id="sampled itself"),
        pytest.param({"batch": 1}, "at least 2 requests", id="fewer requests"),
        pytest.param({"steps": 4}, "8 steps", id="fewer steps"),
        pytest.param({"exact": True}, "exact False", id="other tokens"),
        pytest.param({"weights": "bf16"}, "weights int8", id="other weights"),
        pytest.param({"base_type": "fp32"}, "base_type bf16", id="other base logits"),
    ],
)
def test_a_plan_that_cannot_take_greedy_batches_over(options: dict[str, Any], named: str) -> None:
    head = markov()
    plan = plan_residency(head, hopper(3), batch=2, steps=8, sampled=True)
    other = plan_residency(head, hopper(3), **{"batch": 2, "steps": 8, **options})
    with pytest.raises(PlanError, match=f"greedy_plan: wanted .*{named}"):
        Walker(head, plan, backend=EMULATOR, greedy_plan=other)


def test_a_greedy_plan_beside_a_greedy_one() -> None:
    head = markov()
    plan = plan_residency(head, hopper(3), batch=2, steps=8)
    with pytest.raises(PlanError, match="greedy_plan: wanted none beside a plan"):
        Walker(head, plan, backend=EMULATOR, greedy_plan=plan)


def test_tokens_are_the_same_with_a_greedy_plan() -> None:
    head = markov()
    plan, greedy = (
        plan_residency(head, hopper(3), batch=2, steps=8, sampled=sampled)
        for sampled in (True, False)
    )
    base, anchor = base_logits(head, batch=2, steps=4, seed=1), anchors(head, 2, 1)
    for temperatures in (torch.zeros(2), torch.tensor([0.0, 0.9])):
        tokens = [
            Walker(head, plan, backend=EMULATOR, greedy_plan=beside)(
                base,
                anchor,
                temperatures=temperatures,
                noise=Noise(key=5, offset=torch.zeros(1, dtype=torch.int64)),
            )
            for beside in (None, greedy)
        ]
        assert torch.equal(*tokens)
