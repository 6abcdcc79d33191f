"""The factory keeps SGLang's contract: its buffers, its noise, strided anchors, stale pad rows.

On the emulator, over stand-ins for SGLang's modules; a walk of its own is what steps are compared
with, since what walks compute is tested elsewhere.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_draft import Buffers, Draft, fill, stand_in, strided_anchor
from strategies import anchors, hopper, recurrent_head
from walks import walker_of
from wts.engines.common import buckets, report, upkeep
from wts.engines.common.buckets import Walks, build_walks, held_bytes
from wts.engines.common.reasons import Reason
from wts.engines.common.upkeep import Upkeep
from wts.engines.sglang import dspark
from wts.engines.sglang.dspark import Factory, base_type_of, factory_of
from wts.errors import HeadError, WalkTimeout
from wts.heads.base import Head
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.resident.plan import ResidencyPlan
from wts.numerics.gumbel import Noise
from wts.walk.walker_set import WalkerSet

STEPS, MOST, HIDDEN = 5, 3, 40
KINDS = (MarkovHead, GatedHead, RnnHead)


def head_of(kind: type[Any], seed: int = 7) -> Head:
    if kind is MarkovHead:
        return MarkovHead.random(vocab=517, rank=64, seed=seed)
    return recurrent_head(kind, seed=seed)


def draft_of(head: Head) -> Draft:
    return Draft(stand_in(head), vocab=head.vocab, hidden_size=HIDDEN)


class Updater:
    """Stands in for SGLang's WeightUpdater."""

    def update_weights_from_disk(self) -> tuple[bool, str]:
        return True, "disk"

    def load_weights_from_distributed(self) -> str:
        return "distributed"

    def update_weights_from_tensor(self) -> str:
        return "tensor"

    def update_weights_from_ipc(self) -> str:
        return "ipc"

    def end_weight_update(self) -> str:
        return "end"


class Results:
    """Stands in for SGLang's SchedulerBatchResultProcessor."""

    def process_batch_result_decode(self, batch: int) -> int:
        return batch + 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> tuple[type[Any], type[Any]]:
    """Modules of SGLang that an upkeep is hung on, with fresh classes."""
    classes = []
    for (path, _), base in ((upkeep.UPDATES, Updater), (upkeep.RESULTS, Results)):
        name, _, owner = path.rpartition(".")
        cls = type(owner, (base,), {})
        module = ModuleType(name)
        setattr(module, owner, cls)
        monkeypatch.setitem(sys.modules, name, module)
        classes.append(cls)
    return classes[0], classes[1]


def factory(draft: Draft, blocks: int = 4, ranks: int = 1) -> Factory:
    made = factory_of(
        draft, hopper(blocks), agree=lambda reason, *_: reason, ranks=ranks, backend="emulator"
    )
    assert isinstance(made, Factory)
    return made


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_a_walk_in_the_buffers_of_sglang(kind: type[Any]) -> None:
    head = head_of(kind)
    draft, buffers = draft_of(head), Buffers(head, most=MOST, steps=STEPS)
    step = factory(draft)(**buffers.arguments())(2)
    assert step is not None
    buffers.temperatures[:] = torch.tensor([0.0, 0.7, 0.9])
    hidden = torch.randn(2 * STEPS, HIDDEN, generator=torch.Generator().manual_seed(3)).bfloat16()
    anchor = anchors(head, 2, seed=4)
    tokens, features = step(hidden, strided_anchor(anchor))
    assert features is hidden
    assert tokens.shape == (2, STEPS)

    walker = walker_of("emulator", head, batch=2, blocks=4, sampled=True)
    base, _ = draft.compute_base_logits(hidden)
    logits = torch.zeros(2, STEPS, head.vocab).bfloat16()
    offset = torch.zeros(1, dtype=torch.int64)
    wanted = walker(
        base.view(2, STEPS, -1),
        anchor,
        hidden=None if kind is MarkovHead else hidden.view(2, STEPS, -1),
        temperatures=torch.tensor([0.0, 0.7]),
        noise=Noise(key=buffers.noise.key, offset=offset),
        logits_out=logits,
    )
    assert torch.equal(tokens, wanted)
    assert torch.equal(buffers.tokens[: 2 * STEPS], wanted.view(-1))
    assert (buffers.tokens[2 * STEPS :] == -1).all(), "wrote past the batch"
    assert torch.equal(buffers.logits[:2], logits)
    assert not buffers.logits[0].any(), "a greedy row keeps no logits"
    assert buffers.logits[1].any(1).all()
    assert not buffers.logits[2].any()
    assert buffers.noise.offset.item() == 1
    step(hidden, strided_anchor(anchor))
    assert buffers.noise.offset.item() == 2


@pytest.mark.usefixtures("engine")
def test_a_greedy_draft_keeps_no_logits_and_draws_no_noise() -> None:
    head = head_of(MarkovHead)
    draft, buffers = draft_of(head), Buffers(head, most=MOST, steps=STEPS)
    steps = factory(draft)(**buffers.arguments(greedy_draft=True))
    step = steps(MOST)
    assert step is not None
    hidden = torch.randn(MOST * STEPS, HIDDEN).bfloat16()
    anchor = anchors(head, MOST, seed=4)
    buffers.temperatures.fill_(0.8)
    tokens, _ = step(hidden, strided_anchor(anchor))
    walker = walker_of("emulator", head, batch=MOST, blocks=4)
    base, _ = draft.compute_base_logits(hidden)
    assert torch.equal(tokens, walker(base.view(MOST, STEPS, -1), anchor))
    assert buffers.noise.offset.item() == 0
    assert not buffers.logits.any()


@pytest.mark.usefixtures("engine")
def test_stale_pad_rows_change_no_other_row() -> None:
    head = head_of(MarkovHead)
    draft, buffers = draft_of(head), Buffers(head, most=MOST, steps=STEPS)
    step = factory(draft)(**buffers.arguments())(MOST)
    assert step is not None
    hidden = torch.randn(MOST * STEPS, HIDDEN).bfloat16()
    anchor = anchors(head, MOST, seed=4)
    buffers.temperatures[:] = torch.tensor([0.6, 0.0, 0.0])
    clean = step(hidden, anchor)[0].clone()
    logits = buffers.logits[0].clone()
    hidden[2 * STEPS :] = float("nan")
    anchor[2] = -(1 << 50)
    buffers.temperatures[2] = float("nan")
    buffers.noise.offset.zero_()
    stale = step(hidden, anchor)[0]
    assert torch.equal(stale[:2], clean[:2])
    assert torch.equal(buffers.logits[0], logits)
    assert ((stale[2] >= 0) & (stale[2] < head.vocab)).all()


@pytest.mark.usefixtures("engine")
def test_batches_past_the_last_plan_are_sglangs() -> None:
    head = head_of(MarkovHead)
    buffers = Buffers(head, most=66, steps=STEPS)
    steps = factory(draft_of(head))(**buffers.arguments())
    assert [steps(batch) is None for batch in (1, 64, 65, 66, 67)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert steps(7) is steps(7), "asking again must be cheap"


@pytest.mark.usefixtures("engine")
def test_ranks_of_different_plans_draft_the_same_tokens() -> None:
    """Each rank walks by itself; nothing of a plan may show in tokens or logits."""
    head = head_of(GatedHead)
    hidden = torch.randn(MOST * STEPS, HIDDEN).bfloat16()
    anchor, drafted = anchors(head, MOST, seed=4), []
    for blocks in (4, 3):
        buffers = Buffers(head, most=MOST, steps=STEPS)
        buffers.temperatures[:] = torch.tensor([0.6, 0.0, 1.1])
        step = factory(draft_of(head), blocks, ranks=2)(**buffers.arguments())(MOST)
        assert step is not None
        drafted.append((step(hidden, anchor)[0], buffers.logits))
    assert torch.equal(drafted[0][0], drafted[1][0])
    assert torch.equal(drafted[0][1], drafted[1][1])


# ---- what stays off ----------------------------------------------------------------------------


def never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("called")


@pytest.mark.parametrize("at", ["base logits", "building", "the hooks of updates"])
def test_where_one_rank_cannot_all_steps_are_sglangs(
    at: str,
    engine: tuple[type[Any], type[Any]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = head_of(MarkovHead)
    other = Reason(kind="memory", text="rank 1: none left")
    asked: list[Reason | None] = []
    answers = ["adoption", "base logits", "building", "the hooks of updates"]

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return other if answers[len(asked) - 1] == at else None

    made = factory_of(draft_of(head), hopper(4), agree=agree, ranks=2, backend="emulator")
    assert isinstance(made, Factory)
    with caplog.at_level("INFO", logger="wts.sglang"):
        steps = made(**Buffers(head, most=MOST, steps=STEPS).arguments())
    assert [steps(batch) for batch in range(1, MOST + 1)] == [None] * MOST
    assert asked == [None] * (answers.index(at) + 1)
    monkeypatch.setattr(WalkerSet, "refresh", never)
    engine[0]().update_weights_from_disk()  # whatever was hooked by then does nothing
    assert caplog.messages == ["wts: off for SGLang's DSpark draft: rank 1: none left"]


def test_what_cannot_be_adopted_is_a_reason_on_every_rank() -> None:
    asked = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return reason

    found = factory_of(object(), hopper(4), agree=agree, ranks=2, backend="emulator")
    assert isinstance(found, Reason)
    assert asked == [found], "a rank that fails must still answer the others"


def test_a_rank_without_a_gpu_still_answers_the_others() -> None:
    asked = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return reason

    none = Reason(kind="gpu", text="no GPU")
    draft = draft_of(head_of(MarkovHead))
    assert factory_of(draft, none, agree=agree, ranks=2, backend="emulator") == none
    assert asked == [none]


@pytest.mark.usefixtures("engine")
def test_the_batches_that_walk_are_told_to_the_other_ranks() -> None:
    told = []

    def agree(reason: Reason | None, walking: tuple[int, ...] | None = None) -> Reason | None:
        told.append(walking)
        return reason

    head = head_of(MarkovHead)
    made = factory_of(draft_of(head), hopper(4), agree=agree, ranks=2, backend="emulator")
    assert isinstance(made, Factory)
    assert made(**Buffers(head, most=MOST, steps=STEPS).arguments())(1) is not None
    assert told == [None, None, (1, 2, 3), None]


@pytest.mark.usefixtures("engine")
def test_steps_that_cannot_be_made_are_a_reason_on_every_rank(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Reason | None] = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return reason

    head = head_of(MarkovHead)
    made = factory_of(draft_of(head), hopper(4), agree=agree, ranks=2, backend="emulator")
    assert isinstance(made, Factory)
    arguments = Buffers(head, most=MOST, steps=STEPS).arguments() | {"noise": object()}
    assert made(**arguments)(1) is None
    assert [reason is None for reason in asked] == [True, True, False]
    assert "AttributeError" in caplog.text


def test_ranks_that_cannot_agree_draft_with_sglangs_steps(
    engine: tuple[type[Any], type[Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        if len(asked) == 4:
            raise RuntimeError("no connection")
        return reason

    head = head_of(MarkovHead)
    made = factory_of(draft_of(head), hopper(4), agree=agree, ranks=2, backend="emulator")
    assert isinstance(made, Factory)
    assert made(**Buffers(head, most=1, steps=STEPS).arguments())(1) is None
    assert "no connection" in caplog.text
    monkeypatch.setattr(WalkerSet, "refresh", never)
    engine[0]().update_weights_from_disk()  # what was hooked does nothing


@pytest.mark.usefixtures("engine")
def test_a_line_that_cannot_be_written_stops_no_walk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "walks_line", never)
    head = head_of(MarkovHead)
    steps = factory(draft_of(head))(**Buffers(head, most=1, steps=STEPS).arguments())
    assert steps(1) is not None
    assert "not described" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_base_logits_are_tried_in_the_type_of_the_lm_head(dtype: torch.dtype) -> None:
    """Its product takes no hidden states of another type."""
    head = MarkovHead(
        **{name: getattr(head_of(MarkovHead), name).to(dtype) for name in ("table", "projection")}
    )
    draft = draft_of(head)
    draft.lm_head.to(dtype)
    assert base_type_of(draft, head, STEPS) == ("fp16" if dtype is torch.float16 else "fp32")


def test_base_logits_that_a_walk_cannot_read_are_reasons() -> None:
    head = head_of(MarkovHead)
    draft = draft_of(head)
    assert base_type_of(draft, head, STEPS) == "bf16"
    good = draft.compute_base_logits

    def changed(change: Any) -> Any:
        return lambda hidden: (change(good(hidden)[0]), hidden)

    def failing(hidden: torch.Tensor) -> Any:
        raise RuntimeError("no lm_head")

    for compute, word in (
        (changed(lambda base: base.double()), "float64"),
        (changed(lambda base: base[:, :-1]), "516"),
        (changed(lambda base: base.t().contiguous().t()), "strides"),
        (failing, "no lm_head"),
    ):
        draft.compute_base_logits = compute  # type: ignore[method-assign]
        found = base_type_of(draft, head, STEPS)
        assert isinstance(found, Reason)
        assert word in found.text
    draft.compute_base_logits = good  # type: ignore[method-assign]
    draft.markov_head.step_logits_dtype = lambda dtype: torch.float32
    found = base_type_of(draft, head, STEPS)
    assert isinstance(found, Reason)
    assert "float32" in found.text
    del draft.config.hidden_size
    assert isinstance(base_type_of(draft, head, STEPS), Reason)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_buffer_that_does_not_fit_is_a_reason(
    dtype: torch.dtype | None, caplog: pytest.LogCaptureFixture
) -> None:
    head = head_of(MarkovHead)
    arguments = Buffers(head, most=MOST, steps=STEPS).arguments()
    arguments["step_logits"] = None if dtype is None else arguments["step_logits"].to(dtype)
    with caplog.at_level("INFO", logger="wts.sglang"):
        steps = factory(draft_of(head))(**arguments)
    assert steps(1) is None
    assert "step logits" in caplog.text


def test_without_the_hook_on_updates_walks_stay_off(
    engine: tuple[type[Any], type[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    del Updater.end_weight_update
    try:
        with caplog.at_level("INFO", logger="wts.sglang"):
            head = head_of(MarkovHead)
            steps = factory(draft_of(head))(**Buffers(head, most=2, steps=STEPS).arguments())
    finally:
        Updater.end_weight_update = lambda self: "end"  # type: ignore[method-assign]
    assert steps(1) is None
    assert "end_weight_update" in caplog.text


# ---- building ----------------------------------------------------------------------------------


def built(head: Head, *, most: int = 4, steps: int = STEPS) -> Walks | Reason:
    return build_walks(
        head,
        hopper(4),
        most_requests=most,
        steps=steps,
        base_type="bf16",
        sampled=True,
        backend="emulator",
    )


def test_buckets_that_lose_are_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_above_two(plan: ResidencyPlan) -> Reason | None:
        return Reason(kind="plan", text="slow") if plan.batch > 2 else None

    monkeypatch.setattr(buckets, "why_step_wise", lose_above_two)
    walks = built(head_of(MarkovHead), most=8)
    assert isinstance(walks, Walks)
    assert [walks.for_batch(batch) is not None for batch in (1, 2, 3, 8, 9)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [plan.batch for plan in walks.walkers.plans][-1] == 2, "nothing is built for the others"


def test_a_plan_that_comes_out_slower_is_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling may settle for another plan than was made: the policy asks about that one."""
    asked: list[int] = []

    def lose_once_built(plan: ResidencyPlan) -> Reason | None:
        asked.append(plan.batch)
        built_already = asked.count(plan.batch) > 1
        return Reason(kind="plan", text="slow") if built_already and plan.batch == 2 else None

    monkeypatch.setattr(buckets, "why_step_wise", lose_once_built)
    walks = built(head_of(MarkovHead), most=2)
    assert isinstance(walks, Walks)
    assert walks.for_batch(1) is not None
    assert walks.for_batch(2) is None


def test_no_bucket_that_wins_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Reason(kind="plan", text="slow")
    monkeypatch.setattr(buckets, "why_step_wise", lambda plan: slow)
    assert built(head_of(MarkovHead)) == slow


@pytest.mark.parametrize("steps", [0, 33])
def test_blocks_that_are_too_long_are_a_reason(steps: int) -> None:
    found = built(head_of(MarkovHead), steps=steps)
    assert isinstance(found, Reason)
    assert found.kind == "plan"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("full"), "memory"),
        (RuntimeError("anything"), "build"),
        (WalkTimeout("given up"), "build"),
    ],
)
def test_a_failure_of_building_is_a_reason(
    error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(buckets, "WalkerSet", fail)
    found = built(head_of(MarkovHead))
    assert isinstance(found, Reason)
    assert found.kind == kind
    assert str(error) in found.text


@pytest.mark.parametrize("kind", KINDS)
def test_held_bytes_are_known_before(kind: type[Any]) -> None:
    """A device also has a workspace, which the emulator has not."""
    head = head_of(kind)
    walkers = WalkerSet(head, hopper(4), batches=[4], steps=STEPS, backend="emulator")
    (plan,) = walkers.plans
    positions = plan.batch * plan.steps
    workspace = plan.workspace_words * plan.word_bytes + 8 * plan.state_words
    workspace += positions * (4 * plan.part + 2 * (head.hidden_size or 0))
    estimate = held_bytes(head, [plan]) - workspace
    assert walkers.memory_bytes <= estimate <= walkers.memory_bytes * 1.25


# ---- upkeep ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", upkeep.UPDATES[1])
def test_after_an_update_the_next_step_serves_the_new_weights(
    method: str, engine: tuple[type[Any], type[Any]]
) -> None:
    old, new = head_of(RnnHead), head_of(RnnHead, seed=8)
    draft, buffers = draft_of(old), Buffers(old, most=MOST, steps=STEPS)
    step = factory(draft)(**buffers.arguments())(1)
    assert step is not None
    hidden, anchor = torch.randn(STEPS, HIDDEN).bfloat16(), anchors(old, 1, seed=4)
    before = step(hidden, anchor)[0].clone()
    with torch.no_grad():  # in place, as SGLang loads
        for kept, weight in zip(
            draft.markov_head.parameters(), stand_in(new).parameters(), strict=True
        ):
            kept.copy_(weight)
    assert torch.equal(step(hidden, anchor)[0], before), "walks read what was packed"
    assert getattr(Updater, method)(engine[0]()) == getattr(engine[0](), method)()
    buffers.noise.offset.zero_()
    fresh, again = draft_of(new), Buffers(new, most=MOST, steps=STEPS)
    wanted = factory(fresh)(**again.arguments())(1)
    assert wanted is not None
    assert torch.equal(step(hidden, anchor)[0], wanted(hidden, anchor)[0])
    assert not torch.equal(buffers.tokens[:STEPS].view(1, -1), before)


def test_parts_of_an_update_are_packed_at_its_end(
    engine: tuple[type[Any], type[Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    packed = []
    monkeypatch.setattr(WalkerSet, "refresh", lambda self, head: packed.append(head))
    kept = upkeep_of(MarkovHead)
    assert upkeep.attach(kept) is None
    updater = engine[0]()
    assert [getattr(updater, method)() for method in upkeep.BUCKETS[1]] == ["distributed", "tensor"]
    assert packed == []
    kept.checked -= upkeep.CHECK_EVERY_S
    engine[1]().process_batch_result_decode(1)
    assert "until end_weight_update" in caplog.text
    updater.end_weight_update()
    assert len(packed) == 1
    caplog.clear()
    kept.checked -= upkeep.CHECK_EVERY_S
    engine[1]().process_batch_result_decode(1)
    assert caplog.messages == []


def upkeep_of(kind: type[Any], **more: Any) -> Upkeep:
    """An upkeep of walks on the emulator, alone."""
    head = head_of(kind)
    walks = WalkerSet(head, hopper(4), batches=[1], steps=STEPS, backend="emulator")
    return Upkeep(**({"walkers": walks, "adopt": lambda: head, "ranks": 1} | more))


@pytest.mark.parametrize("times", [1, 2])
def test_an_update_that_finds_no_memory_is_tried_again(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def refresh(self: Any, head: Any) -> None:
        calls.append("refresh")
        if calls.count("refresh") <= times:
            raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(WalkerSet, "refresh", refresh)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    kept = upkeep_of(MarkovHead)
    if times == 1:
        kept.refresh()
    else:
        with pytest.raises(HeadError, match=r"full; lower --mem-fraction-static"):
            kept.refresh()
    assert calls == ["refresh", "empty", "refresh"]


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("full"), RuntimeError("any")])
def test_ranks_agree_on_an_update_before_one_stops(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Reason | None] = []
    other = Reason(kind="memory", text="rank 1: full")

    def agree(reason: Reason | None, *_: Any) -> Reason | None:
        asked.append(reason)
        return other

    def refresh(self: Any, head: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(WalkerSet, "refresh", refresh)
    with pytest.raises(HeadError, match="rank 1: full"):
        upkeep_of(MarkovHead, ranks=2, agree=agree).refresh()
    assert [reason is None for reason in asked] == [error is None]


def test_an_upkeep_that_is_hung_on_a_part_is_hung_on_nothing(
    engine: tuple[type[Any], type[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, upkeep.RESULTS[0].rpartition(".")[0], None)
    kept = upkeep_of(MarkovHead)
    reason = upkeep.attach(kept)
    assert reason is not None
    assert "SchedulerBatchResultProcessor" in reason.text
    assert not kept.active
    for method in (*upkeep.UPDATES[1], *upkeep.BUCKETS[1]):
        assert getattr(engine[0], method) is getattr(Updater, method)


def test_an_upkeep_that_is_off_does_nothing() -> None:
    kept, walkers, clock = failing_upkeep(ranks=1)
    kept.active = False
    kept.refresh()  # its adoption fails
    clock.now += upkeep.CHECK_EVERY_S
    kept.look()
    assert walkers.looks == 0


def test_the_error_of_an_update_is_not_hidden_by_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Owner:
        def method(self) -> None:
            raise RuntimeError("out of files")

    def then() -> None:
        raise HeadError("quantised now")

    upkeep.wrap_after(Owner, "method", then)
    with pytest.raises(RuntimeError, match="out of files") as caught:
        Owner().method()
    assert caught.value.__context__ is None
    assert "quantised now" in caplog.text


def test_an_update_that_raises_may_have_changed_a_part(
    engine: tuple[type[Any], type[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, new = head_of(MarkovHead), head_of(MarkovHead, seed=8)
    draft, buffers = draft_of(head), Buffers(head, most=1, steps=STEPS)

    def load_a_part(self: Any) -> None:
        fill(draft.markov_head, new)
        raise RuntimeError("out of files")

    monkeypatch.setattr(Updater, "update_weights_from_ipc", load_a_part)
    step = factory(draft)(**buffers.arguments(greedy_draft=True))(1)
    assert step is not None
    with pytest.raises(RuntimeError, match="out of files"):
        engine[0]().update_weights_from_ipc()
    hidden, anchor = torch.randn(STEPS, HIDDEN).bfloat16(), anchors(head, 1, seed=4)
    base, _ = draft.compute_base_logits(hidden)
    walker = walker_of("emulator", new, batch=1, blocks=4)
    assert torch.equal(step(hidden, anchor)[0], walker(base.view(1, STEPS, -1), anchor))


def test_new_tensors_of_the_same_shapes_are_taken_too(
    engine: tuple[type[Any], type[Any]],
) -> None:
    old, new = head_of(MarkovHead), head_of(MarkovHead, seed=8)
    draft, buffers = draft_of(old), Buffers(old, most=MOST, steps=STEPS)
    step = factory(draft)(**buffers.arguments(greedy_draft=True))(1)
    assert step is not None
    fill(draft.markov_head, new)
    engine[0]().end_weight_update()
    hidden, anchor = torch.randn(STEPS, HIDDEN).bfloat16(), anchors(old, 1, seed=4)
    base, _ = draft.compute_base_logits(hidden)
    walker = walker_of("emulator", new, batch=1, blocks=4)
    assert torch.equal(step(hidden, anchor)[0], walker(base.view(1, STEPS, -1), anchor))


@pytest.mark.parametrize("change", ["larger", "quantised"])
def test_another_head_is_refused_loudly(change: str, engine: tuple[type[Any], type[Any]]) -> None:
    head = head_of(MarkovHead)
    draft = draft_of(head)
    assert factory(draft)(**Buffers(head, most=2, steps=STEPS).arguments())(1) is not None
    if change == "larger":
        fill(draft.markov_head, MarkovHead.random(vocab=600, rank=64, seed=1))
    else:
        del draft.markov_head.markov_w2.weight
    with pytest.raises(HeadError, match="restart the server"):
        engine[0]().update_weights_from_disk()


class Failing:
    """Walks that are given up in every look."""

    def __init__(self) -> None:
        self.looks = 0

    def check(self) -> None:
        self.looks += 1
        raise WalkTimeout("block 3")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def failing_upkeep(ranks: int) -> tuple[Upkeep, Failing, Clock]:
    walkers, clock = Failing(), Clock()
    reason = Reason(kind="head", text="unused")
    kept = Upkeep(
        walkers=walkers,  # type: ignore[arg-type]
        adopt=lambda: reason,
        ranks=ranks,
        clock=clock,
    )
    return kept, walkers, clock


def test_a_look_is_taken_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    kept, walkers, clock = failing_upkeep(ranks=1)
    for _ in range(5):
        kept.look()
    assert walkers.looks == 0
    clock.now += upkeep.CHECK_EVERY_S
    for _ in range(5):
        kept.look()
    assert walkers.looks == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "block 3" in caplog.text


def test_walks_given_up_again_and_again_stop_the_server() -> None:
    kept, _, clock = failing_upkeep(ranks=1)
    for _ in range(upkeep.MOST_TIMEOUTS - 1):
        clock.now += upkeep.CHECK_EVERY_S
        kept.look()
    clock.now += upkeep.CHECK_EVERY_S
    with pytest.raises(WalkTimeout):
        kept.look()


def test_of_several_ranks_the_first_one_stops_the_server() -> None:
    kept, _, clock = failing_upkeep(ranks=2)
    clock.now += upkeep.CHECK_EVERY_S
    with pytest.raises(WalkTimeout):
        kept.look()


def test_results_of_batches_lead_to_looks(engine: tuple[type[Any], type[Any]]) -> None:
    kept, walkers, clock = failing_upkeep(ranks=1)
    assert upkeep.attach(kept) is None
    clock.now += upkeep.CHECK_EVERY_S
    assert engine[1]().process_batch_result_decode(2) == 3
    assert walkers.looks == 1


def test_sglang_without_these_methods_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, upkeep.UPDATES[0].rpartition(".")[0], None)
    reason = upkeep.attach(failing_upkeep(ranks=1)[0])
    assert reason is not None
    assert reason.kind == "hook"
    assert "WeightUpdater" in reason.text


class Stager:
    """Stands in for SGLang's DsparkDraftSampler: it writes the rows of a batch only."""

    def __init__(self) -> None:
        self.params = SimpleNamespace(step_temperatures=torch.full((8,), 0.7))

    def stage_sampling_params(self, *, bs: int, sampling_info: float) -> None:
        self.params.step_temperatures[:bs] = sampling_info


def test_rows_that_fill_a_graph_up_are_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = upkeep.STAGING
    name, _, owner = path.rpartition(".")
    module = ModuleType(name)
    cls: Any = type(owner, (Stager,), {})
    setattr(module, owner, cls)
    monkeypatch.setitem(sys.modules, name, module)
    assert upkeep.clear_padding()
    once = cls.stage_sampling_params
    assert upkeep.clear_padding()
    assert cls.stage_sampling_params is once
    sampler = cls()
    sampler.stage_sampling_params(bs=5, sampling_info=0.0)
    assert not sampler.params.step_temperatures.any()
    sampler.stage_sampling_params(bs=2, sampling_info=1.0)
    assert sampler.params.step_temperatures.tolist() == [1.0] * 2 + [0.0] * 6


def test_without_sglangs_sampler_padding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, upkeep.STAGING[0].rpartition(".")[0], None)
    assert not upkeep.clear_padding()


def test_adoption_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Reason(kind="head", text="impostor")
    monkeypatch.setattr(dspark, "behaves", lambda module, head: reason)
    draft = draft_of(head_of(MarkovHead))
    found = factory_of(draft, hopper(4), agree=lambda given, *_: given, ranks=1, backend="emulator")
    assert found == reason
