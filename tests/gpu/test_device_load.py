"""Under load: very many replays in any order, two Walkers at once, other kernels beside a walk.

A hang on the GPU cannot be interrupted from inside, so each of these runs in a program of its own,
which is ended, and has failed, when its time is over. This file is that program too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from bounded import run_bounded
from strategies import anchors, base_logits
from walks import capturing, gpu_of, twin
from wts.heads.markov import MarkovHead
from wts.kernels.planner import SWEEP_WARPS, plan_residency
from wts.kernels.resident.shard import TILE_ROWS
from wts.numerics.gumbel import Noise
from wts.walk.walker import Walker

BF16 = torch.bfloat16
SECONDS = 400  # compiling, the emulator and some ten seconds on the GPU
NUM_REPLAYS = 100_000
NUM_INTERVALS = 10  # inputs are new in each
NUM_WALKS = 5000  # on each stream
WALKS_IN_A_ROW = 8  # in one graph, so that a stream always has some waiting
FIRST_OFFSET = (1 << 32) - 3  # the kernel's counter names its low half: it wraps on the way


@pytest.mark.parametrize(
    "load", ["replays_in_random_order", "two_walkers_at_once", "beside_matrix_products"]
)
def test_no_walk_hangs_and_every_token_is_right(load: str) -> None:
    outcome = run_bounded([sys.executable, __file__, load], seconds=SECONDS)
    assert outcome.status == 0, f"{load} {outcome}"


# ---- what is walked ----------------------------------------------------------------------------


def tied_head(vocab: int, rank: int) -> MarkovHead:
    """Weights of three values: logits tie within tiles, across warps and across blocks."""
    generator = torch.Generator().manual_seed(vocab)
    table, projection = (
        torch.randint(-1, 2, (vocab, rank), generator=generator).to(BF16) for _ in range(2)
    )
    return MarkovHead(table=table, projection=projection)


def greedy_walker(*, batch: int, blocks: int | None = None, vocab: int = 20_011) -> Walker:
    """One whose exchanged words are of four bytes, with a tag of four bits."""
    head = tied_head(vocab, 64)
    plan = plan_residency(head, gpu_of("device", blocks), batch=batch)
    check(not plan.selection.long_words, "a plan of eight-byte words")
    return Walker(head, plan, backend="device")


def sampled_walker(*, batch: int, vocab: int = 30_011) -> Walker:
    """One whose exchanged words are of eight bytes, and whose spare warps draw the noise."""
    head = MarkovHead.random(vocab=vocab, rank=128, seed=vocab)
    plan = plan_residency(head, gpu_of("device"), batch=batch, sampled=True)
    return Walker(head, plan, backend="device")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """A walk with the tensors it reads and writes, which counts on the GPU how often it is right.

    Args:
        walker: whose walk.
        base: base logits, [B, K, V].
        anchor: int64 [B].
        tokens: int64 [B, K], what the last walk drafted.
        wanted: int64 [B, K], the emulator's tokens.
        right: int64 [], judged walks that drafted the wanted tokens.
        temperatures: fp32 [B] under a sampled plan.
        noise: of this load alone, under a sampled plan.
    """

    walker: Walker
    base: torch.Tensor
    anchor: torch.Tensor
    tokens: torch.Tensor
    wanted: torch.Tensor
    right: torch.Tensor
    temperatures: torch.Tensor | None = None
    noise: Noise | None = None

    @classmethod
    def of(cls, walker: Walker, *, batch: int, steps: int) -> Load:
        temperatures, noise = None, None
        if walker.plan.request.sampled:
            mixed = torch.tensor([1.0, 0.0, 0.7, 3.0])
            temperatures = mixed.repeat(-(-batch // len(mixed)))[:batch].cuda()
            noise = Noise(key=7, offset=torch.tensor([FIRST_OFFSET]).cuda())
        tokens = torch.zeros(batch, steps, dtype=torch.int64, device="cuda")
        return cls(
            walker=walker,
            base=torch.zeros(
                batch, steps, walker.plan.request.shape.vocab, dtype=BF16, device="cuda"
            ),
            anchor=torch.zeros(batch, dtype=torch.int64, device="cuda"),
            tokens=tokens,
            wanted=tokens.clone(),
            right=torch.zeros((), dtype=torch.int64, device="cuda"),
            temperatures=temperatures,
            noise=noise,
        )

    def set_inputs(self, seed: int) -> None:
        """New inputs, and what the emulator makes of them with the first noise."""
        head = self.walker.head
        batch, steps, _ = self.base.shape
        self.base.copy_(base_logits(head, batch=batch, steps=steps, seed=seed, tied=True))
        self.anchor.copy_(anchors(head, batch, seed))
        self.wanted.copy_(self.emulated(FIRST_OFFSET))

    def emulated(self, offset: int) -> torch.Tensor:
        """The emulator's tokens for what the inputs hold now."""
        return twin(self.walker)(
            self.base.cpu(),
            self.anchor.cpu(),
            temperatures=None if self.temperatures is None else self.temperatures.cpu(),
            noise=None if self.noise is None else Noise(key=7, offset=torch.tensor([offset])),
        )

    def walk(self) -> None:
        """A walk alone: of a sampled row, with noise that no other walk of this load had."""
        self.walker(
            self.base,
            self.anchor,
            temperatures=self.temperatures,
            noise=self.noise,
            out=self.tokens,
        )

    def walk_judged(self) -> None:
        """A walk with the first noise, and the verdict on it. What was there before is not it."""
        self.tokens.fill_(-1)
        if self.noise is not None:
            self.noise.offset.fill_(FIRST_OFFSET)
        self.walk()
        self.right.add_((self.tokens == self.wanted).all())

    def captured(self, run: Callable[[], None], times: int = 1) -> torch.cuda.CUDAGraph:
        """A graph that does so some times in a row."""
        run()  # once before, so that nothing is loaded in the capture
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            for _ in range(times):
                run()
        self.right.zero_()
        return graph

    def check_last(self) -> None:
        """A walk that nobody judges, right after a judged one: its tokens, and its noise."""
        tokens, wanted = self.tokens.cpu(), self.emulated(FIRST_OFFSET + 1)
        check(torch.equal(tokens, wanted), f"{tokens.tolist()}, wanted {wanted.tolist()}")
        if self.noise is not None:
            offset = int(self.noise.offset)
            check(offset == FIRST_OFFSET + 2, f"an offset of {offset}")

    def check_right(self, wanted: int) -> None:
        right = int(self.right)
        batch, steps, _ = self.base.shape
        check(right == wanted, f"{right} of {wanted} walks of {batch} x {steps} tokens were right")


def check(holds: bool, found: str) -> None:
    if not holds:
        sys.exit(f"found {found}")


# ---- the loads ---------------------------------------------------------------------------------


def replays_in_random_order() -> None:
    """Graphs of one Walker share a workspace, its sequence number and its slots."""
    greedy, sampled = greedy_walker(batch=16), sampled_walker(batch=4)
    loads = [
        Load.of(greedy, batch=batch, steps=steps)
        for batch, steps in ((1, 7), (2, 16), (5, 3), (16, 4), (1, 1))
    ]
    loads += [
        Load.of(sampled, batch=batch, steps=steps) for batch, steps in ((1, 5), (2, 3), (4, 7))
    ]
    alone = [load.captured(load.walk) for load in loads]
    judged = [load.captured(load.walk_judged) for load in loads]
    order = random.Random(11)
    for interval in range(NUM_INTERVALS):
        for number, load in enumerate(loads):
            load.set_inputs(100 * interval + number)
            load.right.zero_()
        counts = [0] * len(loads)
        for _ in range(NUM_REPLAYS // NUM_INTERVALS):
            chosen = order.randrange(len(loads))
            if order.random() < 0.5:
                alone[chosen].replay()
            else:
                judged[chosen].replay()
                counts[chosen] += 1
        for number, load in enumerate(loads):
            judged[number].replay()
            alone[number].replay()
            load.check_last()
            load.check_right(counts[number] + 1)
        greedy.check()
        sampled.check()
        print(f"interval {interval + 1} of {NUM_INTERVALS} is right", flush=True)


def two_walkers_at_once() -> None:
    """Each has half of the blocks, so that both are on the GPU together."""
    half = gpu_of("device").num_sms // 2
    loads = [
        Load.of(greedy_walker(batch=batch, blocks=half, vocab=vocab), batch=batch, steps=6)
        for batch, vocab in ((2, 20_011), (5, 30_011))
    ]
    check(
        all(load.walker.plan.shard.num_blocks <= half for load in loads),
        "a plan of too many blocks",
    )
    graphs = [load.captured(load.walk_judged, WALKS_IN_A_ROW) for load in loads]
    streams = [torch.cuda.Stream() for _ in loads]
    for number, load in enumerate(loads):
        load.set_inputs(number)
    torch.cuda.synchronize()  # the inputs are there before another stream reads them
    replays = NUM_WALKS // WALKS_IN_A_ROW
    for _ in range(replays):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for load in loads:
        load.walker.check()
        load.check_right(replays * WALKS_IN_A_ROW)


def beside_matrix_products() -> None:
    """Products on another stream hold SMs, of which each walk needs every one."""
    sms = gpu_of("device").num_sms
    vocab = 3 * TILE_ROWS * SWEEP_WARPS * sms  # three tiles a warp
    walkers = (greedy_walker(batch=2, vocab=vocab), sampled_walker(batch=2, vocab=vocab))
    check(
        all(walker.plan.shard.num_blocks == sms for walker in walkers), "a plan of too few blocks"
    )
    loads = [Load.of(walker, batch=2, steps=7) for walker in walkers]
    graphs = [load.captured(load.walk_judged) for load in loads]
    for number, load in enumerate(loads):
        load.set_inputs(number)
    factor = torch.randn(2048, 2048, device="cuda").to(BF16) / 50
    product = factor @ factor
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(NUM_WALKS):
        with torch.cuda.stream(other):
            torch.mm(factor, factor, out=product)
        for graph in graphs:
            graph.replay()
    torch.cuda.synchronize()
    for load in loads:
        load.walker.check()
        load.check_right(NUM_WALKS)
    check(bool(product.isfinite().all()), "a product that is not finite")


if __name__ == "__main__":
    torch.set_num_threads(min(4, torch.get_num_threads()))
    {
        "replays_in_random_order": replays_in_random_order,
        "two_walkers_at_once": two_walkers_at_once,
        "beside_matrix_products": beside_matrix_products,
    }[sys.argv[1]]()
