"""Heads that read hidden states on the device: the emulator's tokens and logits, bit for bit.

The emulator is given what the device made itself before and beside the kernel: the packed bytes,
input rows among them, and the hidden part of the walk. Both come from matrix products of a library,
whose order of sums is its own; the tests of bounds say how far from the formula they may be.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch

from bounds import decided
from intervals import latent_interval, walk_bound
from strategies import KINDS, RecurrentHead, anchors, base_logits, hidden_states, recurrent_head
from walks import capturing, gpu_of, moved, run, run_sampled, walker_of, without_the_last_block
from wts.bench.head.cases import HeadCase
from wts.bench.inputs import draw_head
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.errors import InputError, WalkTimeout
from wts.heads.base import Head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.rnn import RnnHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.numerics.gumbel import Noise
from wts.numerics.order import select_greedy
from wts.numerics.step_logits import step_logits
from wts.walk.backends import BackendName
from wts.walk.emulator import Emulator
from wts.walk.walker import Walker

BF16 = torch.bfloat16
NAN = float("nan")
INF = float("inf")
DEVICE: BackendName = "device"
BATCHES = (1, 2, 3, 4, 5, 8, 16)
TEMPERATURES = (1.0, 0.0, 0.6, 2.0, NAN, 0.8, -1.0, 1.5)

each_kind = pytest.mark.parametrize("kind", KINDS)
# Heads whose blocks exchange products with states.
each_state = pytest.mark.parametrize("kind", [RnnHead, DominoHead])

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@lru_cache
def head_of(kind: Any, vocab: int = 3001, rank: int = 128, **others: Any) -> Any:
    sizes: dict[str, Any] = {"vocab": vocab, "rank": rank, "hidden_size": 200, "seed": vocab}
    if kind is DominoHead:
        sizes["state_size"] = 96
    return recurrent_head(kind, **(sizes | others))


def inputs(head: Head, batch: int, steps: int, seed: int = 0, *, base_type: str = "bf16") -> Inputs:
    """Base logits that leave decisions to the head, anchors, hidden states.

    Of several anchors one is outside. A lone one is not: it would be the same token each time.
    """
    base = base_logits(head, batch=batch, steps=steps, seed=seed, base_type=base_type)
    anchor = anchors(head, batch, seed)
    if batch > 1:
        anchor[-1] = 1 << 40
    return base, anchor, hidden_states(head, batch=batch, steps=steps, seed=seed + 1)


@lru_cache(maxsize=32)
def twin(walker: Walker) -> Emulator:
    """The emulator of a Walker's own packed bytes. Not for one whose weights are refreshed."""
    return walker.twin()


def check_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal bits; a NaN is a NaN."""
    assert torch.equal(found.isnan(), wanted.isnan())
    finite = ~wanted.isnan()
    bits = {2: torch.int16, 4: torch.int32}[wanted.element_size()]
    assert torch.equal(found.view(bits)[finite], wanted.view(bits)[finite])


def check(
    walker: Walker, drawn: Inputs, *, emulator: Emulator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A greedy walk on both; gives its tokens and its hidden part."""
    base, anchor, hidden = drawn
    tokens = run(walker, base, anchor, hidden)
    part = walker.hidden_term()
    wanted, _ = (emulator or twin(walker)).walk(base, anchor, hidden_term=part)
    assert torch.equal(tokens, wanted)
    return tokens, part


def check_sampled(walker: Walker, drawn: Inputs, *, offset: int = 5) -> None:
    """A walk of sampled and greedy rows on both, with the step logits that it leaves."""
    base, anchor, hidden = drawn
    batch = len(base)
    temperatures = [TEMPERATURES[row % len(TEMPERATURES)] for row in range(batch)]
    found = run_sampled(
        walker, base, anchor, temperatures, key=77, offset=offset, fill=3.0, hidden=hidden
    )
    logits = torch.full_like(found.logits, 3.0)
    noise = Noise(key=77, offset=torch.tensor([offset]))
    wanted, _ = twin(walker).walk(
        base,
        anchor,
        hidden_term=walker.hidden_term(),
        temperatures=torch.tensor(temperatures),
        noise=noise,
        logits_out=logits,
    )
    assert torch.equal(found.tokens, wanted)
    check_same(found.logits, logits)
    assert found.offset == offset + 1


class TestShapes:
    @each_kind
    @pytest.mark.parametrize("batch", BATCHES)
    def test_batches(self, kind: type[RecurrentHead], batch: int) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=batch)
        for requests in sorted({1, (batch + 1) // 2, batch}):
            for steps in (1, 2, 7):
                check(walker, inputs(walker.head, requests, steps, 10 * requests + steps))

    @each_kind
    @pytest.mark.parametrize("batch", BATCHES)
    def test_sampled_batches(self, kind: type[RecurrentHead], batch: int) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=batch, sampled=True)
        for requests in sorted({1, batch}):
            check_sampled(walker, inputs(walker.head, requests, 5, requests))

    @each_kind
    @pytest.mark.parametrize("rank", [64, 128, 256, 512])
    @pytest.mark.parametrize(("batch", "sampled"), [(1, False), (4, False), (8, False), (2, True)])
    def test_ranks(self, kind: type[RecurrentHead], rank: int, batch: int, sampled: bool) -> None:
        walker = walker_of(DEVICE, head_of(kind, 2003, rank), batch=batch, sampled=sampled)
        (check_sampled if sampled else check)(walker, inputs(walker.head, batch, 6, rank))

    @each_kind
    @pytest.mark.parametrize("vocab", [1, 7, 33, 16_001])
    def test_vocabularies(self, kind: type[RecurrentHead], vocab: int) -> None:
        walker = walker_of(DEVICE, head_of(kind, vocab, 64), batch=2)
        for steps in (1, 32):
            check(walker, inputs(walker.head, 2, steps, vocab))

    @each_kind
    @pytest.mark.parametrize("blocks", [1, 2, 36, 100])
    @pytest.mark.parametrize("batch", [1, 8])
    def test_grids(self, kind: type[RecurrentHead], blocks: int, batch: int) -> None:
        """Few blocks have many rows of a state's matrix each; many have one, or none."""
        walker = walker_of(DEVICE, head_of(kind, 1503, 64), batch=batch, blocks=blocks)
        assert walker.plan.shard.num_blocks <= blocks
        check(walker, inputs(walker.head, batch, 5))

    @each_kind
    @pytest.mark.parametrize("batch", [30, 64])
    def test_many_groups(self, kind: type[RecurrentHead], batch: int) -> None:
        """Their latents are made later than their tokens are known."""
        walker = walker_of(DEVICE, head_of(kind, 1503, 64), batch=batch)
        for requests in (1, batch - 1, batch):
            check(walker, inputs(walker.head, requests, 4, requests))

    @each_kind
    @pytest.mark.parametrize("base_type", NUMBER_TYPES)
    def test_number_types_of_base_logits(
        self, kind: type[RecurrentHead], base_type: NumberType
    ) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=3, base_type=base_type)
        check(walker, inputs(walker.head, 3, 5, base_type=base_type))

    @each_kind
    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("draft_vocab", [1, 700])
    def test_draft_vocabularies(
        self, kind: type[RecurrentHead], sampled: bool, draft_vocab: int
    ) -> None:
        head = head_of(kind, 1003, 64, draft_vocab=draft_vocab)
        walker = walker_of(DEVICE, head, batch=4, sampled=sampled)
        (check_sampled if sampled else check)(walker, inputs(head, 4, 6))

    @each_kind
    @pytest.mark.parametrize("batch", [1, 4, 8])
    def test_a_part_that_streams(self, kind: type[RecurrentHead], batch: int) -> None:
        head = head_of(kind, 30_011, 256)
        walker = walker_of(DEVICE, head, batch=batch, blocks=12)
        assert walker.plan.placement.streamed_fragments > 0
        check(walker, inputs(head, batch, 4))

    @each_kind
    @pytest.mark.parametrize(("batch", "sampled"), [(1, False), (4, False), (8, False), (1, True)])
    def test_a_head_of_a_published_size(
        self, kind: type[RecurrentHead], batch: int, sampled: bool
    ) -> None:
        head = large_head(kind)
        walker = walker_of(DEVICE, head, batch=batch, sampled=sampled)
        base, anchor, hidden = inputs(head, batch, 5)
        (check_sampled if sampled else check)(walker, (base * 2, anchor, hidden))


@lru_cache
def large_head(kind: Any) -> Any:
    """On the GPU, where it is drawn in a second."""
    case = HeadCase(head=kind.kind, vocab=151_936, rank=256, batch=1, temperature=0.0, steps=(1,))
    return draw_head(case, device="cuda", seed=1)


class TestHiddenStates:
    @each_kind
    @pytest.mark.parametrize("batch", [1, 3, 8])
    def test_any_strides(self, kind: type[RecurrentHead], batch: int) -> None:
        """A crop of what is wider, steps before requests, one row for all, a block's positions.

        What lies around them is NaN: it would be seen if it were read.
        """
        walker = walker_of(DEVICE, head_of(kind), batch=batch)
        size, steps = walker.head.hidden_size, 4
        assert size is not None
        base, anchor, hidden = inputs(walker.head, batch, steps)
        plain, part = check(walker, (base, anchor, hidden))
        wide = torch.full((batch, steps, size + 7), NAN, dtype=BF16)[:, :, 3 : 3 + size]
        by_steps = torch.full((steps, batch + 1, size), NAN, dtype=BF16)[:, 1:].transpose(0, 1)
        for view in (wide, by_steps):
            view.copy_(hidden)
            tokens, same = check(walker, (base, anchor, view))
            assert torch.equal(same, part)
            assert torch.equal(tokens, plain)
        block = torch.full((batch, steps + 1, size), NAN, dtype=BF16)[:, 1:]
        odd = torch.full((1 + hidden.numel(),), NAN, dtype=BF16)[1:].view_as(hidden)
        for view in (block, odd):  # perhaps read where they lie, by another product of the library
            check(walker, (base, anchor, view.copy_(hidden)))
        one = hidden[:1, :1].expand(batch, steps, size)
        assert one.stride(1) == 0
        check(walker, (base, anchor, one))

    @each_kind
    @pytest.mark.parametrize("batch", [1, 3, 8])
    @pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38, 0.0])
    def test_special_numbers(self, kind: type[RecurrentHead], batch: int, value: float) -> None:
        """One request's: others are not touched, tokens are in range."""
        walker = walker_of(DEVICE, head_of(kind), batch=batch)
        base, anchor, hidden = inputs(walker.head, batch, 5)
        plain, _ = check(walker, (base, anchor, hidden))
        hidden[batch // 2, 2] = value
        tokens, _ = check(walker, (base, anchor, hidden))
        others = [row for row in range(batch) if row != batch // 2]
        assert torch.equal(tokens[others], plain[others])
        assert torch.equal(tokens[:, :2], plain[:, :2])
        assert bool(((tokens >= 0) & (tokens < walker.head.vocab)).all())

    @each_kind
    def test_special_numbers_of_sampled_rows(self, kind: type[RecurrentHead]) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=4, sampled=True)
        for value in (NAN, INF):
            base, anchor, hidden = inputs(walker.head, 4, 5)
            hidden[0, 1], hidden[1, 2], hidden[2, 3, 17] = value, value, value
            check_sampled(walker, (base, anchor, hidden))

    @each_kind
    def test_the_part_is_near_the_exact_one(self, kind: type[RecurrentHead]) -> None:
        """Sums in fp32, in any order: off by less than n 2^-24 of the sizes of the terms."""
        head = head_of(kind)
        walker = walker_of(DEVICE, head, batch=8)
        _, part = check(walker, drawn := inputs(head, 8, 6))
        weight, hidden = head.hidden_weight.double(), drawn[2].double()
        exact, sizes = hidden @ weight.T, hidden.abs() @ weight.abs().T
        if head.hidden_bias is not None:
            exact, sizes = exact + head.hidden_bias, sizes + head.hidden_bias.abs()
        assert bool(((part - exact).abs() <= (head.hidden_size + 2) * 2.0**-24 * sizes).all())

    def test_are_refused_where_they_do_not_fit(self) -> None:
        walker = walker_of(DEVICE, head_of(GatedHead), batch=3)
        base, anchor, hidden = inputs(walker.head, 3, 5)
        there = moved(base, walker), moved(anchor, walker)
        with pytest.raises(InputError, match=r"^hidden: wanted a tensor on cuda"):
            walker(*there, hidden=hidden)
        with pytest.raises(InputError, match=r"^hidden: wanted"):
            walker(*there)
        with pytest.raises(InputError, match=r"^hidden: wanted bfloat16"):
            walker(*there, hidden=moved(hidden, walker).float())


class TestFormula:
    @each_kind
    @pytest.mark.parametrize("batch", [2, 8])
    def test_steps_are_those_of_the_unquantised_head_where_the_bound_decides(
        self, kind: type[RecurrentHead], batch: int
    ) -> None:
        """From the state that the device has: at least as many steps as the bound says."""
        head = head_of(kind, 1500, 256)
        walker = walker_of(DEVICE, head, batch=batch)
        num_same, num_sure, num_steps = 0, 0, 0
        for seed in range(3):
            base, anchor, hidden = inputs(head, batch, 12, seed)
            tokens, part = check(walker, (base, anchor, hidden))
            packed = twin(walker).packed
            state = packed.initial_state(batch)
            previous = anchor.clamp(0, head.table_rows - 1)
            for step in range(12):
                read = hidden[:, step]
                logits = step_logits(head, base[:, step], head.latent(state, previous, read)[1])
                _, bound = latent_interval(head, state, previous, read)
                sure = decided(logits, walk_bound(head, base[:, step], bound))
                same = tokens[:, step] == select_greedy(logits)
                assert bool(same[sure].all())
                num_same += int(same.sum())
                num_sure += int(sure.sum())
                num_steps += batch
                state, _ = packed.latent(state, previous, part[:, step])
                previous = tokens[:, step]
        assert num_same >= num_sure
        assert num_sure > num_steps / 2, "a bound that decides little tests little"


class TestPacking:
    @each_kind
    def test_the_gpu_packs_the_same_bytes_and_nearly_the_same_packed_rows(
        self, kind: type[RecurrentHead]
    ) -> None:
        """Their fp64 sums are in another order, which one in 2^28 of them shows."""
        head = head_of(kind, 1003)
        plan = plan_residency(head, gpu_of(DEVICE))
        there = pack_head(head, plan, torch.device("cuda"))
        here = pack_head(head, plan, torch.device("cpu"))
        for name in ("tiles", "row_scale"):
            one, other = getattr(there, name).cpu(), getattr(here, name)
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name
        assert (there.table.cpu() != here.table).double().mean() < 1e-5

    @each_kind
    @pytest.mark.parametrize("draft_vocab", [None, 700])
    def test_refresh_is_in_place(self, kind: type[RecurrentHead], draft_vocab: int | None) -> None:
        made = [head_of(kind, 1003, 64, seed=seed, draft_vocab=draft_vocab) for seed in (1, 2, 3)]
        walker = Walker(made[0], plan_residency(made[0], gpu_of(DEVICE), batch=2), backend=DEVICE)
        drawn = inputs(made[0], 2, 8)
        check(walker, drawn, emulator=walker.twin())
        captured = Captured.of(walker, 2, 8)
        captured.set_inputs(3)
        seen = []
        for head in made:
            before = torch.cuda.memory_allocated()
            walker.refresh(head)
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == before
            fresh = walker.twin()
            assert torch.equal(fresh.packed.row_scale, pack_of(head, walker).row_scale)
            seen.append(check(walker, drawn, emulator=fresh)[0])
            captured.graph.replay()
            captured.check(fresh)
        assert not torch.equal(seen[0], seen[1])


def pack_of(head: RecurrentHead, walker: Walker) -> Any:
    return pack_head(head, walker.plan, torch.device("cpu"))


class TestCalls:
    @each_kind
    @pytest.mark.parametrize("batch", [2, 8])
    def test_two_walks_one_after_the_other(self, kind: type[RecurrentHead], batch: int) -> None:
        """Without a pause: the second's hidden part is made when the first has read its own."""
        walker = walker_of(DEVICE, head_of(kind), batch=batch)
        drawn = [inputs(walker.head, batch, steps, steps) for steps in (7, 3, 32)]
        there = [tuple(moved(tensor, walker) for tensor in one) for one in drawn]
        torch.cuda.synchronize()
        results = []
        for base, anchor, hidden in there:
            tokens = walker(base, anchor, hidden=hidden)
            term = walker.kernels[0].hidden_term(*hidden.shape[:2]).clone()
            results.append((tokens, term))
        walker.check()
        for (base, anchor, _), (tokens, part) in zip(drawn, results, strict=True):
            wanted, _ = twin(walker).walk(base, anchor, hidden_term=part.cpu())
            assert torch.equal(tokens.cpu(), wanted)

    @each_kind
    def test_the_same_call_gives_the_same_tokens(self, kind: type[RecurrentHead]) -> None:
        """No state is left behind by what ran between."""
        walker = walker_of(DEVICE, head_of(kind), batch=4)
        drawn = inputs(walker.head, 4, 9)
        first, _ = check(walker, drawn)
        for requests in (1, 2, 3):
            check(walker, inputs(walker.head, requests, 2 * requests + 1, requests))
            assert torch.equal(run(walker, *drawn), first)

    @each_kind
    def test_a_call_allocates_nothing_and_synchronises_nothing(
        self, kind: type[RecurrentHead]
    ) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=2)
        base, anchor, hidden = (moved(one, walker) for one in inputs(walker.head, 2, 4))
        out = torch.empty(2, 4, dtype=torch.int64, device="cuda")
        strided = torch.zeros(2, 4, hidden.shape[2] + 1, dtype=BF16, device="cuda")[:, :, 1:]
        for given in (hidden, strided):
            walker(base, anchor, hidden=given, out=out)
            torch.cuda.synchronize()
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            torch.cuda.set_sync_debug_mode("error")
            try:
                walker(base, anchor, hidden=given, out=out)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        walker.check()

    @each_kind
    def test_clamped_anchors_are_counted(self, kind: type[RecurrentHead]) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=4)
        base, _, hidden = inputs(walker.head, 4, 3)
        before = walker.report().clamped_anchors
        check(walker, (base, torch.tensor([-1, 5, walker.head.table_rows, -(2**63)]), hidden))
        assert walker.report().clamped_anchors - before == 3


# ---- graphs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """A walk in a graph, with the tensors that it reads and writes."""

    walker: Walker
    graph: torch.cuda.CUDAGraph
    base: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, walker: Walker, batch: int, steps: int) -> Captured:
        base, anchor, hidden = (moved(one, walker) for one in inputs(walker.head, batch, steps))
        tokens = torch.zeros(batch, steps, dtype=torch.int64, device="cuda")
        walker(base, anchor, hidden=hidden, out=tokens)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            walker(base, anchor, hidden=hidden, out=tokens)
        return cls(
            walker=walker, graph=graph, base=base, anchor=anchor, hidden=hidden, tokens=tokens
        )

    def set_inputs(self, seed: int) -> None:
        batch, steps, _ = self.base.shape
        drawn = inputs(self.walker.head, batch, steps, seed)
        for ours, new in zip((self.base, self.anchor, self.hidden), drawn, strict=True):
            ours.copy_(new)

    def check(self, emulator: Emulator) -> None:
        """What the last replay, which was the Walker's last walk, has written."""
        part = self.walker.hidden_term(*self.hidden.shape[:2])
        wanted, _ = emulator.walk(self.base.cpu(), self.anchor.cpu(), hidden_term=part)
        assert torch.equal(self.tokens.cpu(), wanted)


class TestGraphs:
    @each_kind
    @pytest.mark.parametrize(("batch", "steps"), [(1, 16), (2, 7), (4, 1), (4, 32), (8, 5)])
    def test_each_replay_reads_its_inputs_anew(
        self, kind: type[RecurrentHead], batch: int, steps: int
    ) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=batch)
        captured, seen = Captured.of(walker, batch, steps), set()
        for seed in range(6):
            captured.set_inputs(seed)
            captured.graph.replay()
            captured.check(twin(walker))
            seen.add(tuple(captured.tokens.flatten().tolist()))
        assert len(seen) == 6
        walker.check()

    @each_kind
    def test_hidden_states_alone_change_what_a_replay_gives(
        self, kind: type[RecurrentHead]
    ) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=4)
        captured, seen = Captured.of(walker, 4, 12), set()
        for seed in range(4):
            captured.hidden.copy_(
                hidden_states(walker.head, batch=4, steps=12, seed=seed) * 4  # type: ignore[arg-type]
            )
            captured.graph.replay()
            captured.check(twin(walker))
            seen.add(tuple(captured.tokens.flatten().tolist()))
        assert len(seen) == 4

    @each_kind
    def test_graphs_of_one_walker_in_random_order_among_eager_calls(
        self, kind: type[RecurrentHead]
    ) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=4)
        several = [Captured.of(walker, *shape) for shape in ((1, 7), (2, 16), (3, 1), (4, 5))]
        for number, captured in enumerate(several):
            captured.set_inputs(number)
        order = random.Random(7)
        for turn in range(20):
            for captured in order.choices(several, k=8):
                captured.graph.replay()
            for captured in several:
                captured.tokens.zero_()
                captured.graph.replay()
                captured.check(twin(walker))
            check(walker, inputs(walker.head, 1 + turn % 4, 1 + turn % 6, turn))
        walker.check()

    @each_kind
    def test_many_replays_without_a_pause(self, kind: type[RecurrentHead]) -> None:
        walker = walker_of(DEVICE, head_of(kind), batch=4)
        captured = Captured.of(walker, 4, 16)
        captured.set_inputs(11)
        for _ in range(2000):
            captured.graph.replay()
        walker.check()
        captured.check(twin(walker))


# ---- faults ------------------------------------------------------------------------------------


def walker_with_limit(kind: type[RecurrentHead], timeout_ms: int, *, batch: int = 2) -> Walker:
    """A Walker of its own: its workspace is about to be broken. Its last block has products."""
    others: dict[str, Any] = {"state_size": 512} if kind is DominoHead else {}
    head = head_of(kind, 4999, 512, **others)
    plan = plan_residency(head, gpu_of(DEVICE), batch=batch, steps=32)
    if plan.request.shape.state:
        assert (plan.shard.num_blocks - 1) * plan.recurrence.block_neurons < plan.recurrence.neurons
    return Walker(head, plan, backend=DEVICE, timeout_ms=timeout_ms)


def walk_without_the_last_block(walker: Walker, batch: int, steps: int) -> torch.Tensor:
    """Launch one block less than every block waits for."""
    base, anchor, hidden = (moved(one, walker) for one in inputs(walker.head, batch, steps))
    with without_the_last_block(walker):
        return walker(base, anchor, hidden=hidden)


class TestFaults:
    @each_kind
    @pytest.mark.parametrize("batch", [1, 2, 4, 5, 9])
    def test_a_block_that_never_publishes_is_named_and_the_next_walk_is_right(
        self, kind: type[RecurrentHead], batch: int
    ) -> None:
        """Of a head with a state the products are what is waited for first, and in vain."""
        walker = walker_with_limit(kind, 20, batch=batch)
        last = walker.plan.shard.num_blocks - 1
        tokens = walk_without_the_last_block(walker, batch, 5)
        with pytest.raises(WalkTimeout) as caught:
            walker.check()
        assert re.search(rf"found none of block {last} at step 0 ", str(caught.value))
        assert bool(((tokens >= 0) & (tokens < walker.plan.request.shape.vocab)).all())
        walker.check()
        check(walker, inputs(walker.head, batch, 5))

    @each_kind
    def test_is_seen_after_good_walks_too(self, kind: type[RecurrentHead]) -> None:
        """Its slots then hold old words; none may be taken for a new one."""
        walker = walker_with_limit(kind, 20)
        for steps in (1, 2, 3, 8, 31):
            for seed in range(2):
                check(walker, inputs(walker.head, 2, steps, seed))
            walk_without_the_last_block(walker, 2, steps)
            with pytest.raises(WalkTimeout):
                walker.check()
            check(walker, inputs(walker.head, 2, steps))

    @each_kind
    def test_costs_one_limit_not_one_for_each_step(self, kind: type[RecurrentHead]) -> None:
        """Far less than the sixteen seconds that 32 steps behind a limit of half a second cost."""
        walker = walker_with_limit(kind, 500)
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        walk_without_the_last_block(walker, 2, 32)
        ended.record()
        with pytest.raises(WalkTimeout):
            walker.check()
        assert started.elapsed_time(ended) < 8000

    @each_state
    def test_products_of_the_exchange_before_are_not_taken(self, kind: type[RecurrentHead]) -> None:
        """Every slot holds a large sum, whose number is one too small."""
        walker = walker_with_limit(kind, 200)
        (kernel,) = walker.kernels
        check(walker, inputs(walker.head, 2, 5))
        stale = (0x7149F2CA << 32) | (kernel.read_status()["sequence"] - 1)  # 1e30
        kernel.workspace.state_slots.fill_(stale)
        check(walker, inputs(walker.head, 2, 9, 1))

    @each_state
    @pytest.mark.parametrize("before", [1, 2, 3, 8])
    def test_the_sequence_wraps_without_harm(self, kind: type[RecurrentHead], before: int) -> None:
        """The device counts exchanges in 32 bits."""
        walker = walker_with_limit(kind, 200)
        (kernel,) = walker.kernels
        check(walker, inputs(walker.head, 2, 2))
        kernel.workspace.status[0] = -before
        for seed in range(6):
            check(walker, inputs(walker.head, 2, 1 + seed % 5, seed))
