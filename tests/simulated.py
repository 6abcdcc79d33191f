"""Walks of the kernel executed on the CPU, compared with the emulator."""

from __future__ import annotations

from dataclasses import replace

import torch

from simulator import Simulator, step_dtype
from wts.dtypes import NumberType, WeightType
from wts.hardware.gpu import gpu_spec
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.numerics.torch_dtypes import DTYPE_OF
from wts.walk.walker import Walker

WHOLE = 232_448  # bytes of shared memory of a real block
KEY, OFFSET = 0x1234_5678_9ABC_DEF0, (1 << 32) - 1


def plan_of(
    head: MarkovHead,
    *,
    batch: int = 1,
    blocks: int = 1,
    sampled: bool = False,
    base_type: NumberType = "bf16",
    weights: WeightType = "int8",
    shared_bytes: int = WHOLE,
    gpu: str = "h200",
    tensor_memory: bool | None = None,
) -> ResidentPlan:
    """A plan for a small GPU: some blocks, perhaps of less shared memory."""
    spec = replace(gpu_spec(gpu).with_blocks(blocks), shared_bytes_per_block=shared_bytes)
    return plan_residency(
        head,
        spec,
        batch=batch,
        steps=32,
        sampled=sampled,
        base_type=base_type,
        weights=weights,
        tensor_memory=tensor_memory,
    )


def inputs(
    head: MarkovHead, plan: ResidentPlan, batch: int, steps: int, seed: int, *, padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Base logits that start at an odd element where padded, and anchors, one of them outside."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(batch, steps, head.vocab + padding, generator=generator) * 2
    anchor = torch.randint(0, head.table_rows, (batch,), generator=generator)
    anchor[-1] = -1 if seed % 2 else 1 << 40
    first = padding // 2
    return base.to(DTYPE_OF[plan.request.base_type])[:, :, first : first + head.vocab], anchor


def check_greedy(
    head: MarkovHead,
    plan: ResidentPlan,
    batch: int,
    steps: int,
    *,
    seed: int = 0,
    padding: int = 0,
) -> None:
    """A greedy walk of the kernel has the emulator's tokens, and leaves its status."""
    base, anchor = inputs(head, plan, batch, steps, seed, padding=padding)
    simulator = Simulator(head, plan)
    tokens = simulator(base, anchor, seed=seed)
    assert torch.equal(tokens, Walker(head, plan, backend="emulator")(base, anchor))
    assert simulator.status.tolist()[:5] == [2 + steps, 0, 0, 0, 1]


def check_sampled(
    head: MarkovHead,
    plan: ResidentPlan,
    batch: int,
    steps: int,
    *,
    seed: int = 0,
    padding: int = 0,
) -> None:
    """A sampled walk of the kernel has the emulator's tokens, step logits and offset."""
    base, anchor = inputs(head, plan, batch, steps, seed, padding=padding)
    temperatures = torch.tensor([1.0, 0.0, 0.6, -1.0, 2.0, float("nan"), 1e-9] * 10)[:batch].clone()
    results = []
    for walk in (Simulator(head, plan), Walker(head, plan, backend="emulator")):
        noise = Noise(key=KEY, offset=torch.tensor([OFFSET]))
        logits = torch.zeros(batch, steps, head.vocab + 1, dtype=step_dtype(plan))
        tokens = walk(base, anchor, temperatures=temperatures, noise=noise, logits_out=logits)
        results.append((tokens, logits, noise.offset))
    for simulated, emulated in zip(*results, strict=True):
        assert torch.equal(simulated, emulated)
    assert int(results[0][2]) == OFFSET + 1
