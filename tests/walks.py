"""One way to walk on any backend, for tests that are the same on all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, cast

import pytest
import torch

from strategies import DTYPES, anchors, base_logits, hopper
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.hardware.gpu import GpuSpec, gpu_spec
from wts.heads.base import Head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.selection.exact import EXACT_ROWS
from wts.walk.backends import BackendName
from wts.walk.walker import Walker

Way: TypeAlias = (
    BackendName | Literal["device exact", "device bf16", "emulator exact", "emulator bf16"]
)
"""A backend, perhaps under a plan of exact walks or of bf16 weights."""

WAYS_OF_A_GPU: tuple[Way, ...] = ("device", "device exact", "device bf16")
WAYS_WITHOUT_A_GPU: tuple[Way, ...] = (
    "emulator",
    "emulator exact",
    "emulator bf16",
    "reference",
)


def gpu_of(backend: BackendName, blocks: int | None = None) -> GpuSpec:
    """This machine's GPU for the device, else an H200; perhaps only some of its blocks."""
    whole = gpu_spec("LOCAL") if backend == "device" else hopper()
    return whole if blocks is None else whole.with_blocks(min(blocks, whole.num_sms))


def plan_of(
    way: Way,
    head: Head,
    *,
    batch: int = 4,
    steps: int = 32,
    blocks: int | None = None,
    base_type: NumberType = "bf16",
    sampled: bool = False,
) -> ResidentPlan:
    """A plan of a head; skips the test where no walk of this way is of such numbers."""
    backend, _, how = way.partition(" ")
    types = {head.table.dtype, head.projection.dtype}
    if how and types != {torch.bfloat16}:
        pytest.skip(f"{how}: of heads in bf16")
    if how == "exact" and (sampled or base_type != "bf16"):
        pytest.skip("exact: of greedy walks in bf16")
    gpu = gpu_of(cast(BackendName, backend), blocks)
    if how == "exact" and head.vocab > EXACT_ROWS * gpu.max_blocks:
        pytest.skip(f"exact: of at most {EXACT_ROWS} rows a block")
    return plan_residency(
        head,
        gpu,
        batch=batch,
        steps=steps,
        base_type=base_type,
        sampled=sampled,
        weights="bf16" if how == "bf16" else "int8",
        exact=how == "exact",
    )


@lru_cache(maxsize=64)
def walker_of(
    way: Way,
    head: Head,
    *,
    batch: int = 4,
    blocks: int | None = None,
    base_type: NumberType = "bf16",
    sampled: bool = False,
) -> Walker:
    """A Walker of a head, kept for the next test that asks for the same."""
    plan = plan_of(way, head, batch=batch, blocks=blocks, base_type=base_type, sampled=sampled)
    return Walker(head, plan, backend=cast(BackendName, way.partition(" ")[0]))


@lru_cache(maxsize=64)
def twin(walker: Walker) -> Walker:
    """The emulator of the same head under the same plan."""
    return Walker(walker.head, walker.plan, backend="emulator")


def moved(tensor: torch.Tensor, walker: Walker) -> torch.Tensor:
    """The same view of the same storage, where the walker wants it: strides and offset stay."""
    if walker.backend != "device":
        return tensor
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return flat.cuda().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def run(
    walker: Walker, base: torch.Tensor, anchor: torch.Tensor, hidden: torch.Tensor | None = None
) -> torch.Tensor:
    """Tokens [B, K] on the CPU, after a check."""
    read = None if hidden is None else moved(hidden, walker)
    tokens = walker(moved(base, walker), moved(anchor, walker), hidden=read)
    walker.check()
    assert tokens.shape == base.shape[:2]
    return tokens.cpu()


def check(walker: Walker, base: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    """Walk on both; the tokens have to be equal."""
    tokens = run(walker, base, anchor)
    assert torch.equal(tokens, twin(walker)(base, anchor))
    return tokens


def check_all(walker: Walker, *, requests: tuple[int, ...], steps: tuple[int, ...]) -> None:
    """Spread and tied inputs, for each number of requests and of steps."""
    head, base_type = walker.head, walker.plan.request.base_type
    for batch in requests:
        for count in steps:
            for tied in (False, True):
                seed = 100 * batch + count
                base = base_logits(
                    head, batch=batch, steps=count, seed=seed, base_type=base_type, tied=tied
                )
                check(walker, base, anchors(head, batch, seed))


def walk(
    way: Way,
    head: Head,
    base: torch.Tensor,
    anchor: torch.Tensor,
    *,
    batch: int | None = None,
    blocks: int | None = None,
) -> torch.Tensor:
    """Tokens of one call under a plan for its batch, or for a larger one."""
    base_type = next(name for name in NUMBER_TYPES if DTYPES[name] == base.dtype)
    batch = len(base) if batch is None else batch
    walker = walker_of(way, head, batch=batch, blocks=blocks, base_type=base_type)
    return run(walker, base, anchor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """What a sampled walk gives back, on the CPU.

    Args:
        tokens: int64 [B, K].
        logits: [B, K, V], step logits of sampled rows; what was there before elsewhere.
        offset: the counter after the walk.
    """

    tokens: torch.Tensor
    logits: torch.Tensor
    offset: int


def run_sampled(
    walker: Walker,
    base: torch.Tensor,
    anchor: torch.Tensor,
    temperatures: Sequence[float],
    *,
    key: int = 7,
    offset: int = 0,
    fill: float = 0.0,
    hidden: torch.Tensor | None = None,
) -> Drawn:
    """One call of a Walker whose plan is sampled; logits_out holds `fill` before it."""
    counter = torch.tensor([offset])
    logits = torch.full(base.shape, fill, dtype=DTYPES[walker.plan.request.step_type])
    there, counter_there = moved(logits, walker), moved(counter, walker)
    tokens = walker(
        moved(base, walker),
        moved(anchor, walker),
        hidden=None if hidden is None else moved(hidden, walker),
        temperatures=moved(torch.tensor(temperatures, dtype=torch.float32), walker),
        noise=Noise(key=key, offset=counter_there),
        logits_out=there,
    )
    walker.check()
    return Drawn(tokens=tokens.cpu(), logits=there.cpu(), offset=int(counter_there))


def sample(
    way: Way,
    head: Head,
    base: torch.Tensor,
    anchor: torch.Tensor,
    temperatures: Sequence[float],
    *,
    key: int = 7,
    offset: int = 0,
    batch: int | None = None,
    blocks: int | None = None,
) -> Drawn:
    """One sampled call under a plan for its batch, or for a larger one."""
    base_type = next(name for name in NUMBER_TYPES if DTYPES[name] == base.dtype)
    batch = len(base) if batch is None else batch
    walker = walker_of(way, head, batch=batch, blocks=blocks, base_type=base_type, sampled=True)
    return run_sampled(walker, base, anchor, temperatures, key=key, offset=offset)


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture into a graph while nothing is collected: unloading a module breaks a capture."""
    torch.cuda.synchronize()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            yield
    finally:
        gc.enable()


@contextmanager
def without_the_last_block(walker: Walker) -> Iterator[None]:
    """Launch one block less than every block waits for."""
    kernel = walker.kernels[0]
    whole = kernel.plan
    # Nothing else: a plan of fewer blocks would hold more in each, and its launch ask for that.
    kernel.plan = replace(whole, shard=replace(whole.shard, num_blocks=whole.shard.num_blocks - 1))
    try:
        yield
    finally:
        kernel.plan = whole
