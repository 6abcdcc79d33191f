"""Sampled walks: the device's tokens, exported logits and offsets are the emulator's."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import DTYPES, anchors, base_logits, silent_head
from test_cases import CHI_SQUARE_LIMIT, chi_square
from walks import capturing, moved, run_sampled, twin, walker_of
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.heads.markov import MarkovHead
from wts.numerics.gumbel import Noise
from wts.walk.walker import Walker

INF = math.inf
NAN = math.nan
BF16 = torch.bfloat16
MIXED = (0.0, 1.0, 0.7, 3.0, -1.0, 0.05, NAN, 20.0)
some = settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@lru_cache
def random_head(
    vocab: int, rank: int = 64, table_type: NumberType = "bf16", draft_vocab: int | None = None
) -> MarkovHead:
    return MarkovHead.random(
        vocab=vocab, rank=rank, seed=vocab, dtype=DTYPES[table_type], draft_vocab=draft_vocab
    )


def mixed(batch: int) -> list[float]:
    return [MIXED[row % len(MIXED)] for row in range(batch)]


def check(
    walker: Walker,
    base: torch.Tensor,
    anchor: torch.Tensor,
    temperatures: list[float],
    *,
    key: int = 7,
    offset: int = 0,
) -> torch.Tensor:
    """Draw on both; gives the tokens."""
    device, emulator = (
        run_sampled(each, base, anchor, temperatures, key=key, offset=offset, fill=5.0)
        for each in (walker, twin(walker))
    )
    assert torch.equal(device.tokens, emulator.tokens)
    number = {1: torch.int8, 2: torch.int16, 4: torch.int32}[device.logits.element_size()]
    one, other = device.logits, emulator.logits
    nan = one.isnan() & other.isnan()  # whose bits nobody promises
    assert torch.equal(one.view(number)[~nan], other.view(number)[~nan])
    assert device.offset == emulator.offset == offset + 1
    return device.tokens


def check_all(walker: Walker, *, requests: tuple[int, ...], steps: tuple[int, ...]) -> None:
    for batch in requests:
        for count in steps:
            for tied in (False, True):
                seed = 100 * batch + count
                base = base_logits(
                    walker.head,
                    batch=batch,
                    steps=count,
                    seed=seed,
                    base_type=walker.plan.request.base_type,
                    tied=tied,
                )
                anchor = anchors(walker.head, batch, seed)
                for temperatures in (mixed(batch), [1.0] * batch, [0.0] * batch):
                    check(walker, base, anchor, temperatures, offset=seed)


class TestShapes:
    @pytest.mark.parametrize(
        ("vocab", "batch"),
        [(1, 1), (3, 4), (17, 1), (1001, 1), (1001, 2), (1001, 4), (16_001, 1), (16_001, 4)],
    )
    def test_vocabularies(self, vocab: int, batch: int) -> None:
        walker = walker_of("device", random_head(vocab), batch=batch, sampled=True)
        check_all(walker, requests=(batch,), steps=(1, 8))

    @pytest.mark.parametrize("batch", [3, 5, 8, 16, 64])
    def test_batches(self, batch: int) -> None:
        walker = walker_of("device", random_head(3001), batch=batch, sampled=True)
        check_all(walker, requests=(1, batch - 1, batch), steps=(5,))

    @pytest.mark.parametrize("rank", [128, 256, 512])
    def test_ranks(self, rank: int) -> None:
        for batch in (1, 4):
            walker = walker_of("device", random_head(5003, rank), batch=batch, sampled=True)
            check_all(walker, requests=(batch,), steps=(4,))

    @pytest.mark.parametrize("base_type", NUMBER_TYPES)
    @pytest.mark.parametrize("table_type", NUMBER_TYPES)
    def test_number_types(self, base_type: NumberType, table_type: NumberType) -> None:
        head = random_head(3001, 64, table_type)
        walker = walker_of("device", head, base_type=base_type, sampled=True)
        check_all(walker, requests=(4,), steps=(5,))

    @pytest.mark.parametrize("blocks", [1, 7, 36, 100])
    def test_grids(self, blocks: int) -> None:
        for batch in (1, 4):
            head = random_head(1999)
            walker = walker_of("device", head, batch=batch, blocks=blocks, sampled=True)
            check_all(walker, requests=(batch,), steps=(4,))

    def test_a_part_that_streams(self) -> None:
        for batch in (1, 2, 8):
            head = random_head(30_011, 512)
            walker = walker_of("device", head, batch=batch, blocks=16, sampled=True)
            assert walker.plan.placement.streamed_fragments > 0
            check_all(walker, requests=(batch,), steps=(3,))

    @pytest.mark.parametrize("draft_vocab", [1, 700])
    def test_draft_vocabularies(self, draft_vocab: int) -> None:
        head = random_head(3001, 64, "bf16", draft_vocab)
        check_all(walker_of("device", head, sampled=True), requests=(4,), steps=(6,))

    @pytest.mark.parametrize("batch", [1, 4])
    def test_a_published_head(self, batch: int) -> None:
        head = random_head(151_936, 256)
        walker = walker_of("device", head, batch=batch, sampled=True)
        base = base_logits(head, batch=batch, steps=4, seed=3)
        check(walker, base, anchors(head, batch, 3), [1.0, 0.0, 0.6, 2.0][:batch])


class TestTemperatures:
    @pytest.mark.parametrize("base_type", NUMBER_TYPES)
    @pytest.mark.parametrize(
        "temperature", [1e-45, 1e-38, 1e-6, 1e-5, 1.0001e-5, 1e-3, 0.3, 1.0, 40.0, 1e6, 1e20, 1e30]
    )
    def test_of_any_size(self, temperature: float, base_type: NumberType) -> None:
        """Scores from all noise to no noise; a bound that skips a row must hold everywhere."""
        walker = walker_of("device", random_head(2049), base_type=base_type, sampled=True)
        for size in (1.0, 30.0):
            base = base_logits(walker.head, batch=4, steps=6, seed=1, base_type=base_type) * size
            check(walker, base, torch.tensor([1, 2, 3, 4]), [temperature] * 4, offset=77)

    @pytest.mark.parametrize("temperature", [1e37, 1e38, 2e38, 3e38])
    @pytest.mark.parametrize("base_type", ["bf16", "fp32"])
    def test_near_the_largest_number(self, temperature: float, base_type: NumberType) -> None:
        """Logits that large, too, so that their quotients matter."""
        walker = walker_of("device", silent_head(2049), base_type=base_type, sampled=True)
        base = base_logits(walker.head, batch=4, steps=6, seed=1, base_type=base_type)
        base = (base.float().clamp(-3, 3) * 1e38).to(base.dtype)
        check(walker, base, torch.tensor([1, 2, 3, 4]), [temperature] * 4)

    def test_infinite_over_finite_logits(self) -> None:
        walker = walker_of("device", random_head(2049), sampled=True)
        base = base_logits(walker.head, batch=2, steps=6, seed=1)
        check(walker, base, torch.tensor([1, 2]), [INF, 1.0])

    @some
    @given(
        seed=st.integers(0, 1 << 16),
        key=st.integers(0, (1 << 63) - 1),
        offset=st.integers(0, (1 << 62)),
        steps=st.integers(1, 32),
        temperatures=st.lists(
            st.one_of(st.sampled_from(MIXED), st.floats(0.0625, 16.0, width=32)),
            min_size=1,
            max_size=4,
        ),
    )
    def test_any_key_offset_and_mix(
        self, seed: int, key: int, offset: int, steps: int, temperatures: list[float]
    ) -> None:
        walker = walker_of("device", random_head(1001), sampled=True)
        base = base_logits(walker.head, batch=len(temperatures), steps=steps, seed=seed)
        anchor = anchors(walker.head, len(temperatures), seed)
        check(walker, base, anchor, temperatures, key=key, offset=offset)


SPECIAL = [0.0, -0.0, NAN, INF, -INF, 1e-40, 3e38, -3e38, 65504.0, 1.0, 1.0078125]


class TestCorners:
    @some
    @given(
        base_type=st.sampled_from(NUMBER_TYPES),
        chosen=st.sets(st.sampled_from(range(len(SPECIAL))), min_size=1, max_size=4),
        seed=st.integers(0, 1 << 16),
        temperatures=st.lists(
            st.sampled_from([1e-5, 0.5, 1.0, 30.0, 0.0, INF]), min_size=3, max_size=3
        ),
    )
    def test_special_numbers_in_the_base_logits(
        self, base_type: NumberType, chosen: set[int], seed: int, temperatures: list[float]
    ) -> None:
        walker = walker_of("device", random_head(1001), base_type=base_type, sampled=True)
        values = torch.tensor([SPECIAL[index] for index in sorted(chosen)])
        generator = torch.Generator().manual_seed(seed)
        picks = torch.randint(0, len(values), (3, 4, 1001), generator=generator)
        base = values[picks].to(DTYPES[base_type])
        check(walker, base, anchors(walker.head, 3, seed), temperatures, offset=seed)

    @some
    @given(
        data=st.data(),
        base_type=st.sampled_from(NUMBER_TYPES),
    )
    def test_any_strides_of_base_and_exported_logits(
        self, data: st.DataObject, base_type: NumberType
    ) -> None:
        head = random_head(1001)
        walker = walker_of("device", head, base_type=base_type, sampled=True)
        batch, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
        views = []
        for dtype in (DTYPES[base_type], DTYPES[walker.plan.request.step_type]):
            stride = 1001 + data.draw(st.integers(0, 20))
            offset = data.draw(st.integers(0, 17))
            storage = torch.full((offset + batch * steps * stride + 3,), NAN, dtype=dtype)
            views.append(
                storage.as_strided((batch, steps, 1001), (steps * stride, stride, 1), offset)
            )
        base, logits = views
        seed = data.draw(st.integers(0, 1 << 16))
        base.copy_(base_logits(head, batch=batch, steps=steps, seed=seed))
        there = moved(logits, walker)
        num_elements = logits.untyped_storage().nbytes() // logits.element_size()
        flat = there.as_strided((num_elements,), (1,), 0)
        anchor = anchors(head, batch, seed)
        wanted = run_sampled(twin(walker), base.contiguous(), anchor, mixed(batch), fill=NAN)
        tokens = walker(
            moved(base, walker),
            moved(anchor, walker),
            temperatures=moved(torch.tensor(mixed(batch)), walker),
            noise=Noise(key=7, offset=moved(torch.tensor([0]), walker)),
            logits_out=there,
        )
        walker.check()
        assert torch.equal(tokens.cpu(), wanted.tokens)
        assert torch.equal(there.cpu().isnan(), wanted.logits.isnan())
        assert torch.equal(there.cpu().nan_to_num(0.5), wanted.logits.nan_to_num(0.5))
        # Nothing around the logits was written.
        written = int((~flat.isnan()).sum())
        assert written == int((~wanted.logits.isnan()).sum())

    def test_without_exported_logits(self) -> None:
        head = random_head(1001)
        walker = walker_of("device", head, batch=2, sampled=True)
        base, anchor = base_logits(head, batch=2, steps=5, seed=1), torch.tensor([1, 2])
        wanted = run_sampled(twin(walker), base, anchor, [1.0, 0.5])
        tokens = walker(
            base.cuda(),
            anchor.cuda(),
            temperatures=torch.tensor([1.0, 0.5]).cuda(),
            noise=Noise(key=7, offset=torch.tensor([0]).cuda()),
        )
        assert torch.equal(tokens.cpu(), wanted.tokens)

    def test_the_least_likely_word(self) -> None:
        """This word rounds to u = 1; see test_cases.py."""
        walker = walker_of("device", silent_head(40), batch=1, sampled=True)
        base = torch.full((1, 1, 40), -INF, dtype=BF16)
        for value in (1.0, INF):
            base[0, 0, 20] = value
            tokens = check(walker, base, torch.tensor([0]), [1.0], key=12345, offset=1_305_610)
            assert tokens.tolist() == [[20]]
        check(walker, torch.zeros_like(base), torch.tensor([0]), [1.0], key=12345, offset=1_305_610)


class TestGraphs:
    @staticmethod
    def captured(
        walker: Walker, base: torch.Tensor, temperatures: torch.Tensor, noise: Noise
    ) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        batch, steps, _ = base.shape
        anchor = torch.zeros(batch, dtype=torch.int64, device="cuda")
        tokens = torch.zeros(batch, steps, dtype=torch.int64, device="cuda")
        logits = torch.zeros_like(base)

        def call() -> None:
            walker(
                base,
                anchor,
                temperatures=temperatures,
                noise=noise,
                logits_out=logits,
                out=tokens,
            )

        call()
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            call()
        return graph, tokens, logits

    def test_each_replay_draws_new_noise(self) -> None:
        walker = walker_of("device", silent_head(16), batch=1, sampled=True)
        base = torch.zeros(1, 8, 16, dtype=BF16, device="cuda")
        noise = Noise(key=3, offset=torch.zeros(1, dtype=torch.int64, device="cuda"))
        temperatures = torch.tensor([0.7]).cuda()  # every replay reads it: it must stay alive
        graph, tokens, _ = self.captured(walker, base, temperatures, noise)
        noise.offset.zero_()
        counts = torch.zeros(16, dtype=torch.int64)
        seen = set()
        for _ in range(1000):
            graph.replay()
            counts += torch.bincount(tokens.flatten(), minlength=16).cpu()
            seen.add(tuple(tokens.flatten().tolist()))
        assert noise.offset.tolist() == [1000]
        assert len(seen) > 990
        assert chi_square(counts, torch.full((16,), 1 / 16)) < CHI_SQUARE_LIMIT[15]
        walker.check()

    @pytest.mark.parametrize("beside", [False, True])
    def test_each_replay_reads_temperatures_base_and_offset_anew(self, beside: bool) -> None:
        head = random_head(1001)
        walker = walker_of("device", head, batch=4, sampled=True)
        if beside:  # two kernels in the graph, one of which leaves
            greedy_plan = walker_of("device", head, batch=4).plan
            walker = Walker(head, walker.plan, backend="device", greedy_plan=greedy_plan)
        base = torch.zeros(4, 5, 1001, dtype=BF16, device="cuda")
        temperatures = torch.zeros(4, device="cuda")
        noise = Noise(key=7, offset=torch.zeros(1, dtype=torch.int64, device="cuda"))
        graph, tokens, logits = self.captured(walker, base, temperatures, noise)
        for seed in range(10):
            new_base = base_logits(head, batch=4, steps=5, seed=seed)
            new_temperatures = [MIXED[(seed + row) % len(MIXED)] for row in range(4)]
            if seed % 3 == 0:
                new_temperatures = [0.0, -1.0, math.nan, 0.0]
            base.copy_(new_base)
            temperatures.copy_(torch.tensor(new_temperatures))
            noise.offset.fill_(31 * seed)
            logits.zero_()
            graph.replay()
            wanted = run_sampled(
                twin(walker),
                new_base,
                torch.zeros(4).long(),
                new_temperatures,
                offset=31 * seed,
            )
            assert torch.equal(tokens.cpu(), wanted.tokens)
            assert torch.equal(logits.cpu(), wanted.logits)
            assert noise.offset.tolist() == [31 * seed + 1]
        walker.check()
