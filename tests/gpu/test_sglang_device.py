"""The plugin on the device: inside captured graphs, beside SGLang's own code, on several ranks.

What compares with SGLang is skipped where SGLang 0.5.23 does not import.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from sglang_draft import Buffers, Draft, domino_arguments, fill, stand_in
from sglang_oracle import draft_of, input_ids, one_rank, same_block, sampler_of, sglang_or_skip
from strategies import anchors, recurrent_head
from walks import capturing, gpu_of
from wts.bench.baselines.sglang_steps import Sglang
from wts.engines.common import report
from wts.engines.common.buckets import Walks, build_walks, held_bytes, packing_bytes
from wts.engines.common.upkeep import Upkeep
from wts.engines.sglang import domino, events
from wts.engines.sglang.domino import Rollout, prepare
from wts.engines.sglang.dspark import Factory, factory_of
from wts.engines.sglang.hooks import Hooks
from wts.engines.sglang.version import DSPARK, RELEASES
from wts.hardware.gpu import GpuSpec
from wts.heads.base import Head, with_weights
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.numerics.gumbel import Noise

STEPS, MOST, HIDDEN = 6, 5, 40
KINDS = (MarkovHead, GatedHead, RnnHead)
HEAT = torch.tensor([0.0, 0.5, 1.0, 0.0, 0.7])


@pytest.fixture(scope="module")
def library() -> Sglang:
    return sglang_or_skip()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> list[Upkeep]:
    """Upkeeps that would be hung on SGLang."""
    kept: list[Upkeep] = []
    monkeypatch.setattr(events, "attach", lambda upkeep, release: kept.append(upkeep))
    return kept


def on_gpu(head: Any, device: str = "cuda") -> Any:
    return with_weights(head, lambda weight: weight.to(device))


def head_of(kind: type[Any], seed: int = 7) -> Head:
    if kind is MarkovHead:
        return on_gpu(MarkovHead.random(vocab=4099, rank=64, seed=seed))
    return on_gpu(recurrent_head(kind, seed=seed))


def factory(draft: Draft, gpu: GpuSpec | None = None) -> Factory:
    made = factory_of(
        draft,
        gpu or gpu_of("device"),
        release=RELEASES[-1],
        agree=lambda reason, *_: reason,
        ranks=1,
        backend="device",
    )
    assert isinstance(made, Factory)
    return made


@pytest.mark.parametrize("greedy_draft", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sglangs_sampler_in_a_graph_drafts_what_its_own_steps_draft(
    library: Sglang, kind: type[Any], greedy_draft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_rank(monkeypatch, gpu_of("device"), "device")
    head = head_of(kind)
    draft = draft_of(library, head, hidden_size=HIDDEN)
    held = {ours: Buffers(head, most=MOST, steps=STEPS, device="cuda") for ours in (True, False)}
    samplers = {
        ours: sampler_of(library, draft, buffers, ours=ours, greedy_draft=greedy_draft)
        for ours, buffers in held.items()
    }
    ours, theirs = samplers[True], samplers[False]
    shares = []
    for batch in (1, 2, 4, MOST):
        hidden = torch.zeros(batch * STEPS, HIDDEN, dtype=torch.bfloat16, device="cuda")
        ids = input_ids(anchors(head, batch, seed=0).cuda(), STEPS, head.vocab)
        with torch.inference_mode():
            for _ in range(2):
                ours(hidden, ids)
            graph = torch.cuda.CUDAGraph()
            with capturing(graph):
                ours(hidden, ids)
        for seed in range(3):
            generator = torch.Generator().manual_seed(10 * batch + seed)
            hidden.copy_(torch.randn(hidden.shape, generator=generator))
            anchor = anchors(head, batch, seed=seed).cuda()
            ids.view(batch, STEPS)[:, 0] = anchor
            for made in samplers.values():
                made.params.step_temperatures.copy_(HEAT)
            offset = held[True].noise.offset.item()
            held[False].noise.offset.fill_(offset)
            ours.out.fill_(-1)
            graph.replay()
            with torch.inference_mode():
                theirs(hidden, ids)
            moved = 0 if greedy_draft else 1
            assert held[True].noise.offset.item() == offset + moved
            assert (ours.out[batch * STEPS :] == -1).all()
            base, _ = draft.compute_base_logits(hidden)
            share = same_block(
                head,
                base_logits=base.view(batch, STEPS, -1),
                anchor=anchor,
                hidden=None if kind is MarkovHead else hidden.view(batch, STEPS, -1),
                ours=ours.out[: batch * STEPS].view(batch, STEPS),
                theirs=theirs.out[: batch * STEPS].view(batch, STEPS),
                temperatures=None if greedy_draft else HEAT[:batch],
                key=held[True].noise.key,
                offset=offset,
                our_logits=None if greedy_draft else ours.step_logits[:batch],
                their_logits=None if greedy_draft else theirs.step_logits[:batch],
            )
            shares.append(share)
    assert sum(shares) / len(shares) > 0.5, "a bound that decides little tests little"


@pytest.mark.usefixtures("hung")
@pytest.mark.parametrize("batch", [1, 3, MOST])
def test_a_captured_step_has_the_emulators_bits(batch: int) -> None:
    head = head_of(MarkovHead)
    draft = Draft(stand_in(head), vocab=head.vocab, hidden_size=HIDDEN, device="cuda")
    buffers = Buffers(head, most=MOST, steps=STEPS, device="cuda")
    made = factory(draft)
    step = made(**buffers.arguments())(batch)
    assert step is not None
    buffers.temperatures.copy_(HEAT)
    hidden = torch.zeros(batch * STEPS, HIDDEN, dtype=torch.bfloat16, device="cuda")
    anchor = torch.zeros(batch, 5, dtype=torch.int64, device="cuda")
    step(hidden, anchor[:, 0])
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        step(hidden, anchor[:, 0])
    walks = build_walks(
        head,
        made.gpu,
        draft=DSPARK,
        most_requests=MOST,
        steps=STEPS,
        base_type="bf16",
        sampled=True,
    )
    assert isinstance(walks, Walks)
    walker = walks.for_batch(batch)
    assert walker is not None
    emulator = walker.twin()
    for seed in range(3):
        hidden.copy_(torch.randn(hidden.shape, generator=torch.Generator().manual_seed(seed)))
        anchor[:, 0] = anchors(head, batch, seed=seed).cuda()
        buffers.logits.zero_()
        offset = buffers.noise.offset.cpu()
        graph.replay()
        base, _ = draft.compute_base_logits(hidden)
        logits = torch.zeros(batch, STEPS, head.vocab, dtype=torch.bfloat16)
        tokens, _ = emulator.walk(
            base.view(batch, STEPS, -1).cpu(),
            anchor[:, 0].cpu(),
            temperatures=HEAT[:batch],
            noise=Noise(key=buffers.noise.key, offset=offset.clone()),
            logits_out=logits,
        )
        assert torch.equal(buffers.tokens[: batch * STEPS].view(batch, STEPS).cpu(), tokens)
        assert torch.equal(buffers.logits[:batch].cpu(), logits)
        assert not buffers.logits[batch:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_serves_updated_weights(kind: type[Any], hung: list[Upkeep]) -> None:
    old, new = head_of(kind), head_of(kind, seed=8)
    hidden = torch.randn(2 * STEPS, HIDDEN, generator=torch.Generator().manual_seed(1))
    hidden = hidden.bfloat16().cuda()
    anchor = anchors(old, 2, seed=2).cuda()
    drafts = [
        Draft(stand_in(head), vocab=head.vocab, hidden_size=HIDDEN, device="cuda", scale=0.5)
        for head in (old, new)
    ]
    made = []
    for draft, head in zip(drafts, (old, new), strict=True):
        buffers = Buffers(head, most=2, steps=STEPS, device="cuda")
        step = factory(draft)(**buffers.arguments(greedy_draft=True))(2)
        assert step is not None
        made.append((step, buffers))
    (step, buffers), (fresh, _) = made
    step(hidden, anchor)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        step(hidden, anchor)
    graph.replay()
    before = buffers.tokens.clone()
    fill(drafts[0].markov_head, new)
    hung[0].refresh()
    graph.replay()
    wanted, _ = fresh(hidden, anchor)
    assert torch.equal(buffers.tokens.view(2, STEPS), wanted)
    assert not torch.equal(buffers.tokens, before)
    hung[0].walkers.check()


@pytest.mark.usefixtures("hung")
def test_ranks_draft_the_same_block() -> None:
    """On two GPUs where there are two; else on one GPU under plans of different blocks."""
    two = torch.cuda.device_count() > 1
    head = MarkovHead.random(vocab=4099, rank=64, seed=7)
    hidden = torch.randn(MOST * STEPS, HIDDEN, generator=torch.Generator().manual_seed(3))
    drafted = []
    for rank in range(2):
        device = torch.device("cuda", rank if two else 0)
        with torch.cuda.device(device):
            whole = gpu_of("device")
            gpu = whole if two else whole.with_blocks(whole.num_sms - 3 * rank)
            local = on_gpu(head, str(device))
            draft = Draft(stand_in(local), vocab=4099, hidden_size=HIDDEN, device=device)
            buffers = Buffers(local, most=MOST, steps=STEPS, device=device)
            buffers.temperatures.copy_(HEAT)
            step = factory(draft, gpu)(**buffers.arguments())(MOST)
            assert step is not None
            tokens, _ = step(hidden.bfloat16().to(device), anchors(head, MOST, seed=1).to(device))
            drafted.append((tokens.cpu(), buffers.logits.cpu()))
    assert torch.equal(drafted[0][0], drafted[1][0])
    assert torch.equal(drafted[0][1], drafted[1][1])


@pytest.mark.parametrize("shift_label", [False, True])
def test_a_captured_rollout_drafts_what_sglangs_rollout_drafts(
    library: Sglang, shift_label: bool, hung: list[Upkeep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the hook: the eager warm-up builds, the capture walks."""
    head = on_gpu(recurrent_head(DominoHead, shift_label=shift_label))
    generator = torch.Generator().manual_seed(2)
    hooks = Hooks(release=RELEASES[-1], largest_batch=lambda: MOST)
    built = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        built.append(prepare(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(domino, "prepare", watched)
    block = torch.randn(MOST, STEPS + 1, HIDDEN, generator=generator).bfloat16().cuda()
    anchor = anchors(head, MOST, seed=1).cuda()
    arguments = domino_arguments(head, block_hidden=block, anchor=anchor)
    for batch in (MOST, 2, 1):
        block = torch.zeros(batch, STEPS + 1, HIDDEN, dtype=torch.bfloat16, device="cuda")
        anchor = torch.zeros(batch, dtype=torch.int64, device="cuda")
        call = arguments | {"draft_hidden": block, "bonus_tokens": anchor}
        with torch.inference_mode():
            hooks.around_rollout(library.domino_rollout, **call)
            graph = torch.cuda.CUDAGraph()
            with capturing(graph):
                tokens = hooks.around_rollout(library.domino_rollout, **call)
        assert len(built) == 1
        assert isinstance(built[0], Rollout)
        assert tokens.data_ptr() == built[0].tokens.data_ptr(), "SGLang's own rollout was captured"
        shares = []
        for seed in range(3):
            block.copy_(torch.randn(block.shape, generator=generator))
            anchor.copy_(anchors(head, batch, seed=seed))
            graph.replay()
            hidden = head.drafting_hidden(block)
            rows = hidden.transpose(0, 1).reshape(-1, HIDDEN)
            base = functional.linear(rows, arguments["lm_head_weight"][: head.vocab])
            shares.append(
                same_block(
                    head,
                    base_logits=base.view(STEPS, batch, -1).transpose(0, 1),
                    anchor=anchor,
                    hidden=hidden,
                    ours=tokens,
                    theirs=library.domino_rollout(**call),
                )
            )
        assert sum(shares) / len(shares) > 0.2, "a bound that decides little tests little"
    hung[0].walkers.check()


@pytest.mark.parametrize("kind", ["markov", "rnn"])
def test_building_a_published_size_takes_no_more_than_was_asked_for(kind: str) -> None:
    sizes: dict[str, Any] = {"vocab": 151_936, "rank": 256, "seed": 1, "device": "cuda"}
    head: Head = (
        MarkovHead.random(**sizes) if kind == "markov" else RnnHead.random(**sizes, hidden_size=512)
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    walks = build_walks(
        head,
        gpu_of("device"),
        draft=DSPARK,
        most_requests=4,
        steps=16,
        base_type="bf16",
        sampled=True,
    )
    assert isinstance(walks, Walks)
    held = held_bytes(head, walks.walkers.plans)
    peak = torch.cuda.max_memory_allocated() - before
    assert walks.walkers.memory_bytes <= held * 1.01
    assert peak <= held + packing_bytes(head)
    assert "batch 5 and above: SGLang's own steps" in report.walks_line(walks)
