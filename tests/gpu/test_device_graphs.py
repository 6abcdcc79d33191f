"""Captured walks: inputs read at each replay, weights refreshed between replays, any order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch

from strategies import anchors, base_logits
from walks import capturing, gpu_of, twin, walker_of
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.walk.walker import Walker

BF16 = torch.bfloat16


@lru_cache
def head_of(vocab: int = 2049) -> MarkovHead:
    generator = torch.Generator().manual_seed(vocab)
    table, projection = (
        torch.randint(-1, 2, (vocab, 64), generator=generator).to(BF16) for _ in range(2)
    )
    return MarkovHead(table=table, projection=projection)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """A walk in a graph, with the tensors that it reads and writes."""

    walker: Walker
    graph: torch.cuda.CUDAGraph
    base: torch.Tensor
    anchor: torch.Tensor
    tokens: torch.Tensor

    def set_inputs(self, seed: int) -> None:
        batch, steps, _ = self.base.shape
        head = self.walker.head
        self.base.copy_(base_logits(head, batch=batch, steps=steps, seed=seed, tied=True))
        self.anchor.copy_(anchors(head, batch, seed))

    def check(self) -> None:
        """The last replay's tokens are those of an eager call on what the inputs hold now."""
        wanted = twin(self.walker)(self.base.cpu(), self.anchor.cpu())
        assert torch.equal(self.tokens.cpu(), wanted)


def capture(walker: Walker, batch: int, steps: int) -> Captured:
    vocab = walker.plan.request.shape.vocab
    base = torch.zeros(batch, steps, vocab, dtype=BF16, device="cuda")
    anchor = torch.zeros(batch, dtype=torch.int64, device="cuda")
    tokens = torch.zeros(batch, steps, dtype=torch.int64, device="cuda")
    walker(base, anchor, out=tokens)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        walker(base, anchor, out=tokens)
    return Captured(walker=walker, graph=graph, base=base, anchor=anchor, tokens=tokens)


@pytest.mark.parametrize(("batch", "steps"), [(1, 16), (2, 7), (4, 1), (4, 32), (5, 3)])
def test_each_replay_reads_its_inputs_anew(batch: int, steps: int) -> None:
    captured = capture(walker_of("device", head_of(), batch=batch), batch, steps)
    seen = set()
    for seed in range(8):
        captured.set_inputs(seed)
        captured.graph.replay()
        captured.check()
        seen.add(tuple(captured.tokens.flatten().tolist()))
    assert len(seen) > 4
    captured.walker.check()


def test_tokens_allocated_in_the_capture_are_written_at_each_replay() -> None:
    walker = walker_of("device", head_of(), batch=2)
    base = base_logits(walker.head, batch=2, steps=3, seed=1, tied=True).cuda()
    anchor = torch.tensor([3, 4]).cuda()
    walker(base, anchor)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        tokens = walker(base, anchor)
    for seed in (2, 3):
        base.copy_(base_logits(walker.head, batch=2, steps=3, seed=seed, tied=True))
        graph.replay()
        assert torch.equal(tokens.cpu(), twin(walker)(base.cpu(), anchor.cpu()))


def test_graphs_of_one_walker_in_random_order() -> None:
    """They share a workspace and its sequence; tags wrap every 32 exchanges."""
    walker = walker_of("device", head_of(), batch=4)
    several = [capture(walker, batch, steps) for batch, steps in ((1, 7), (2, 16), (3, 1), (4, 5))]
    for number, captured in enumerate(several):
        captured.set_inputs(number)
    order = random.Random(7)
    for _ in range(40):
        for captured in several:
            captured.tokens.zero_()
        for captured in order.choices(several, k=12):
            captured.graph.replay()
        for captured in several:
            captured.graph.replay()
            captured.check()
    walker.check()


def test_eager_calls_and_replays_alternate() -> None:
    walker = walker_of("device", head_of(), batch=2)
    captured = capture(walker, 2, 5)
    captured.set_inputs(3)
    for seed in range(20):
        captured.graph.replay()
        base = base_logits(walker.head, batch=1, steps=1 + seed % 7, seed=seed, tied=True)
        anchor = torch.tensor([seed])
        eager = walker(base.cuda(), anchor.cuda())
        assert torch.equal(eager.cpu(), twin(walker)(base, anchor))
        captured.check()


def test_replays_serve_refreshed_weights() -> None:
    head = head_of()
    walker = Walker(head, plan_residency(head, gpu_of("device"), batch=2), backend="device")
    captured = capture(walker, 2, 6)
    captured.set_inputs(1)
    for shift in (0, 1, 2):
        other = MarkovHead(
            table=head.table.roll(shift, 0), projection=head.projection.roll(2 * shift, 0)
        )
        walker.refresh(other)
        captured.graph.replay()
        emulator = Walker(other, walker.plan, backend="emulator")
        wanted = emulator(captured.base.cpu(), captured.anchor.cpu())
        assert torch.equal(captured.tokens.cpu(), wanted)
    walker.check()


def test_many_replays_without_a_pause() -> None:
    walker = walker_of("device", head_of(), batch=4)
    captured = capture(walker, 4, 16)
    captured.set_inputs(11)
    for _ in range(2000):
        captured.graph.replay()
    walker.check()
    captured.check()
