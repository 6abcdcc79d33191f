"""SGLang's methods lead to fresh weights, to looks, and to padding that is greedy."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_draft import Buffers, fill, stand_in
from sglang_served import (
    HIDDEN,
    MOST,
    STEPS,
    Updater,
    draft_of,
    factory,
    failing_upkeep,
    head_of,
    upkeep_of,
)
from strategies import anchors
from walks import walker_of
from wts.engines.common.upkeep import CHECK_EVERY_S
from wts.engines.sglang import events
from wts.engines.sglang.version import RELEASES
from wts.errors import HeadError
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.walk.walker_set import WalkerSet

RELEASE = RELEASES[-1]


@pytest.mark.parametrize("method", RELEASE.updates.names)
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
    assert events.attach(kept, RELEASE) is None
    updater = engine[0]()
    assert [getattr(updater, method)() for method in RELEASE.parts.names] == [
        "distributed",
        "tensor",
    ]
    assert packed == []
    kept.checked -= CHECK_EVERY_S
    engine[1]().process_batch_result_decode(1)
    assert "until end_weight_update" in caplog.text
    updater.end_weight_update()
    assert len(packed) == 1
    caplog.clear()
    kept.checked -= CHECK_EVERY_S
    engine[1]().process_batch_result_decode(1)
    assert caplog.messages == []


def test_an_upkeep_that_is_hung_on_a_part_is_hung_on_nothing(
    engine: tuple[type[Any], type[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, RELEASE.results.owner.rpartition(".")[0], None)
    kept = upkeep_of(MarkovHead)
    reason = events.attach(kept, RELEASE)
    assert reason is not None
    assert "SchedulerBatchResultProcessor" in reason.text
    assert not kept.active
    for method in (*RELEASE.updates.names, *RELEASE.parts.names):
        assert getattr(engine[0], method) is getattr(Updater, method)


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
    step = factory(draft)(**Buffers(head, most=2, steps=STEPS).arguments())(1)
    assert step is not None
    if change == "larger":
        fill(draft.markov_head, MarkovHead.random(vocab=600, rank=64, seed=1))
    else:
        del draft.markov_head.markov_w2.weight
    with pytest.raises(HeadError, match="restart the server"):
        engine[0]().update_weights_from_disk()


def test_results_of_batches_lead_to_looks(engine: tuple[type[Any], type[Any]]) -> None:
    kept, walkers, clock = failing_upkeep(ranks=1)
    assert events.attach(kept, RELEASE) is None
    clock.now += CHECK_EVERY_S
    assert engine[1]().process_batch_result_decode(2) == 3
    assert walkers.looks == 1


def test_sglang_without_these_methods_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RELEASE.updates.owner.rpartition(".")[0], None)
    reason = events.attach(failing_upkeep(ranks=1)[0], RELEASE)
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
    name, _, owner = RELEASE.staging.owner.rpartition(".")
    module = ModuleType(name)
    cls: Any = type(owner, (Stager,), {})
    setattr(module, owner, cls)
    monkeypatch.setitem(sys.modules, name, module)
    assert events.clear_padding(RELEASE)
    once = cls.stage_sampling_params
    assert events.clear_padding(RELEASE)
    assert cls.stage_sampling_params is once
    sampler = cls()
    sampler.stage_sampling_params(bs=5, sampling_info=0.0)
    assert not sampler.params.step_temperatures.any()
    sampler.stage_sampling_params(bs=2, sampling_info=1.0)
    assert sampler.params.step_temperatures.tolist() == [1.0] * 2 + [0.0] * 6


def test_without_sglangs_sampler_padding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RELEASE.staging.owner.rpartition(".")[0], None)
    assert not events.clear_padding(RELEASE)


def test_a_sampler_that_is_built_again_is_served_alone(
    engine: tuple[type[Any], type[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walks of the sampler before are gone with it, and SGLang's methods keep none of them."""
    packed: list[int] = []
    pack = WalkerSet.refresh

    def counted(self: WalkerSet, head: Any) -> None:
        packed.append(id(self))
        pack(self, head)

    monkeypatch.setattr(WalkerSet, "refresh", counted)
    head = head_of(MarkovHead)
    draft = draft_of(head)
    steps = [
        factory(draft)(**Buffers(head, most=1, steps=STEPS).arguments(greedy_draft=True))
        for _ in range(2)
    ]
    engine[0]().update_weights_from_disk()
    assert len(set(packed)) == len(packed) == 2, "both serve"
    served = packed[1]
    method = engine[0].update_weights_from_disk
    del steps[0]
    gc.collect()
    packed.clear()
    engine[0]().update_weights_from_disk()
    assert packed == [served]
    assert steps[0](1) is not None
    steps += [factory(draft)(**Buffers(head, most=1, steps=STEPS).arguments(greedy_draft=True))]
    assert engine[0].update_weights_from_disk is method, "wrapped once, however often it is built"


def test_a_step_alone_keeps_its_weights_fresh(engine: tuple[type[Any], type[Any]]) -> None:
    """SGLang may keep a step and nothing else of what the factory gave."""
    old, new = head_of(MarkovHead), head_of(MarkovHead, seed=8)
    draft, buffers = draft_of(old), Buffers(old, most=1, steps=STEPS)
    step = factory(draft)(**buffers.arguments(greedy_draft=True))(1)
    assert step is not None
    gc.collect()
    hidden, anchor = torch.randn(STEPS, HIDDEN).bfloat16(), anchors(old, 1, seed=4)
    before = step(hidden, anchor)[0].clone()
    fill(draft.markov_head, new)
    engine[0]().end_weight_update()
    assert not torch.equal(step(hidden, anchor)[0], before)
