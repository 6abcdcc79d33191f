"""Device tokens equal the emulator's bit for bit: shapes, layouts, corners, batches, grids."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bounds import decided, logit_bound
from strategies import DTYPES, anchors, base_logits, silent_head
from walks import check, check_all, gpu_of, moved, run, twin, walker_of
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.errors import DeviceError, InputError
from wts.hardware.gpu import gpu_spec
from wts.heads.markov import MarkovHead
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.numerics.step_logits import step_logits
from wts.walk.walker import Walker

INF = math.inf
NAN = math.nan
BF16 = torch.bfloat16
# The walkers are kept, so that drawing inputs costs no compilation.
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


@lru_cache
def tied_head(vocab: int, rank: int = 64) -> MarkovHead:
    """Weights of three values: logits tie within tiles, across warps and across blocks."""
    generator = torch.Generator().manual_seed(vocab)
    table, projection = (
        torch.randint(-1, 2, (vocab, rank), generator=generator).to(BF16) for _ in range(2)
    )
    return MarkovHead(table=table, projection=projection)


class TestShapes:
    @pytest.mark.parametrize(
        ("vocab", "batch"),
        [
            *((vocab, batch) for vocab in (1, 7, 32, 33, 1000, 16_001) for batch in (1, 4)),
            (127, 1),
            (33, 2),
            (4097, 2),
        ],
    )
    def test_vocabularies(self, vocab: int, batch: int) -> None:
        check_all(
            walker_of("device", random_head(vocab), batch=batch),
            requests=(1, batch),
            steps=(1, 2, 32),
        )

    @pytest.mark.parametrize("rank", [64, 128, 256, 512])
    @pytest.mark.parametrize("batch", [1, 4])
    def test_ranks(self, rank: int, batch: int) -> None:
        check_all(
            walker_of("device", random_head(5003, rank), batch=batch),
            requests=(1, batch),
            steps=(7,),
        )

    @pytest.mark.parametrize("base_type", NUMBER_TYPES)
    @pytest.mark.parametrize("table_type", NUMBER_TYPES)
    def test_number_types(self, base_type: NumberType, table_type: NumberType) -> None:
        head = random_head(3001, 64, table_type)
        walker = walker_of("device", head, batch=4, base_type=base_type)
        check_all(walker, requests=(1, 3, 4), steps=(1, 8))

    @pytest.mark.parametrize("batch", [5, 8, 16, 33, 64])
    def test_larger_batches(self, batch: int) -> None:
        walker = walker_of("device", random_head(3001), batch=batch)
        check_all(walker, requests=(1, 2, batch - 1, batch), steps=(1, 6))

    @pytest.mark.parametrize("blocks", [1, 2, 36, 78, 100])
    def test_grids(self, blocks: int) -> None:
        """Few blocks give each warp many tiles: several accumulators, phases and places."""
        for batch in (1, 4):
            walker = walker_of("device", tied_head(2999), batch=batch, blocks=blocks)
            assert walker.plan.shard.num_blocks <= blocks
            check_all(walker, requests=(batch,), steps=(5,))

    @pytest.mark.parametrize("draft_vocab", [1, 700, 2999])
    def test_draft_vocabularies(self, draft_vocab: int) -> None:
        head = random_head(3001, 64, "bf16", draft_vocab)
        check_all(walker_of("device", head), requests=(1, 4), steps=(9,))

    def test_a_longer_table_and_padded_rows(self) -> None:
        plain = random_head(2000)
        head = MarkovHead(
            table=plain.table, projection=plain.projection[:1203].contiguous(), logical_vocab=1201
        )
        walker = walker_of("device", head)
        base = base_logits(random_head(2000), batch=4, steps=6, seed=1)[:, :, :1203]
        base[:, :, 1201:] = 100.0
        tokens = check(walker, base, torch.tensor([1999, 0, 1202, 5]))
        assert int(tokens.max()) < 1201

    @pytest.mark.parametrize(("batch", "steps"), [(1, 16), (4, 7)])
    def test_a_published_head(self, batch: int, steps: int) -> None:
        head = random_head(151_936, 256)
        walker = walker_of("device", head, batch=batch)
        base = base_logits(head, batch=batch, steps=steps, seed=3) / 4
        tokens = check(walker, base, anchors(head, batch, 3))
        previous, num_sure = anchors(head, batch, 3), 0
        device_head = MarkovHead(table=head.table.cuda(), projection=head.projection.cuda())
        for step in range(steps):
            latent = device_head.table[previous.cuda()]
            on_gpu = base[:, step].cuda()
            logits = step_logits(device_head, on_gpu, latent)
            sure = decided(logits, logit_bound(device_head, on_gpu, latent)).cpu()
            assert torch.equal(tokens[sure, step], logits.argmax(1).cpu()[sure])
            num_sure += int(sure.sum())
            previous = tokens[:, step]
        assert num_sure > batch * steps / 2, "a bound that decides little tests little"

    def test_a_head_that_lives_on_the_gpu(self) -> None:
        head = random_head(1000)
        there = MarkovHead(table=head.table.cuda(), projection=head.projection.cuda())
        base, anchor = base_logits(head, batch=2, steps=5, seed=1), anchors(head, 2, 1)
        tokens = run(walker_of("device", there, batch=2), base, anchor)
        assert torch.equal(tokens, run(walker_of("emulator", head, batch=2), base, anchor))

    @pytest.mark.parametrize(
        ("vocab", "rank", "blocks", "batch"),
        [
            (30_011, 512, 16, 1),
            (30_011, 512, 16, 2),
            (30_011, 512, 16, 4),
            (40_001, 256, 16, 1),
            (40_001, 256, 16, 9),
        ],
    )
    def test_a_part_that_streams(self, vocab: int, rank: int, blocks: int, batch: int) -> None:
        walker = walker_of("device", random_head(vocab, rank), batch=batch, blocks=blocks)
        assert walker.plan.placement.streamed_fragments > 0
        check_all(walker, requests=(1, batch), steps=(1, 5))

    def test_a_published_head_that_streams_a_part(self) -> None:
        walker = walker_of("device", random_head(248_320, 256), batch=2)
        assert walker.plan.placement.resident_share < 1
        check_all(walker, requests=(2,), steps=(4,))


class TestRows:
    @pytest.mark.parametrize("largest", [1, 2, 4, 5, 16, 64])
    def test_a_request_is_the_same_in_every_batch_and_slot(self, largest: int) -> None:
        head = tied_head(2049)
        base = base_logits(head, batch=1, steps=7, seed=5, tied=True)
        anchor = torch.tensor([77])
        wanted = run(walker_of("emulator", head, batch=1), base, anchor)
        walker = walker_of("device", head, batch=largest)
        for batch in sorted({1, (largest + 1) // 2, largest}):
            noise = base_logits(head, batch=batch, steps=7, seed=6, tied=True)
            others = anchors(head, batch, 6)
            for slot in sorted({0, batch // 2, batch - 1}):
                noise_slot, others_slot = noise.clone(), others.clone()
                noise_slot[slot], others_slot[slot] = base[0], anchor[0]
                tokens = run(walker, noise_slot, others_slot)
                assert torch.equal(tokens[slot], wanted[0])

    @pytest.mark.parametrize("batch", [1, 2, 4])
    def test_what_absent_requests_left_behind_does_not_matter(self, batch: int) -> None:
        walker = walker_of("device", tied_head(2049), batch=4)
        head = walker.head
        full = torch.full((4, 3, head.vocab), INF, dtype=BF16)
        full[:, :, 5] = NAN
        run(walker, full, anchors(head, 4, 1))
        base = base_logits(head, batch=batch, steps=3, seed=2, tied=True)
        check(walker, base, anchors(head, batch, 2))


class TestLayouts:
    @some
    @given(data=st.data(), base_type=st.sampled_from(NUMBER_TYPES))
    def test_any_strides_and_any_first_element(
        self, data: st.DataObject, base_type: NumberType
    ) -> None:
        """What lies around the logits is NaN: it would win if it were read."""
        head = tied_head(1003)
        batch, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
        stride = head.vocab + data.draw(st.integers(0, 20))
        offset = data.draw(st.integers(0, 17))
        steps_first = data.draw(st.booleans())
        storage = torch.full((offset + batch * steps * stride + 3,), NAN, dtype=DTYPES[base_type])
        strides = (stride, batch * stride, 1) if steps_first else (steps * stride, stride, 1)
        base = storage.as_strided((batch, steps, head.vocab), strides, offset)
        seed = data.draw(st.integers(0, 1 << 16))
        base.copy_(base_logits(head, batch=batch, steps=steps, seed=seed, tied=True))
        anchor_stride = data.draw(st.integers(1, 3))
        anchor = torch.full((batch * anchor_stride + 1,), -5).as_strided(
            (batch,), (anchor_stride,), 1
        )
        anchor.copy_(anchors(head, batch, seed))
        walker = walker_of("device", head, batch=4, base_type=base_type)
        assert moved(base, walker).stride() == base.stride()
        check(walker, base, anchor)

    def test_one_request_for_all_rows(self) -> None:
        head = tied_head(1003)
        walker = walker_of("device", head, batch=4)
        base = base_logits(head, batch=1, steps=5, seed=1, tied=True).expand(4, -1, -1)
        assert base.stride(0) == 0
        tokens = check(walker, base, torch.tensor([9]).expand(4))
        assert len(tokens.unique(dim=0)) == 1


SPECIAL = [0.0, -0.0, NAN, -NAN, INF, -INF, 1e-40, -1e-40, 1e-45, 3e38, -3e38, 65504.0, 65520.0]
SPECIAL += [1.0, 1.00390625, 1.0078125, 6e-8, 3e-8]


class TestCorners:
    @some
    @given(
        base_type=st.sampled_from(NUMBER_TYPES),
        chosen=st.sets(st.sampled_from(range(len(SPECIAL))), min_size=1, max_size=4),
        seed=st.integers(0, 1 << 16),
        silent=st.booleans(),
    )
    def test_special_numbers_in_the_base_logits(
        self, base_type: NumberType, chosen: set[int], seed: int, silent: bool
    ) -> None:
        head = special_head("silent" if silent else "plain")
        values = torch.tensor([SPECIAL[index] for index in sorted(chosen)])
        generator = torch.Generator().manual_seed(seed)
        picks = torch.randint(0, len(values), (3, 6, head.vocab), generator=generator)
        base = values[picks].to(DTYPES[base_type])
        walker = walker_of("device", head, base_type=base_type)
        check(walker, base, anchors(head, 3, seed))

    @pytest.mark.parametrize("kind", ["tiny", "huge", "nan", "inf", "mixed"])
    @pytest.mark.parametrize("base_type", ["bf16", "fp32"])
    def test_special_numbers_in_the_weights(self, kind: str, base_type: NumberType) -> None:
        """Scales at their floor, subnormal and overflowing products, rows that are not finite."""
        head = special_head(kind)
        walker = walker_of("device", head, base_type=base_type)
        for size in (0.0, 1e-40, 1.0, 1e30):
            base = base_logits(head, batch=4, steps=6, seed=3, base_type=base_type) * size
            check(walker, base, anchors(head, 4, 3))

    @pytest.mark.parametrize("vocab", [17, 2049])
    @pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0, -0.0])
    def test_rows_of_one_value(self, vocab: int, value: float) -> None:
        walker = walker_of("device", random_head(vocab), batch=2)
        base = base_logits(walker.head, batch=2, steps=4, seed=1)
        base[1, 2] = value
        check(walker, base, torch.tensor([3, 4]))

    def test_a_walk_that_ties_everywhere(self) -> None:
        walker = walker_of("device", silent_head(20_001), batch=4)
        base = torch.zeros(4, 8, 20_001, dtype=BF16)
        assert not check(walker, base, torch.tensor([0, 1, 2, 3])).any()


@lru_cache
def special_head(kind: str) -> MarkovHead:
    plain = random_head(1003)
    table, projection = plain.table.clone(), plain.projection.clone()
    generator = torch.Generator().manual_seed(1)
    rows = torch.randperm(1003, generator=generator)[:200]
    if kind == "silent":
        projection.zero_()
    elif kind == "tiny":
        table *= 1e-36
        projection[rows] *= 1e-37
    elif kind == "huge":
        table *= 1e18
        projection[rows] *= 1e19
    elif kind == "nan":
        table[rows[:50], 3] = NAN
        projection[rows[50]] = NAN
    elif kind == "inf":
        table[rows[:50], 3] = -INF
        projection[rows[50], 7] = INF
    elif kind == "mixed":
        projection[rows[:50]] = 0.0
        projection[rows[50:100], 0] *= 1000.0
        table[rows[100:]] = 0.0
    return MarkovHead(table=table, projection=projection)


class TestPacking:
    @pytest.mark.parametrize("kind", ["plain", "tiny", "huge", "nan", "inf", "mixed"])
    def test_the_gpu_packs_the_same_bytes(self, kind: str) -> None:
        head = special_head(kind)
        plan = plan_residency(head, gpu_of("device"))
        there = pack_head(head, plan, torch.device("cuda"))
        here = pack_head(head, plan, torch.device("cpu"))
        for name in ("tiles", "row_scale", "table"):
            one, other = getattr(there, name).cpu(), getattr(here, name)
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name

    @pytest.mark.parametrize("draft_vocab", [None, 700])
    def test_refresh_is_in_place(self, draft_vocab: int | None) -> None:
        head = random_head(1003, 64, "bf16", draft_vocab)
        walker = Walker(head, plan_residency(head, gpu_of("device")), backend="device")
        base, anchor = base_logits(head, batch=1, steps=8, seed=1), torch.tensor([7])
        before = torch.cuda.memory_allocated()
        seen = []
        for seed in (1, 2, 3):
            other = MarkovHead.random(vocab=1003, rank=64, seed=seed, draft_vocab=draft_vocab)
            walker.refresh(other)
            emulator = Walker(other, walker.plan, backend="emulator")
            seen.append(run(walker, base, anchor))
            assert torch.equal(seen[-1], emulator(base, anchor))
        assert torch.cuda.memory_allocated() == before
        assert not torch.equal(seen[0], seen[1])

    def test_says_what_it_holds(self) -> None:
        head = random_head(1003)
        before = torch.cuda.memory_allocated()
        walker = Walker(head, plan_residency(head, gpu_of("device")), backend="device")
        held = torch.cuda.memory_allocated() - before
        assert walker.memory_bytes <= held <= walker.memory_bytes + 16 * 512


class TestCalls:
    def test_a_call_allocates_nothing_and_synchronises_nothing(self) -> None:
        head = random_head(1003)
        walker = walker_of("device", head, batch=2)
        base = base_logits(head, batch=2, steps=4, seed=1).cuda()
        anchor = torch.tensor([1, 2]).cuda()
        out = torch.empty(2, 4, dtype=torch.int64, device="cuda")
        walker(base, anchor, out=out)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error")
        try:
            walker(base, anchor, out=out)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        assert torch.equal(out.cpu(), twin(walker)(base.cpu(), anchor.cpu()))

    def test_runs_on_the_current_stream(self) -> None:
        """The inputs are written behind a long kernel on that stream, and read after it."""
        head = tied_head(1003)
        walker = walker_of("device", head, batch=2)
        base = base_logits(head, batch=2, steps=4, seed=1, tied=True)
        on_gpu, anchor = torch.zeros_like(base, device="cuda"), torch.tensor([1, 2]).cuda()
        there = base.cuda()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            on_gpu.copy_(there)
            tokens = walker(on_gpu, anchor)
            copy = tokens.clone()
        stream.synchronize()
        assert torch.equal(copy.cpu(), twin(walker)(base, anchor.cpu()))

    def test_a_call_from_another_thread(self) -> None:
        """A new thread has no current context of the driver yet."""
        head = tied_head(1003)
        walker = walker_of("device", head, batch=2)
        base, anchor = base_logits(head, batch=2, steps=4, seed=1, tied=True), torch.tensor([1, 2])
        there, anchor_there = base.cuda(), anchor.cuda()
        out = torch.empty(2, 4, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(walker, there, anchor_there, out=out).result()
        torch.cuda.synchronize()
        assert torch.equal(out.cpu(), twin(walker)(base, anchor))

    def test_two_walkers_on_two_streams(self) -> None:
        head = tied_head(4999)
        plan = plan_residency(head, gpu_of("device", 40), batch=2, steps=8)
        walkers = [Walker(head, plan, backend="device") for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in range(2)]
        bases = [base_logits(head, batch=2, steps=8, seed=s, tied=True) for s in (1, 2)]
        anchor = torch.tensor([1, 2])
        there = [base.cuda() for base in bases]
        anchor_there = anchor.cuda()
        torch.cuda.synchronize()
        results: list[list[torch.Tensor]] = [[], []]
        for _ in range(20):
            for index in (0, 1):
                with torch.cuda.stream(streams[index]):
                    results[index].append(walkers[index](there[index], anchor_there))
        for walker in walkers:
            walker.check()
        for index in (0, 1):
            wanted = twin(walkers[index])(bases[index], anchor)
            assert all(torch.equal(tokens.cpu(), wanted) for tokens in results[index])

    def test_auto_takes_the_device(self) -> None:
        head = random_head(33)
        assert Walker(head, plan_residency(head, "LOCAL")).backend == "device"


class TestRefusals:
    def test_tensors_that_are_not_on_the_gpu(self) -> None:
        walker = walker_of("device", random_head(33))
        base, anchor = torch.zeros(1, 2, 33, dtype=BF16), torch.tensor([0])
        out = torch.zeros(1, 2, dtype=torch.int64)
        for name, arguments in (
            ("base_logits", (base, anchor.cuda(), None)),
            ("anchor", (base.cuda(), anchor, None)),
            ("out", (base.cuda(), anchor.cuda(), out)),
        ):
            with pytest.raises(InputError, match=rf"^{name}: wanted .*cuda:0.*cpu"):
                walker(arguments[0], arguments[1], out=arguments[2])

    def test_a_plan_of_more_blocks_than_can_be_co_resident(self) -> None:
        """Refused before anything waits for a block that cannot come."""
        local = gpu_spec("LOCAL")
        larger = replace(local, num_sms=local.num_sms + 8, max_blocks=local.num_sms + 8)
        head = silent_head(larger.num_sms * 128)
        plan = plan_residency(head, larger)
        assert plan.shard.num_blocks > local.num_sms
        with pytest.raises(DeviceError, match=rf"at most {local.num_sms} co-resident blocks"):
            Walker(head, plan, backend="device")

    def test_a_plan_for_another_architecture(self) -> None:
        head = random_head(33)
        with pytest.raises(DeviceError, match="sm_100a"):
            Walker(head, plan_residency(head, "b200"), backend="device")
