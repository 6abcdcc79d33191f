"""The cases of cases/cases.json for heads that read hidden states, where they make sense there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds import decided
from intervals import latent_interval, walk_bound
from strategies import (
    DTYPES,
    KINDS,
    RecurrentHead,
    anchors,
    base_logits,
    hidden_states,
    recurrent_head,
)
from walks import Drawn, Way, plan_of, run, run_sampled, walker_of
from wts.dtypes import NUMBER_TYPES
from wts.errors import HeadError
from wts.heads.base import with_weights
from wts.heads.domino import DominoHead
from wts.heads.kinds import RANKS
from wts.numerics.gumbel import Noise
from wts.numerics.order import select_greedy
from wts.numerics.step_logits import step_logits
from wts.walk.backends import BackendName
from wts.walk.reference import reference_walk
from wts.walk.walker import Walker

INF = math.inf
NAN = math.nan
BF16 = torch.bfloat16
CASES = json.loads((Path(__file__).parent / "cases" / "cases.json").read_text())

COVERED: set[str] = set()
# Of the kernel, or of a selection and a noise that no head has a part in.
OF_NO_HEAD = {
    "graph-bakes-its-inputs",
    "graph-bakes-its-noise",
    "beside-another-kernel",
    "sampler-ignores-temperature",
}

Test = TypeVar("Test", bound=Callable[..., Any])

each_kind = pytest.mark.parametrize("kind", KINDS)


def case(name: str) -> Callable[[Test], Test]:
    """Names the case that a test is of."""

    def register(test: Test) -> Test:
        COVERED.add(name)
        return test

    return register


@pytest.fixture(
    scope="session", params=["emulator", "emulator exact", "emulator bf16", "reference"]
)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


def test_every_case_is_of_these_heads_or_of_none() -> None:
    assert {entry["id"] for entry in CASES} == COVERED | OF_NO_HEAD
    assert not COVERED & OF_NO_HEAD


def walk(
    way: Way,
    head: RecurrentHead,
    base: torch.Tensor,
    anchor: torch.Tensor,
    hidden: torch.Tensor,
    *,
    blocks: int | None = None,
) -> torch.Tensor:
    base_type = next(name for name in NUMBER_TYPES if DTYPES[name] == base.dtype)
    walker = walker_of(way, head, batch=8, blocks=blocks, base_type=base_type)
    return run(walker, base, anchor, hidden)


def sample(
    way: Way,
    head: RecurrentHead,
    base: torch.Tensor,
    anchor: torch.Tensor,
    hidden: torch.Tensor,
    temperatures: list[float],
) -> Drawn:
    walker = walker_of(way, head, batch=8, sampled=True)
    return run_sampled(walker, base, anchor, temperatures, offset=3, hidden=hidden)


def drawn_inputs(
    head: RecurrentHead, batch: int, steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Base logits that leave most decisions to the head, anchors, hidden states."""
    base = (base_logits(head, batch=batch, steps=steps, seed=3).float() / 4).bfloat16()
    return base, anchors(head, batch, 1), hidden_states(head, batch=batch, steps=steps, seed=2)


def silent(kind: type[RecurrentHead], vocab: int) -> RecurrentHead:
    """A head that adds nothing: W = 0."""
    head = recurrent_head(kind, vocab=vocab, seed=1)
    head.projection.zero_()
    return head


# ---- numbers that are not finite ---------------------------------------------------------------


@case("nan-row")
@each_kind
@given(data=st.data())
@settings(max_examples=15)
def test_a_nan_gives_the_lowest_nan_id_and_harms_no_other(
    way: Way, kind: type[RecurrentHead], data: st.DataObject
) -> None:
    head = recurrent_head(kind)
    base, anchor, hidden = drawn_inputs(head, 3, 6)
    request, step = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 5))
    bad = data.draw(st.lists(st.integers(0, head.vocab - 1), min_size=1, max_size=5))
    plain = walk(way, head, base, anchor, hidden)
    base[request, step, bad] = NAN
    tokens = walk(way, head, base, anchor, hidden)
    others = [other for other in range(3) if other != request]
    assert torch.equal(tokens[others], plain[others])
    assert torch.equal(tokens[request, :step], plain[request, :step])
    assert tokens[request, step] == min(bad)
    # The walk goes on from that token: as if its base logit had been by far the largest.
    base[request, step] = 0.0
    base[request, step, min(bad)] = 1000.0
    assert torch.equal(tokens, walk(way, head, base, anchor, hidden))


@case("nan-row")
@each_kind
def test_a_hidden_state_of_nan_gives_token_0(way: Way, kind: type[RecurrentHead]) -> None:
    """At its step; a Domino head forgets it, and an RNN's state does not get rid of it."""
    head = recurrent_head(kind)
    base, anchor, hidden = drawn_inputs(head, 3, 6)
    plain = walk(way, head, base, anchor, hidden)
    hidden[1, 2, 17] = NAN
    tokens = walk(way, head, base, anchor, hidden)
    assert torch.equal(tokens[[0, 2]], plain[[0, 2]])
    assert torch.equal(tokens[1, :2], plain[1, :2])
    assert tokens[1, 2] == 0
    if kind.kind == "rnn":
        assert tokens[1, 2:].tolist() == [0] * 4
        return
    hidden[1, 2, 17] = 0.0
    base[1, 2] = 0.0
    base[1, 2, 0] = 1000.0
    assert torch.equal(tokens, walk(way, head, base, anchor, hidden))


@case("nan-everywhere")
@each_kind
@pytest.mark.parametrize("draft_vocab", [None, 333])
@pytest.mark.parametrize("what", ["base", "hidden", "table", "state", "all"])
def test_nothing_but_nan_gives_tokens_in_range(
    way: Way, kind: type[RecurrentHead], draft_vocab: int | None, what: str
) -> None:
    head = recurrent_head(kind, draft_vocab=draft_vocab)
    base, anchor, hidden = drawn_inputs(head, 5, 4)
    if what in ("base", "all"):
        base[:] = NAN
    if what in ("hidden", "all"):
        hidden[:] = NAN
    if what in ("table", "all"):
        head.table[:] = NAN
    if what in ("state", "all") and kind.kind != "gated":
        head.state_weight[:] = NAN  # type: ignore[union-attr]
    tokens = walk(way, head, base, anchor, hidden)
    assert bool(((tokens >= 0) & (tokens < head.table_rows)).all())
    if what in ("hidden", "table", "all"):  # no logit but NaN, first Domino tokens excepted
        lowest = 0 if head.draft_to_target is None else int(head.draft_to_target[0])
        assert tokens[:, 1:].unique().tolist() == [lowest]


@case("masked-by-grammar")
@each_kind
@given(data=st.data())
@settings(max_examples=10)
def test_only_allowed_ids_are_drawn(
    way: Way, kind: type[RecurrentHead], data: st.DataObject
) -> None:
    head = recurrent_head(kind)
    plain, anchor, hidden = drawn_inputs(head, 2, 6)
    ids = st.integers(0, head.vocab - 1)
    allowed = [data.draw(st.sets(ids, max_size=3)) for _ in range(6)]
    base = torch.full_like(plain, -INF)
    for step, kept in enumerate(allowed):
        base[:, step, list(kept)] = plain[:, step, list(kept)]
    greedy = walk(way, head, base, anchor, hidden)
    hot = sample(way, head, base, anchor, hidden, [1.0, 20.0]).tokens
    for tokens in (greedy, hot):
        for step, kept in enumerate(allowed):
            assert set(tokens[:, step].tolist()) <= (kept or {0})


# ---- ids at the edges --------------------------------------------------------------------------


@case("ids-at-the-edge")
@each_kind
@pytest.mark.parametrize("draft_vocab", [None, 333])
def test_anchors_outside_the_table_are_clamped_and_reported(
    way: Way, kind: type[RecurrentHead], draft_vocab: int | None
) -> None:
    head = recurrent_head(kind, draft_vocab=draft_vocab)
    last = head.table_rows - 1
    base, _, hidden = drawn_inputs(head, 5, 3)
    anchor = torch.tensor([-1, last + 1, 11, 2**40, -(2**63)])
    inside = torch.tensor([0, last, 11, last, 0])
    walker = walker_of(way, head, batch=5)
    before = walker.report().clamped_anchors
    tokens = run(walker, base, anchor, hidden)
    assert torch.equal(tokens, run(walker, base, inside, hidden))
    assert walker.report().clamped_anchors - before == 4


@case("tie-lowest-id")
@each_kind
@pytest.mark.parametrize("vocab", [1, 7, 15, 16, 17, 2047, 2048, 2049])
def test_token_0_wins_where_all_are_equal(way: Way, kind: type[RecurrentHead], vocab: int) -> None:
    head = silent(kind, vocab)
    _, anchor, hidden = drawn_inputs(head, 4, 3)
    base = torch.zeros(4, 3, vocab, dtype=BF16)
    base[:, 1, ::2] = -0.0
    base[:, 2, 1::2] = -0.0
    assert not walk(way, head, base, anchor, hidden).any()


# ---- maps, padding, order of steps -------------------------------------------------------------


@case("draft-map-applied-late")
@each_kind
def test_the_next_look_up_is_of_the_target_id(way: Way, kind: type[RecurrentHead]) -> None:
    """A mapped head is one over the target vocabulary whose other tokens are never allowed."""
    head = recurrent_head(kind, vocab=2001, draft_vocab=701)
    mapping = head.draft_to_target
    assert mapping is not None
    base, anchor, hidden = drawn_inputs(head, 3, 10)
    whole = with_weights(recurrent_head(kind, vocab=2001), torch.clone)
    for name in type(head).__slots__:
        if isinstance(getattr(head, name), torch.Tensor):
            getattr(whole, name).copy_(getattr(head, name))
    whole.table.copy_(head.table)
    whole.projection.zero_()
    whole.projection[mapping] = head.projection
    whole_base = torch.full((3, 10, 2001), -INF, dtype=BF16)
    whole_base[:, :, mapping] = base
    tokens = walk(way, head, base, anchor, hidden)
    assert torch.equal(tokens, walk(way, whole, whole_base, anchor, hidden))
    assert torch.isin(tokens, mapping).all()
    assert torch.equal(tokens, reference_walk(head, base, anchor, hidden=hidden))


@case("tie-lowest-id")
@each_kind
def test_garbage_in_padded_rows_and_columns_never_wins(way: Way, kind: type[RecurrentHead]) -> None:
    plain = recurrent_head(kind)
    base, anchor, hidden = drawn_inputs(plain, 3, 5)
    wanted = walk(way, plain, base, anchor, hidden)
    for garbage in (NAN, INF, 100.0):
        weights = {name: getattr(plain, name) for name in type(plain).__slots__}
        padded = type(plain)(
            table=plain.table,
            projection=torch.cat([plain.projection, torch.full((11, 64), garbage, dtype=BF16)]),
            logical_vocab=517,
            **weights,
        )
        wide = torch.full((3, 5, 528), garbage, dtype=BF16)
        wide[:, :, :517] = base
        assert torch.equal(walk(way, padded, wide, anchor, hidden), wanted)


@case("one-step-off")
@each_kind
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_step_k_reads_base_k(way: Way, kind: type[RecurrentHead], batch: int) -> None:
    head = silent(kind, 517)
    wanted = (torch.arange(batch * 32).view(batch, 32) * 53 + 11) % 517
    base = torch.zeros(batch, 32, 517, dtype=BF16).scatter(2, wanted[:, :, None], 1.0)
    _, anchor, hidden = drawn_inputs(head, batch, 32)
    assert torch.equal(walk(way, head, base, anchor, hidden), wanted)


@case("one-step-off")
@each_kind
def test_step_k_follows_token_k_minus_1_and_hidden_k(way: Way, kind: type[RecurrentHead]) -> None:
    """Each step alone, by the formula, from the token, the state and the hidden state before it."""
    head = recurrent_head(kind, vocab=1500, rank=256)
    base, anchor, hidden = drawn_inputs(head, 4, 12)
    tokens = walk(way, head, base, anchor, hidden)
    state, previous, followed, one_late = head.initial_state(4), anchor, 0, 0
    for step in range(12):
        state, latent = head.latent(state, previous, hidden[:, step])
        logits = step_logits(head, base[:, step], latent)
        followed += int((tokens[:, step] == select_greedy(logits)).sum())
        one_late += int((tokens[:, max(step - 1, 0)] == select_greedy(logits)).sum())
        previous = tokens[:, step]
    assert followed == 48
    assert one_late <= 4, "the first step and nothing else"


@case("domino-first-token")
@pytest.mark.parametrize("shift_label", [False, True])
@pytest.mark.parametrize("block", [2, 16])
def test_a_domino_walk_is_primed_with_the_anchor_and_its_first_token(
    way: Way, shift_label: bool, block: int
) -> None:
    """Block - 1 tokens; the first is the argmax of base[0]; no step is left at 0."""
    head = recurrent_head(DominoHead, vocab=1500, rank=256, shift_label=shift_label)
    assert isinstance(head, DominoHead)
    steps = block - 1
    base, anchor, _ = drawn_inputs(head, 4, steps)
    hidden = head.drafting_hidden(hidden_states(head, batch=4, steps=block, seed=5))
    tokens = walk(way, head, base, anchor, hidden)
    assert tokens.shape == (4, steps)
    assert torch.equal(tokens[:, 0], base[:, 0].float().argmax(1))
    assert bool((tokens[:, 1:] != 0).all())
    # The second reads both: change the anchor, or the first token, and it is another one.
    if steps > 1:
        weights = head.projection.float()
        states, _ = head.latent(None, anchor, hidden[:, 0])
        _, latent = head.latent(states, tokens[:, 0], hidden[:, 1])
        assert latent is not None
        wanted = (base[:, 1].float() + (latent.float() @ weights.T)).argmax(1)
        assert torch.equal(tokens[:, 1], wanted)
        _, unprimed = head.latent(torch.zeros_like(states), tokens[:, 0], hidden[:, 1])
        assert unprimed is not None
        assert not torch.equal(unprimed, latent)


# ---- plans, weights, types ---------------------------------------------------------------------


@case("plan-for-another-gpu")
@each_kind
def test_fewer_blocks_give_the_same_tokens(way: Way, kind: type[RecurrentHead]) -> None:
    head = recurrent_head(kind, vocab=20_011)
    base, anchor, hidden = drawn_inputs(head, 2, 5)
    wanted = walk(way, head, base, anchor, hidden)
    for blocks in (100, 78, 36):
        found = walk(way, head, base, anchor, hidden, blocks=blocks)
        assert torch.equal(found, wanted)


@case("weights-change-after-packing")
@each_kind
def test_changed_weights_are_served_after_a_refresh_and_never_in_part(
    way: Way, kind: type[RecurrentHead]
) -> None:
    head = recurrent_head(kind, vocab=1500, rank=128)
    base, anchor, hidden = drawn_inputs(head, 2, 6)
    plan, backend = plan_of(way, head, batch=2, steps=6), cast(BackendName, way.partition(" ")[0])
    walker = Walker(head, plan, backend=backend)
    before = run(walker, base, anchor, hidden)
    for name in ("table", "projection", *type(head).__slots__):
        weight = getattr(head, name)
        if isinstance(weight, torch.Tensor):
            weight.copy_(weight.roll(1, 0))
            if (way, name) != ("emulator exact", "projection"):  # which is read where it is
                assert torch.equal(run(walker, base, anchor, hidden), before)
            walker.refresh(head)
            before = run(walker, base, anchor, hidden)
            fresh = Walker(head, plan, backend=backend)
            assert torch.equal(before, run(fresh, base, anchor, hidden))


@case("other-ranks")
@each_kind
@pytest.mark.parametrize("rank", RANKS)
def test_supported_ranks_walk(way: Way, kind: type[RecurrentHead], rank: int) -> None:
    head = recurrent_head(kind, vocab=1003, rank=rank)
    base, anchor, hidden = drawn_inputs(head, 2, 4)
    tokens = walk(way, head, base, anchor, hidden)
    assert torch.equal(tokens, reference_walk(head, base, anchor, hidden=hidden))


@case("other-ranks")
@each_kind
@pytest.mark.parametrize("rank", [0, 1, 32, 63, 96, 200, 1024])
def test_other_ranks_are_refused_when_the_head_is_built(
    kind: type[RecurrentHead], rank: int
) -> None:
    with pytest.raises(HeadError, match=rf"64, 128, 256, 512, found rank {rank};"):
        recurrent_head(kind, rank=rank)


@case("dtype-silently-off")
@each_kind
@pytest.mark.parametrize("base_type", NUMBER_TYPES)
def test_base_logits_of_each_type_walk(way: Way, kind: type[RecurrentHead], base_type: str) -> None:
    """A step is of the promoted type: one token is ahead by less than bf16 can tell."""
    head = recurrent_head(kind)
    base, anchor, hidden = drawn_inputs(head, 2, 5)
    base = base.to(DTYPES[base_type])
    tokens = walk(way, head, base, anchor, hidden)
    assert torch.equal(tokens, reference_walk(head, base, anchor, hidden=hidden))
    quiet = silent(kind, 40)
    ahead = torch.ones(1, 2, 40, dtype=DTYPES[base_type])
    ahead[:, :, 30] += 2.0**-9
    _, anchor, hidden = drawn_inputs(quiet, 1, 2)
    told = 0 if base_type == "bf16" else 30
    assert walk(way, quiet, ahead, anchor, hidden).tolist() == [[told] * 2]


@case("dtype-silently-off")
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_weights_of_other_types_are_refused_by_name(
    kind: type[RecurrentHead], dtype: torch.dtype
) -> None:
    head = recurrent_head(kind)
    for name in ("table", "projection", *type(head).__slots__):
        weight = getattr(head, name)
        if isinstance(weight, torch.Tensor):
            weights = {other: getattr(head, other) for other in type(head).__slots__}
            weights |= {"table": head.table, "projection": head.projection}
            with pytest.raises(HeadError, match=rf"^{name}: wanted bfloat16, found"):
                type(head)(**weights | {name: weight.to(dtype)})


@case("outlier-column")
@each_kind
@pytest.mark.parametrize("factor", [10.0, 100.0, 1000.0])
def test_an_outlier_column_stays_within_the_bound(
    way: Way, kind: type[RecurrentHead], factor: float
) -> None:
    head = recurrent_head(kind, vocab=1500)
    head.projection[700, 17] = factor / 4  # the row wins or loses by far, as its element is signed
    base, anchor, hidden = drawn_inputs(head, 4, 10)
    tokens = walk(way, head, base, anchor, hidden)
    state, previous, sure_tokens = head.initial_state(4), anchor, 0
    (packed,) = walker_of("emulator", head, batch=8).packs
    parts = packed.hidden_term(hidden)
    assert parts is not None
    for step in range(10):
        logits = step_logits(head, base[:, step], head.latent(state, previous, hidden[:, step])[1])
        _, bound = latent_interval(head, state, previous, hidden[:, step])
        sure = decided(logits, walk_bound(head, base[:, step], bound))
        assert torch.equal(tokens[sure, step], select_greedy(logits)[sure])
        sure_tokens += int(sure.sum()) if step else 0
        if way != "reference":
            state, _ = packed.latent(state, previous, parts[:, step])
        else:
            state, _ = head.latent(state, previous, hidden[:, step])
        previous = tokens[:, step]
    assert sure_tokens > 0, "a bound that decides nothing tests nothing"


# ---- sampled walks -----------------------------------------------------------------------------


@case("greedy-rows-in-a-mixed-batch")
@each_kind
@pytest.mark.parametrize("greedy", [0.0, -1.0, NAN])
def test_rows_of_a_mixed_batch_do_not_depend_on_each_other(
    way: Way, kind: type[RecurrentHead], greedy: float
) -> None:
    head = recurrent_head(kind)
    base, anchor, hidden = drawn_inputs(head, 5, 5)
    temperatures = [greedy, 1.0, 1.0, 0.7, greedy]
    mixed = sample(way, head, base, anchor, hidden, temperatures)
    all_greedy = walk(way, head, base, anchor, hidden)
    assert torch.equal(mixed.tokens[[0, 4]], all_greedy[[0, 4]])
    assert not mixed.logits[[0, 4]].any(), "greedy rows export nothing"
    assert mixed.offset == 4
    hot = sample(way, head, base, anchor, hidden, [50.0] * 5)
    for row in (1, 2, 3):
        alone = [temperatures[row] if other == row else 0.0 for other in range(5)]
        drawn = sample(way, head, base, anchor, hidden, alone)
        assert torch.equal(drawn.tokens[row], mixed.tokens[row])
        assert torch.equal(drawn.logits[row], mixed.logits[row])
        assert not torch.equal(hot.tokens[row], all_greedy[row])


@case("greedy-rows-in-a-mixed-batch")
@each_kind
def test_calls_do_not_depend_on_each_other(way: Way, kind: type[RecurrentHead]) -> None:
    """No state is left behind: the same call again gives the same tokens."""
    head = recurrent_head(kind)
    base, anchor, hidden = drawn_inputs(head, 4, 6)
    walker = walker_of(way, head, batch=4, sampled=True)
    noise = Noise(key=1, offset=torch.tensor([0]))

    def once() -> torch.Tensor:
        noise.offset.zero_()
        return walker(
            base, anchor, hidden=hidden, temperatures=torch.tensor([0.0, 1, 0, 2]), noise=noise
        )

    first = once()
    walker(
        base[:2, :3] + 9,
        anchor[:2],
        hidden=hidden[:2, :3] * 7,
        temperatures=torch.ones(2),
        noise=noise,
    )
    assert torch.equal(once(), first)
