"""The cases of cases/cases.json, each for its whole kind; tests/gpu runs them on the device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds import decided, logit_bound
from oracle import int8_walk, random_word, select
from strategies import DTYPES, anchors, base_logits, silent_head, successor_head
from walks import Way, moved, run, sample, walk, walker_of
from wts.dtypes import NUMBER_TYPES
from wts.errors import HeadError
from wts.heads.kinds import RANKS
from wts.heads.markov import MarkovHead
from wts.numerics.gumbel import Noise
from wts.numerics.step_logits import step_logits
from wts.walk.reference import reference_walk

INF = math.inf
NAN = math.nan
BF16 = torch.bfloat16
CASES = json.loads((Path(__file__).parent / "cases" / "cases.json").read_text())

COVERED: set[str] = set()
ELSEWHERE = {
    "graph-bakes-its-inputs": "tests/gpu/test_device_graphs.py",
    "beside-another-kernel": "tests/gpu/test_device_faults.py",
    "domino-first-token": "tests/test_recurrent_cases.py",
}

Test = TypeVar("Test", bound=Callable[..., Any])


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


def test_every_case_has_a_test() -> None:
    assert {entry["id"] for entry in CASES} == COVERED | ELSEWHERE.keys()
    assert not COVERED & ELSEWHERE.keys()


@lru_cache
def spread_head(vocab: int = 517, rank: int = 64, draft_vocab: int | None = None) -> MarkovHead:
    """A head of well-spread logits: another order of a sum does not change its tokens."""
    return MarkovHead.random(vocab=vocab, rank=rank, seed=7, draft_vocab=draft_vocab)


@lru_cache
def silent(vocab: int) -> MarkovHead:
    return silent_head(vocab)


def spread_base(head: MarkovHead, batch: int, steps: int, seed: int = 0) -> torch.Tensor:
    """Base logits that leave most decisions to the head, [B, K, V]."""
    return (base_logits(head, batch=batch, steps=steps, seed=seed).float() / 4).to(BF16)


def formula(head: MarkovHead, base: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    return reference_walk(head, base, anchor)


# ---- numbers that are not finite ---------------------------------------------------------------


@case("nan-row")
@given(st.data())
@settings(max_examples=30)
def test_a_nan_gives_the_lowest_nan_id_and_the_walk_goes_on_from_it(
    way: Way, data: st.DataObject
) -> None:
    head = spread_head()
    batch = data.draw(st.sampled_from([1, 2, 4, 5]))
    request = data.draw(st.integers(0, batch - 1))
    step = data.draw(st.integers(0, 6))
    bad = data.draw(
        st.one_of(
            st.just(list(range(head.vocab))),
            st.lists(st.integers(0, head.vocab - 1), min_size=1, max_size=5),
        )
    )
    base, anchor = spread_base(head, batch, 7), anchors(head, batch, 1)
    plain = walk(way, head, base, anchor)
    base[request, step, bad] = NAN
    tokens = walk(way, head, base, anchor)
    others = [other for other in range(batch) if other != request]
    assert torch.equal(tokens[others], plain[others])
    assert torch.equal(tokens[request, :step], plain[request, :step])
    assert tokens[request, step] == min(bad)
    rest = base[request : request + 1, step + 1 :]
    if rest.shape[1]:
        onward = walk(way, head, rest, torch.tensor([min(bad)]), batch=batch)
        assert torch.equal(tokens[request, step + 1 :], onward[0])


@case("nan-everywhere")
@pytest.mark.parametrize("draft_vocab", [None, 333])
@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_nothing_but_nan_gives_tokens_in_range(
    way: Way, batch: int, draft_vocab: int | None
) -> None:
    plain = spread_head(draft_vocab=draft_vocab)
    table = plain.table.clone()
    anchor = torch.arange(batch) + 3
    table[anchor] = NAN
    for projection in (plain.projection, torch.full_like(plain.projection, NAN)):
        head = MarkovHead(table=table, projection=projection, draft_to_target=plain.draft_to_target)
        base = torch.full((batch, 4, head.vocab), NAN, dtype=BF16)
        lowest = 0 if plain.draft_to_target is None else int(plain.draft_to_target[0])
        assert walk(way, head, base, anchor).tolist() == [[lowest] * 4] * batch
        # The table's NaN alone is enough for the first step.
        tokens = walk(way, head, torch.zeros_like(base), anchor)
        assert tokens[:, 0].tolist() == [lowest] * batch
        assert bool(((tokens >= 0) & (tokens < head.table_rows)).all())


@case("masked-by-grammar")
@given(st.data())
@settings(max_examples=30)
def test_only_allowed_ids_are_drawn(way: Way, data: st.DataObject) -> None:
    head = spread_head()
    ids = st.integers(0, head.vocab - 1)
    sizes = st.sampled_from([0, 1, 1, 3, 3])
    allowed = [
        data.draw(sizes.flatmap(lambda n: st.sets(ids, min_size=n, max_size=n))) for _ in range(6)
    ]
    plain = spread_base(head, 2, 6)
    base = torch.full_like(plain, -INF)
    for step, kept in enumerate(allowed):
        base[:, step, list(kept)] = plain[:, step, list(kept)]
    tokens = walk(way, head, base, anchors(head, 2, 2))
    for step, kept in enumerate(allowed):
        assert set(tokens[:, step].tolist()) <= (kept or {0})


# ---- ids at the edges --------------------------------------------------------------------------


@case("ids-at-the-edge")
@pytest.mark.parametrize("draft_vocab", [None, 333])
def test_anchors_outside_the_table_are_clamped_reported_and_harm_no_other(
    way: Way, draft_vocab: int | None
) -> None:
    head = spread_head(draft_vocab=draft_vocab)
    last = head.table_rows - 1
    base = spread_base(head, 5, 3)
    anchor = torch.tensor([-1, last + 1, 11, 2**40, -(2**63)])
    inside = torch.tensor([0, last, 11, last, 0])
    walker = walker_of(way, head, batch=5)
    before = walker.report().clamped_anchors
    assert torch.equal(run(walker, base, anchor), run(walker, base, inside))
    assert walker.report().clamped_anchors - before == 4
    assert torch.equal(run(walker, base[2:3], anchor[2:3]), run(walker, base, inside)[2:3])


VOCABS = [1, 7, 15, 16, 17, 2047, 2048, 2049]


@case("tie-lowest-id")
@pytest.mark.parametrize(
    ("vocab", "batch"),
    [*((vocab, batch) for vocab in VOCABS for batch in (1, 4)), (17, 2), (2049, 5), (151_936, 2)],
)
def test_token_0_wins_where_all_are_equal(way: Way, vocab: int, batch: int) -> None:
    head = silent(vocab)
    steps = 2 if vocab > 100_000 else 4
    base = torch.zeros(batch, steps, vocab, dtype=BF16)
    base[:, 0] = -3.0
    base[:, 1, ::2] = -0.0
    base[:, 2:, 1::2] = -0.0
    tokens = walk(way, head, base, torch.zeros(batch, dtype=torch.int64))
    assert tokens.tolist() == [[0] * steps] * batch


@case("tie-lowest-id")
@pytest.mark.parametrize("blocks", [1, 7, 36, None])
def test_the_lowest_of_equals_wins_on_every_grid(way: Way, blocks: int | None) -> None:
    """Two equals, at each distance that puts them in one tile, warp or block, or not."""
    head = silent(4999)
    pairs = [(a, a + d) for a in (0, 15, 31, 500, 4000) for d in (1, 2, 16, 31, 32, 128, 640, 998)]
    for first in range(0, len(pairs), 20):
        part = pairs[first : first + 20]
        base = torch.full((1, len(part), 4999), -1.0, dtype=BF16)
        for step, pair in enumerate(part):
            base[0, step, list(pair)] = 2.0
        tokens = walk(way, head, base, torch.tensor([0]), blocks=blocks)
        assert tokens[0].tolist() == [lower for lower, _ in part]


# ---- maps, order of steps ----------------------------------------------------------------------


@case("draft-map-applied-late")
@pytest.mark.parametrize("batch", [1, 3])
def test_the_next_look_up_is_of_the_target_id(way: Way, batch: int) -> None:
    """A mapped head is one over the target vocabulary whose other tokens are never allowed."""
    head = spread_head(vocab=3001, draft_vocab=701)
    mapping = head.draft_to_target
    assert mapping is not None
    assert bool((mapping.diff() > 0).all()), "an increasing map keeps the order of equals"
    projection = torch.zeros(3001, head.rank, dtype=BF16)
    projection[mapping] = head.projection
    whole = MarkovHead(table=head.table, projection=projection)
    base, anchor = spread_base(head, batch, 12), anchors(head, batch, 3)
    whole_base = torch.full((batch, 12, 3001), -INF, dtype=BF16)
    whole_base[:, :, mapping] = base
    tokens = walk(way, head, base, anchor)
    assert torch.equal(tokens, walk(way, whole, whole_base, anchor))
    assert torch.isin(tokens, mapping).all()
    assert torch.equal(tokens, formula(head, base, anchor))


@case("draft-map-applied-late")
def test_a_map_need_not_increase(way: Way) -> None:
    shuffled = torch.randperm(900, generator=torch.Generator().manual_seed(1))[:333]
    plain = MarkovHead.random(vocab=900, rank=64, seed=7, draft_vocab=333)
    head = MarkovHead(table=plain.table, projection=plain.projection, draft_to_target=shuffled)
    base, anchor = spread_base(head, 2, 8), anchors(head, 2, 3)
    wanted = int8_walk(head, base, anchor)
    tokens = walk(way, head, base, anchor)
    assert torch.equal(
        tokens, wanted if way in ("device", "emulator") else formula(head, base, anchor)
    )
    # Equal draft logits: the lowest draft id wins, whatever its target id.
    equal = torch.zeros_like(base)
    silent_mapped = MarkovHead(
        table=torch.zeros_like(head.table),
        projection=head.projection,
        draft_to_target=shuffled,
    )
    assert walk(way, silent_mapped, equal, anchor).unique().tolist() == [int(shuffled[0])]


@case("one-step-off")
@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_step_k_reads_base_k(way: Way, batch: int) -> None:
    head = silent(517)
    wanted = (torch.arange(batch * 32).view(batch, 32) * 53 + 11) % 517
    base = torch.zeros(batch, 32, 517, dtype=BF16).scatter(2, wanted[:, :, None], 1.0)
    tokens = walk(way, head, base, torch.zeros(batch, dtype=torch.int64))
    assert torch.equal(tokens, wanted)


@case("one-step-off")
@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_step_k_follows_token_k_minus_1(way: Way, batch: int) -> None:
    """A cycle through all tokens: read one step late, every token would be another."""
    vocab = 61
    head = successor_head([(token + 7) % vocab for token in range(vocab)], dtype=BF16)
    base = torch.zeros(batch, 32, vocab, dtype=BF16)
    anchor = torch.arange(batch) * 5
    wanted = (anchor[:, None] + 7 * torch.arange(1, 33)) % vocab
    tokens = walk(way, head, base, anchor)
    assert torch.equal(tokens, wanted)
    assert not (tokens[:, 1:] == tokens[:, :-1]).any()


# ---- plans, weights, types ---------------------------------------------------------------------


@case("plan-for-another-gpu")
@pytest.mark.parametrize("batch", [1, 4])
def test_fewer_blocks_give_the_same_tokens(way: Way, batch: int) -> None:
    head = spread_head(vocab=20_011)
    base, anchor = spread_base(head, batch, 3), anchors(head, batch, 5)
    wanted = walk(way, head, base, anchor)
    for blocks in (100, 78, 36):
        assert torch.equal(walk(way, head, base, anchor, blocks=blocks), wanted)
    assert torch.equal(wanted, formula(head, base, anchor))


@case("weights-change-after-packing")
def test_changed_weights_are_served_after_a_refresh_and_never_in_part(way: Way) -> None:
    plain = spread_head()
    head = MarkovHead(table=plain.table.clone(), projection=plain.projection.clone())
    base, anchor = spread_base(head, 2, 6), anchors(head, 2, 1)
    walker = walker_of(way, head)
    before = run(walker, base, anchor)
    assert torch.equal(before, formula(plain, base, anchor))
    head.projection.copy_(plain.projection.roll(1, 0))
    changed = formula(head, base, anchor)
    assert not torch.equal(changed, before)
    if way not in ("reference", "emulator exact"):  # these read what is there
        assert torch.equal(run(walker, base, anchor), before)
    walker.refresh(head)
    assert torch.equal(run(walker, base, anchor), changed)
    head.table.copy_(plain.table.roll(1, 0))
    walker.refresh(head)
    assert torch.equal(run(walker, base, anchor), formula(head, base, anchor))


@case("other-ranks")
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("batch", [1, 4])
def test_supported_ranks_walk(way: Way, rank: int, batch: int) -> None:
    head = spread_head(vocab=1003, rank=rank)
    base, anchor = spread_base(head, batch, 6), anchors(head, batch, 2)
    assert torch.equal(walk(way, head, base, anchor), formula(head, base, anchor))


@case("other-ranks")
@pytest.mark.parametrize("rank", [0, 1, 32, 63, 96, 200, 1024])
def test_other_ranks_are_refused_when_the_head_is_built(rank: int) -> None:
    with pytest.raises(HeadError, match=rf"64, 128, 256, 512, found rank {rank};"):
        MarkovHead(table=torch.zeros(8, rank), projection=torch.zeros(8, rank))


@case("dtype-silently-off")
@pytest.mark.parametrize("base_type", NUMBER_TYPES)
@pytest.mark.parametrize("table_type", NUMBER_TYPES)
def test_every_pair_of_types_walks(way: Way, base_type: str, table_type: str) -> None:
    bf16 = spread_head()
    head = MarkovHead(
        table=bf16.table.to(DTYPES[table_type]), projection=bf16.projection.to(DTYPES[table_type])
    )
    base = spread_base(head, 2, 6).to(DTYPES[base_type])
    anchor = anchors(head, 2, 2)
    assert torch.equal(walk(way, head, base, anchor), formula(head, base, anchor))


@case("dtype-silently-off")
@pytest.mark.parametrize("base_type", NUMBER_TYPES)
@pytest.mark.parametrize("table_type", NUMBER_TYPES)
def test_a_step_is_as_fine_as_its_type_and_no_finer(
    way: Way, base_type: str, table_type: str
) -> None:
    """Token 300's bias is ahead by less and less; it wins as long as the step's type can tell."""
    head = silent_head(517, dtype=DTYPES[table_type])
    head.projection[300, 0] = 1.0
    head.table[:] = 0.0
    step_type = torch.promote_types(DTYPES[base_type], DTYPES[table_type])
    base = torch.ones(1, 1, 517, dtype=DTYPES[base_type])
    walker = walker_of(way, head, batch=2, base_type=base_type)
    for exponent in range(4, 20):
        ahead = 2.0**-exponent
        head.table[:, 0] = ahead
        walker.refresh(head)
        told = torch.tensor(1.0 + ahead).to(step_type) > 1.0
        assert run(walker, base, torch.tensor([5])).item() == (300 if told else 0)


@case("outlier-column")
@pytest.mark.parametrize("factor", [10.0, 100.0, 1000.0])
def test_an_outlier_column_stays_within_the_bound(way: Way, factor: float) -> None:
    plain = spread_head(vocab=1500)
    generator = torch.Generator().manual_seed(3)
    projection = plain.projection.clone()
    rows = torch.randperm(1500, generator=generator)[:15]
    projection[rows, 17] *= factor
    head = MarkovHead(table=plain.table, projection=projection)
    base, anchor = spread_base(head, 4, 16), anchors(head, 4, 9)
    tokens = walk(way, head, base, anchor)
    previous, sure_tokens = anchor, 0
    for step in range(16):
        latent = head.table[previous]
        logits = step_logits(head, base[:, step], latent)
        sure = decided(logits, logit_bound(head, base[:, step], latent))
        assert torch.equal(tokens[sure, step], torch.tensor(select(logits))[sure])
        sure_tokens += int(sure.sum())
        previous = tokens[:, step]
    assert sure_tokens > 0, "a bound that decides nothing tests nothing"


# ---- sampled walks -----------------------------------------------------------------------------

MIXED = [0.0, 1.0, 1.0, 0.7, 0.0]


@case("greedy-rows-in-a-mixed-batch")
@pytest.mark.parametrize("greedy", [0.0, -0.0, -1.0, NAN])
def test_rows_of_a_mixed_batch_do_not_depend_on_each_other(way: Way, greedy: float) -> None:
    head = spread_head()
    base, anchor = spread_base(head, 5, 6), anchors(head, 5, 3)
    temperatures = [temperature or greedy for temperature in MIXED]
    mixed = sample(way, head, base, anchor, temperatures, offset=3)
    all_greedy = walk(way, head, base, anchor)
    assert torch.equal(mixed.tokens[[0, 4]], all_greedy[[0, 4]])
    assert not mixed.logits[[0, 4]].any(), "greedy rows export nothing"
    for row in (1, 2, 3):
        alone = [temperatures[row] if other == row else 0.0 for other in range(5)]
        drawn = sample(way, head, base, anchor, alone, offset=3)
        assert torch.equal(drawn.tokens[row], mixed.tokens[row])
        assert torch.equal(drawn.logits[row], mixed.logits[row])
        # A hotter draw than the head's lead of a few units: it is not the greedy token.
        hot = sample(way, head, base, anchor, [50.0] * 5, offset=3)
        assert not torch.equal(hot.tokens[row], all_greedy[row])


@case("greedy-rows-in-a-mixed-batch")
@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_a_sampled_plan_walks_greedy_rows_as_a_greedy_one(way: Way, batch: int) -> None:
    head = spread_head()
    base, anchor = spread_base(head, batch, 9), anchors(head, batch, 3)
    drawn = sample(way, head, base, anchor, [0.0] * batch)
    assert torch.equal(drawn.tokens, walk(way, head, base, anchor))
    assert drawn.offset == 1


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Pearson's statistic of counts against probabilities."""
    expected = probabilities.double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


# The inputs are fixed, so a test either always passes or never; one in a million would be far off.
CHI_SQUARE_LIMIT = {3: 30.7, 15: 58.0}


@case("sampler-ignores-temperature")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_are_those_of_the_softmax(way: Way, temperature: float) -> None:
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5])
    base = logits.to(BF16).expand(4, 32, 4)
    counts = torch.zeros(4, dtype=torch.int64)
    for offset in range(20):
        drawn = sample(
            way, silent(4), base, torch.zeros(4).long(), [temperature] * 4, offset=offset
        )
        counts += torch.bincount(drawn.tokens.flatten(), minlength=4)
    wanted = torch.softmax(logits.double() / temperature, 0)
    if temperature == 1.0:
        assert wanted[0].item() == pytest.approx(0.455, abs=1e-3)
    assert chi_square(counts, wanted) < CHI_SQUARE_LIMIT[3]


@case("graph-bakes-its-noise")
def test_every_call_draws_new_noise_and_advances_the_offset(way: Way) -> None:
    base = torch.zeros(2, 8, 16, dtype=BF16)
    anchor = torch.zeros(2, dtype=torch.int64)
    walker = walker_of(way, silent(16), batch=2, sampled=True)
    noise = Noise(key=11, offset=moved(torch.tensor([5]), walker))
    temperatures = moved(torch.tensor([0.7, 0.7]), walker)
    arguments = moved(base, walker), moved(anchor, walker)
    calls = [walker(*arguments, temperatures=temperatures, noise=noise).cpu() for _ in range(100)]
    assert noise.offset.tolist() == [105]
    assert len({tuple(tokens.flatten().tolist()) for tokens in calls}) == 100
    counts = torch.bincount(torch.stack(calls).flatten(), minlength=16)
    assert chi_square(counts, torch.full((16,), 1 / 16)) < CHI_SQUARE_LIMIT[15]
    # The same offset draws the same tokens again; rows and steps draw different ones.
    again = sample(way, silent(16), base, anchor, [0.7, 0.7], key=11, offset=5)
    assert torch.equal(again.tokens, calls[0])
    assert not torch.equal(again.tokens[0], again.tokens[1])
    assert len(set(again.tokens[0].tolist())) > 1


@case("nan-row")
@given(st.data())
@settings(max_examples=30)
def test_a_nan_gives_the_lowest_nan_id_in_a_sampled_walk_too(way: Way, data: st.DataObject) -> None:
    head = spread_head()
    bad = data.draw(st.lists(st.integers(0, head.vocab - 1), min_size=1, max_size=5))
    step = data.draw(st.integers(0, 4))
    base, anchor = spread_base(head, 2, 5), anchors(head, 2, 1)
    plain = sample(way, head, base, anchor, [1.0, 1.0])
    base[1, step, bad] = NAN
    drawn = sample(way, head, base, anchor, [1.0, 1.0])
    assert torch.equal(drawn.tokens[0], plain.tokens[0])
    assert torch.equal(drawn.tokens[1, :step], plain.tokens[1, :step])
    assert drawn.tokens[1, step] == min(bad)


@case("nan-everywhere")
@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_nothing_but_nan_gives_token_0_in_a_sampled_walk_too(way: Way, batch: int) -> None:
    head = spread_head()
    base = torch.full((batch, 3, head.vocab), NAN, dtype=BF16)
    drawn = sample(way, head, base, torch.arange(batch), [1.0] * batch)
    assert not drawn.tokens.any()


@case("masked-by-grammar")
@given(st.data())
@settings(max_examples=30)
def test_only_allowed_ids_are_drawn_in_a_sampled_walk_too(way: Way, data: st.DataObject) -> None:
    head = spread_head()
    ids = st.integers(0, head.vocab - 1)
    allowed = [data.draw(st.sets(ids, max_size=3)) for _ in range(6)]
    plain = spread_base(head, 2, 6)
    base = torch.full_like(plain, -INF)
    for step, kept in enumerate(allowed):
        base[:, step, list(kept)] = plain[:, step, list(kept)]
    temperatures = [data.draw(st.sampled_from([0.1, 1.0, 30.0])) for _ in range(2)]
    drawn = sample(
        way, head, base, anchors(head, 2, 2), temperatures, offset=data.draw(st.integers(0, 99))
    )
    for step, kept in enumerate(allowed):
        assert set(drawn.tokens[:, step].tolist()) <= (kept or {0})


@case("masked-by-grammar")
def test_an_allowed_id_is_drawn_even_at_the_least_likely_word(way: Way) -> None:
    """This word rounds to u = 1, whose noise is -inf: as far down as the ids that are masked."""
    base = torch.full((1, 1, 40), -INF, dtype=BF16)
    base[0, 0, 20] = 1.0
    assert random_word(20, 0, 0, 12345, 1_305_610) == 4_294_967_223
    drawn = sample(way, silent(40), base, torch.tensor([0]), [1.0], key=12345, offset=1_305_610)
    assert drawn.tokens.tolist() == [[20]]


@case("tie-lowest-id")
@pytest.mark.parametrize("blocks", [1, 7, None])
def test_the_lowest_of_equal_scores_wins(way: Way, blocks: int | None) -> None:
    """+inf less any noise is +inf: sampled scores that tie."""
    head = silent(2049)
    ids = [[5, 6], [31, 32], [127, 128, 2000], [1000, 2048], [2048]]
    base = torch.zeros(1, len(ids), 2049, dtype=BF16)
    for step, equals in enumerate(ids):
        base[0, step, equals] = INF
    drawn = sample(way, head, base, torch.tensor([1]), [0.7], blocks=blocks)
    assert drawn.tokens[0].tolist() == [min(equals) for equals in ids]


@case("draft-map-applied-late")
def test_a_sampled_walk_follows_the_map(way: Way) -> None:
    """Noise is that of the draft id; each look-up is of the target id."""
    head = spread_head(vocab=3001, draft_vocab=701)
    assert head.draft_to_target is not None
    base, anchor = spread_base(head, 3, 7), anchors(head, 3, 3)
    drawn = sample(way, head, base, anchor, [1.0, 0.0, 2.0], offset=9)
    assert torch.isin(drawn.tokens, head.draft_to_target).all()
    previous = anchor
    for step in range(7):
        latent = head.table[previous]
        wanted = step_logits(head, base[:, step], latent).double()
        off = (drawn.logits[:, step].double() - wanted).abs()
        bound = logit_bound(head, base[:, step], latent)
        assert bool((off <= bound)[[0, 2]].all())
        previous = drawn.tokens[:, step]


@case("dtype-silently-off")
@pytest.mark.parametrize("base_type", NUMBER_TYPES)
@pytest.mark.parametrize("table_type", NUMBER_TYPES)
def test_sampled_logits_come_in_the_step_type(way: Way, base_type: str, table_type: str) -> None:
    head = silent_head(517, dtype=DTYPES[table_type])
    base = base_logits(head, batch=2, steps=3, seed=1, base_type=base_type)
    drawn = sample(way, head, base, torch.tensor([1, 2]), [1.0, 0.5])
    assert drawn.logits.dtype == torch.promote_types(base.dtype, head.table.dtype)
    assert torch.equal(drawn.logits, base.to(drawn.logits.dtype))


@case("plan-for-another-gpu")
@pytest.mark.parametrize("batch", [1, 4])
def test_fewer_blocks_draw_the_same_tokens(way: Way, batch: int) -> None:
    head = spread_head(vocab=20_011)
    base, anchor = spread_base(head, batch, 4), anchors(head, batch, 5)
    temperatures = [0.0, 1.0, 0.3, 2.0][-batch:]
    wanted = sample(way, head, base, anchor, temperatures)
    for blocks in (100, 36):
        drawn = sample(way, head, base, anchor, temperatures, blocks=blocks)
        assert torch.equal(drawn.tokens, wanted.tokens)
        assert torch.equal(drawn.logits, wanted.logits)
