"""The factory keeps SGLang's contract: its buffers, its noise, strided anchors, stale pad rows.

On the emulator, over stand-ins for SGLang's modules; a walk of its own is what steps are compared
with, since what walks compute is tested elsewhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_draft import Buffers, strided_anchor
from sglang_served import HIDDEN, KINDS, MOST, STEPS, draft_of, factory, head_of
from strategies import anchors, hopper
from walks import walker_of
from wts.engines.common.reasons import Reason
from wts.engines.sglang import dspark
from wts.engines.sglang.dspark import base_type_of, factory_of
from wts.engines.sglang.version import RELEASES
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.numerics.gumbel import Noise


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


def test_adoption_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Reason(kind="head", text="impostor")
    monkeypatch.setattr(dspark, "behaves", lambda module, head: reason)
    draft = draft_of(head_of(MarkovHead))
    found = factory_of(
        draft,
        hopper(4),
        release=RELEASES[-1],
        agree=lambda given, *_: given,
        ranks=1,
        backend="emulator",
    )
    assert found == reason
