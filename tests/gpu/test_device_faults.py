"""What goes wrong ends in an error within the limit, and the next walk is right again."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

from strategies import anchors, base_logits, silent_head
from walks import capturing, gpu_of, run, twin, without_the_last_block
from wts.dtypes import NumberType
from wts.errors import WalkTimeout
from wts.hardware.gpu import gpu_spec
from wts.heads.markov import MarkovHead
from wts.kernels.driver import driver_call
from wts.kernels.planner import plan_residency
from wts.walk.walker import Walker

BF16 = torch.bfloat16


def walker_with_limit(
    timeout_ms: int, *, batch: int = 2, base_type: NumberType = "bf16", vocab: int = 4999
) -> Walker:
    """A Walker of its own: its workspace is about to be broken."""
    head = MarkovHead.random(vocab=vocab, rank=64, seed=1)
    plan = plan_residency(head, gpu_of("device"), batch=batch, steps=32, base_type=base_type)
    assert plan.shard.num_blocks > 2
    return Walker(head, plan, backend="device", timeout_ms=timeout_ms)


def inputs(
    walker: Walker, *, batch: int = 2, steps: int = 5, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    base_type = walker.plan.request.base_type
    batch = min(batch, walker.plan.request.batch)
    base = base_logits(walker.head, batch=batch, steps=steps, seed=seed, base_type=base_type)
    return base, anchors(walker.head, batch, seed)


def walk_without_the_last_block(walker: Walker, steps: int = 5) -> torch.Tensor:
    """Launch one block less than every block waits for."""
    base, anchor = inputs(walker, steps=steps)
    with without_the_last_block(walker):
        return walker(base.cuda(), anchor.cuda())


def check_right(walker: Walker, seed: int = 1, steps: int = 5) -> None:
    base, anchor = inputs(walker, steps=steps, seed=seed)
    assert torch.equal(run(walker, base, anchor), twin(walker)(base, anchor))


class TestABlockThatNeverPublishes:
    @pytest.mark.parametrize(
        ("batch", "base_type"), [(1, "bf16"), (2, "fp32"), (4, "bf16"), (5, "bf16"), (5, "fp32")]
    )
    def test_is_named_and_the_next_walk_is_right(self, batch: int, base_type: NumberType) -> None:
        walker = walker_with_limit(20, batch=batch, base_type=base_type)
        last = walker.plan.shard.num_blocks - 1
        tokens = walk_without_the_last_block(walker)
        with pytest.raises(WalkTimeout) as caught:
            walker.check()
        message = str(caught.value)
        assert re.search(rf"within 20 ms, found none of block {last} at step 0 ", message)
        assert re.search(r"block \d+ waited", message)
        assert bool(((tokens >= 0) & (tokens < walker.plan.request.shape.vocab)).all())
        walker.check()
        check_right(walker)

    def test_is_seen_after_good_walks_too(self) -> None:
        """Its slots then hold old words; none may be taken for a new one."""
        walker = walker_with_limit(20)
        for steps in (1, 2, 3, 8, 15, 16, 31):
            for _ in range(2):
                check_right(walker, steps=steps)
            walk_without_the_last_block(walker)
            with pytest.raises(WalkTimeout):
                walker.check()
            check_right(walker, steps=steps)

    def test_is_not_forgotten_when_a_good_walk_follows(self) -> None:
        walker = walker_with_limit(20)
        walk_without_the_last_block(walker)
        base, anchor = inputs(walker)
        walker(base.cuda(), anchor.cuda())
        with pytest.raises(WalkTimeout):
            walker.check()
        check_right(walker)

    def test_costs_one_limit_not_one_for_each_step(self) -> None:
        """Far less than the sixteen seconds that 32 steps behind a limit of half a second cost."""
        walker = walker_with_limit(500)
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        walk_without_the_last_block(walker, steps=32)
        ended.record()
        with pytest.raises(WalkTimeout):
            walker.check()
        assert started.elapsed_time(ended) < 8000

    def test_in_a_graph_is_seen_by_the_next_check(self) -> None:
        walker = walker_with_limit(20)
        base, anchor = (tensor.cuda() for tensor in inputs(walker))
        tokens = walker(base, anchor)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph), without_the_last_block(walker):
            walker(base, anchor, out=tokens)
        graph.replay()
        with pytest.raises(WalkTimeout):
            walker.check()
        check_right(walker)


class TestSequence:
    @pytest.mark.parametrize("base_type", ["bf16", "fp32"])
    @pytest.mark.parametrize("before", [1, 2, 3, 7, 8, 40])
    def test_wraps_without_harm(self, before: int, base_type: NumberType) -> None:
        """The device counts exchanges in 32 bits."""
        walker = walker_with_limit(200, base_type=base_type)
        (kernel,) = walker.kernels
        check_right(walker, steps=2)
        kernel.workspace.status[0] = -before
        for seed in range(12):
            check_right(walker, seed=seed, steps=1 + seed % 5)

    @pytest.mark.parametrize("base_type", ["bf16", "fp32"])
    def test_tags_wrap_without_harm(self, base_type: NumberType) -> None:
        walker = walker_with_limit(200, base_type=base_type)
        for seed in range(70):
            check_right(walker, seed=seed, steps=1 + seed % 3)

    @pytest.mark.parametrize("base_type", ["bf16", "fp32"])
    def test_words_of_the_exchange_before_are_not_taken(self, base_type: NumberType) -> None:
        """Every slot holds a winning word, whose tag is one too small."""
        walker = walker_with_limit(200, base_type=base_type)
        (kernel,) = walker.kernels
        check_right(walker)
        tag = (kernel.read_status()["sequence"] >> 1) - 1
        words: torch.Tensor
        if walker.plan.selection.long_words:
            words = kernel.workspace.slots.view(torch.int64)
            words.fill_((0x7FFFFFFF << 32) | (tag & 0xFFFF))
        else:
            words = kernel.workspace.slots.view(torch.int32)
            words.fill_((0x7FFF << 16) | (tag & 0xF))
        check_right(walker, steps=9)


SPIN = r"""
extern "C" __global__ void spin(unsigned long long nanoseconds) {
  extern __shared__ char held[];
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    held[threadIdx.x] = 1;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
"""
HELD_BYTES = 200 * 1024
HELD_THREADS = 1024  # with them, registers are too few for a walk's block beside it


class Spinner:
    """A kernel that holds some SMs for a while."""

    def __init__(self) -> None:
        from cuda.bindings import driver
        from cuda.core import Device, Program, ProgramOptions

        torch.zeros(1, device="cuda")
        Device(torch.cuda.current_device()).set_current()
        options = ProgramOptions(arch=gpu_spec("LOCAL").arch)
        self._code = Program(SPIN, "c++", options).compile("cubin")
        self._kernel = self._code.get_kernel("spin")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver_call(
            driver.cuKernelSetAttribute(
                attribute,
                HELD_BYTES,
                driver.CUkernel(int(self._kernel.handle)),
                driver.CUdevice(torch.cuda.current_device()),
            ),
            "setting the spinner's shared memory",
        )

    def hold(self, sms: int, milliseconds: int, stream: torch.cuda.Stream) -> None:
        from cuda.bindings import driver

        duration = ctypes.c_ulonglong(milliseconds * 1_000_000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
        driver_call(
            driver.cuLaunchKernel(
                driver.CUfunction(int(self._kernel.handle)),
                *(sms, 1, 1),
                *(HELD_THREADS, 1, 1),
                HELD_BYTES,
                stream.cuda_stream,
                ctypes.addressof(parameters),
                0,
            ),
            "launching the spinner",
        )


class TestBesideAnotherKernel:
    @pytest.fixture(scope="class")
    def spinner(self) -> Spinner:
        return Spinner()

    @pytest.mark.parametrize("held", [1, 40, 1000])
    def test_the_walk_waits_and_is_right(self, spinner: Spinner, held: int) -> None:
        """One SM, some, or all of them are held for 50 ms; the walk needs every one."""
        sms = gpu_spec("LOCAL").num_sms
        walker = walker_with_limit(2000, vocab=384 * sms)
        assert walker.plan.shard.num_blocks == sms
        base, anchor = inputs(walker)
        there, anchor_there = base.cuda(), anchor.cuda()
        check_right(walker)
        other = torch.cuda.Stream()
        spinner.hold(min(held, sms), 50, other)
        results = [walker(there, anchor_there) for _ in range(3)]
        walker.check()
        other.synchronize()
        wanted = twin(walker)(base, anchor)
        assert all(torch.equal(tokens.cpu(), wanted) for tokens in results)

    def test_kernels_that_come_meanwhile_do_not_harm_it(self, spinner: Spinner) -> None:
        walker = walker_with_limit(2000)
        base, anchor = inputs(walker, steps=32)
        there, anchor_there = base.cuda(), anchor.cuda()
        other = torch.cuda.Stream()
        matrix = torch.randn(1024, 1024, device="cuda")
        torch.cuda.synchronize()
        results = []
        for _ in range(30):
            with torch.cuda.stream(other):
                matrix = (matrix @ matrix).tanh()
            spinner.hold(8, 1, other)
            results.append(walker(there, anchor_there))
        walker.check()
        wanted = twin(walker)(base, anchor)
        assert all(torch.equal(tokens.cpu(), wanted) for tokens in results)


def test_a_short_limit_is_enough_for_a_good_walk() -> None:
    head = silent_head(2049)
    plan = plan_residency(head, gpu_of("device"))
    walker = Walker(head, plan, backend="device", timeout_ms=10)
    base = torch.zeros(1, 16, 2049, dtype=BF16)
    for _ in range(10):
        assert not run(walker, base, torch.tensor([1])).any()
