"""bf16 weights on the device.

The order in which the hardware sums is its own. Where no sum is rounded (weights and latents that
are small multiples of a power of two) device and emulator are equal bit for bit: these tests are
the int8 ones. Elsewhere each token is what sums in any order allow, wherever that is one token.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import pytest
import torch

from strategies import KINDS, anchors, base_logits, hidden_states, recurrent_head
from walks import capturing, check, check_all, moved, run, run_sampled, twin, walker_of
from wts.dtypes import NumberType
from wts.hardware.gpu import gpu_spec
from wts.heads.base import Head
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.variants import streaming_plan
from wts.numerics.gumbel import Noise
from wts.walk.teacher_forced import teacher_forced
from wts.walk.walker import Walker

INF = math.inf
NAN = math.nan
TEMPERATURES = (1.0, 0.0, 0.6, 2.0, NAN, 0.8, -1.0, 1e-5)
STREAMING = [(30_011, 512, 24, batch) for batch in (1, 2, 4, 8, 16)] + [
    (60_001, 256, 24, batch) for batch in (1, 2, 4, 8, 11)
]


@lru_cache
def exact_head(
    vocab: int, rank: int = 64, draft_vocab: int | None = None, seed: int = 0
) -> MarkovHead:
    """Weights k / 16 and latents k / 4: sums of any order are exact in fp32."""
    head = MarkovHead.random(
        vocab=vocab, rank=rank, seed=vocab + seed, dtype=torch.bfloat16, draft_vocab=draft_vocab
    )
    generator = torch.Generator().manual_seed(vocab + seed)
    for matrix, most, unit in ((head.projection, 8, 16), (head.table, 4, 4)):
        matrix.copy_(torch.randint(-most, most + 1, matrix.shape, generator=generator) / unit)
    return head


def walker(head: Head, **others: Any) -> Walker:
    return walker_of("device bf16", head, **others)


def check_sampled(on_gpu: Walker, base: torch.Tensor, anchor: torch.Tensor) -> None:
    """Sampled and greedy rows on both: tokens, step logits, and the counter."""
    temperatures = [TEMPERATURES[row % len(TEMPERATURES)] for row in range(len(base))]
    found, wanted = (
        run_sampled(one, base, anchor, temperatures, key=77, offset=5, fill=3.0)
        for one in (on_gpu, twin(on_gpu))
    )
    assert torch.equal(found.tokens, wanted.tokens)
    assert torch.equal(found.logits.isnan(), wanted.logits.isnan())
    assert torch.equal(found.logits.nan_to_num(0.5), wanted.logits.nan_to_num(0.5))
    assert found.offset == wanted.offset == 6


class TestExactSums:
    @pytest.mark.parametrize("vocab", [1, 33, 1000, 16_001])
    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    def test_vocabularies(self, vocab: int, batch: int) -> None:
        check_all(walker(exact_head(vocab), batch=batch), requests=(1, batch), steps=(1, 2, 32))

    @pytest.mark.parametrize("rank", [64, 128, 256, 512])
    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    def test_ranks(self, rank: int, batch: int) -> None:
        check_all(walker(exact_head(5003, rank), batch=batch), requests=(1, batch), steps=(7,))

    @pytest.mark.parametrize("batch", [5, 16, 33, 64])
    def test_larger_batches(self, batch: int) -> None:
        check_all(walker(exact_head(3001), batch=batch), requests=(1, batch - 1, batch), steps=(6,))

    @pytest.mark.parametrize("base_type", ["fp16", "fp32"])
    @pytest.mark.parametrize("batch", [1, 8])
    def test_other_base_logits(self, base_type: NumberType, batch: int) -> None:
        on_gpu = walker(exact_head(3001), batch=batch, base_type=base_type)
        check_all(on_gpu, requests=(batch,), steps=(8,))

    @pytest.mark.parametrize("blocks", [1, 2, 36, 78, 100])
    @pytest.mark.parametrize("batch", [1, 4, 8])
    def test_grids(self, blocks: int, batch: int) -> None:
        check_all(
            walker(exact_head(1999), batch=batch, blocks=blocks), requests=(batch,), steps=(5,)
        )

    @pytest.mark.parametrize("draft_vocab", [1, 700, 2999])
    def test_draft_vocabularies(self, draft_vocab: int) -> None:
        head = exact_head(3001, 64, draft_vocab)
        for batch in (1, 4, 8):
            check_all(walker(head, batch=batch), requests=(batch,), steps=(9,))

    @pytest.mark.parametrize(("vocab", "rank", "blocks", "batch"), STREAMING)
    def test_what_streams(self, vocab: int, rank: int, blocks: int, batch: int) -> None:
        on_gpu = walker(exact_head(vocab, rank), batch=batch, blocks=blocks)
        assert on_gpu.plan.placement.streamed_fragments > 0
        check_all(on_gpu, requests=(1, batch), steps=(1, 7))

    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("vocab", [32_000, 151_936, 248_320])
    def test_published_sizes(self, vocab: int, batch: int) -> None:
        head = exact_head(vocab, 256)
        on_gpu = walker(head, batch=batch)
        base = base_logits(head, batch=batch, steps=16 if batch < 4 else 4, seed=3)
        check(on_gpu, base, anchors(head, batch, 3))

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    def test_nothing_resident(self, batch: int) -> None:
        head = exact_head(30_000, 256)
        plan = plan_residency(head, gpu_spec("LOCAL"), batch=batch, weights="bf16")
        on_gpu = Walker(head, streaming_plan(plan), backend="device")
        check(on_gpu, base_logits(head, batch=batch, steps=9, seed=1), anchors(head, batch, 1))

    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("sizes", [(1, 64, None), (3001, 128, None), (60_001, 256, 24)])
    def test_sampled(self, sizes: tuple[int, int, int | None], batch: int) -> None:
        head = exact_head(*sizes[:2])
        on_gpu = walker(head, batch=batch, blocks=sizes[2], sampled=True)
        for stride in (head.vocab, head.vocab + 3):
            base = base_logits(head, batch=batch, steps=5, seed=2, row_stride=stride)
            check_sampled(on_gpu, base, anchors(head, batch, 2))

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    def test_published_sizes_sampled(self, batch: int) -> None:
        head = exact_head(151_936, 256)
        on_gpu = walker(head, batch=batch, sampled=True)
        check_sampled(
            on_gpu, base_logits(head, batch=batch, steps=4, seed=2), anchors(head, batch, 2)
        )

    @pytest.mark.parametrize("batch", [1, 4, 8])
    @pytest.mark.parametrize("row_stride", [1000, 1001, 1003, 1008])
    @pytest.mark.parametrize("first", [0, 1])
    def test_strides_and_odd_starts(self, batch: int, row_stride: int, first: int) -> None:
        head = exact_head(1000 - first)
        base = base_logits(exact_head(1000), batch=batch, steps=6, seed=1, row_stride=row_stride)
        check(walker(head, batch=batch), base[:, :, first:], anchors(head, batch, 1))

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    def test_anchors_outside_are_clamped_and_counted(self, batch: int) -> None:
        head = exact_head(1000)
        plan = plan_residency(head, gpu_spec("LOCAL"), batch=batch, weights="bf16")
        on_gpu = Walker(head, plan, backend="device")
        anchor = torch.tensor([-1, 1 << 40] * batch)[:batch]
        check(on_gpu, base_logits(head, batch=batch, steps=3, seed=1), anchor)
        assert on_gpu.report().clamped_anchors == batch

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_rows_that_are_not_finite(self, batch: int, value: float) -> None:
        """NaN for them, and for none of the tiles that share their accumulators."""
        head = exact_head(3001, 64, None, 1)
        head = MarkovHead(table=head.table, projection=head.projection.clone())
        head.projection[[500, 2999], 7] = value
        base, anchor = base_logits(head, batch=batch, steps=3, seed=1), anchors(head, batch, 1)
        assert bool((check(walker(head, batch=batch), base, anchor) == 500).all())
        check_sampled(walker(head, batch=batch, sampled=True), base, anchor)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_latents_that_are_not_finite(self, batch: int, value: float) -> None:
        """Padding rows do not win with the NaN of 0 times infinity."""
        plain = exact_head(3001, 64, None, 2)
        head = MarkovHead(table=plain.table.clone(), projection=plain.projection.clone())
        head.table[:, 7] = value
        head.projection[:, 7] = 1.0
        on_gpu = walker(head, batch=batch)
        assert on_gpu.plan.shard.padded_vocab > on_gpu.plan.request.shape.vocab
        base, anchor = base_logits(head, batch=batch, steps=3, seed=1), anchors(head, batch, 1)
        check(on_gpu, base, anchor)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38])
    def test_base_logits_of_any_value(self, batch: int, value: float) -> None:
        head = exact_head(2000)
        base, anchor = base_logits(head, batch=batch, steps=4, seed=1), anchors(head, batch, 1)
        base[:, 1, [5, 1999]] = value
        base[-1, 2] = value
        check(walker(head, batch=batch), base, anchor)

    def test_graphs_serve_refreshed_weights(self) -> None:
        first, second = exact_head(3001), exact_head(3001, 64, None, 3)
        plan = plan_residency(first, gpu_spec("LOCAL"), batch=2, weights="bf16")
        on_gpu = Walker(first, plan, backend="device")
        base, anchor = base_logits(first, batch=2, steps=6, seed=1), anchors(first, 2, 1)
        there, anchor_there = moved(base, on_gpu), moved(anchor, on_gpu)
        on_gpu(there, anchor_there)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            tokens = on_gpu(there, anchor_there)
        for head in (first, second):
            on_gpu.refresh(head)
            graph.replay()
            on_gpu.check()
            emulated = Walker(head, on_gpu.plan, backend="emulator")(base, anchor)
            assert torch.equal(tokens.cpu(), emulated)


class TestAnySums:
    """Heads whose sums are rounded, judged by `teacher_forced`."""

    def check(
        self, on_gpu: Walker, batch: int, steps: int, *, seed: int = 1, least: float = 0.8
    ) -> None:
        head: Head = on_gpu.head
        base, anchor = (
            base_logits(head, batch=batch, steps=steps, seed=seed),
            anchors(head, batch, 2),
        )
        base = base / 4
        hidden = None
        if head.hidden_size is not None:
            hidden = hidden_states(head, batch=batch, steps=steps, seed=seed)
        temperatures = logits = None
        if on_gpu.plan.request.sampled:
            temperatures = [TEMPERATURES[row % len(TEMPERATURES)] for row in range(batch)]
            drawn = run_sampled(on_gpu, base, anchor, temperatures, key=7, hidden=hidden)
            tokens, logits = drawn.tokens, drawn.logits
        else:
            tokens = run(on_gpu, base, anchor, hidden)
        judged = teacher_forced(
            on_gpu.twin(),
            base,
            anchor,
            tokens,
            hidden_term=on_gpu.hidden_term(),
            temperatures=None if temperatures is None else torch.tensor(temperatures),
            noise_key=7,
            logits=logits,
        )
        assert not judged.wrong.any(), judged.wrong.nonzero().tolist()
        assert judged.strayed == 0
        assert judged.decided.float().mean() > least, "what decides little tests little"

    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("vocab", [32_000, 151_936])
    def test_published_heads(self, vocab: int, batch: int, sampled: bool) -> None:
        head = random_head(vocab)
        self.check(walker(head, batch=batch, sampled=sampled), batch, 16 if batch == 1 else 4)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("sampled", [False, True])
    def test_heads_that_read_hidden_states(self, kind: Any, batch: int, sampled: bool) -> None:
        head = recurrent_of(kind)
        self.check(walker(head, batch=batch, sampled=sampled), batch, 6, least=0.7)


@lru_cache
def random_head(vocab: int) -> MarkovHead:
    return MarkovHead.random(vocab=vocab, rank=256, seed=vocab, dtype=torch.bfloat16)


@lru_cache
def recurrent_of(kind: Any) -> Any:
    sizes: dict[str, Any] = {"vocab": 30_001, "rank": 256, "hidden_size": 200}
    return recurrent_head(
        kind, **sizes, **({"state_size": 512} if kind.__name__ == "DominoHead" else {})
    )


def test_the_noise_counter_goes_on() -> None:
    """Two sampled walks in one graph draw different noise, as with int8 weights."""
    head = exact_head(3001)
    on_gpu = walker(head, batch=1, sampled=True)
    base, anchor = base_logits(head, batch=1, steps=8, seed=1), anchors(head, 1, 1)
    offset = torch.zeros(1, dtype=torch.int64, device="cuda")
    temperatures = torch.full((1,), 50.0, device="cuda")
    noise = Noise(key=7, offset=offset)
    there = [moved(tensor, on_gpu) for tensor in (base, anchor)]
    first, second = (on_gpu(*there, temperatures=temperatures, noise=noise) for _ in range(2))
    assert int(offset) == 2
    assert not torch.equal(first, second)
