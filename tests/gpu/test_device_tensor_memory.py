"""int8 tiles in a B200's tensor memory: the emulator's tokens bit for bit.

Where there is a tensor memory, bf16 weights use it in every test of theirs.
"""

from __future__ import annotations

import pytest
import torch

from strategies import anchors, base_logits
from wts.errors import DeviceError
from wts.hardware.gpu import LOCAL, gpu_spec
from wts.hardware.tensor_memory import has_product
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.variants import with_tcgen05_tiles
from wts.numerics.gumbel import Noise
from wts.walk.walker import Walker


def multiplies_there() -> bool:
    try:
        return has_product(gpu_spec(LOCAL).arch, "int8")
    except DeviceError:
        return False


pytestmark = pytest.mark.skipif(
    not multiplies_there(), reason="needs a GPU that multiplies int8 from tensor memory: a B200"
)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 4, 9])
@pytest.mark.parametrize("matrix", [0, 1])
def test_walks(batch: int, sampled: bool, matrix: int) -> None:
    head = MarkovHead.random(vocab=40_000, rank=256, seed=batch)
    gpu = gpu_spec(LOCAL).with_blocks(37)
    plan = plan_residency(head, gpu, batch=batch, steps=8, sampled=sampled, tensor_memory=True)
    sharing = plan.product.tiles_per_accumulator
    left = sharing * max(1, plan.shard.warp_tiles // sharing // 2)
    plan = with_tcgen05_tiles(plan, plan.shard.warp_tiles - left - matrix, matrix)
    base, anchor = base_logits(head, batch=batch, steps=8, seed=1), anchors(head, batch, 2)
    tokens = []
    for backend, device in (("device", "cuda"), ("emulator", "cpu")):
        walker = Walker(head, plan, backend=backend)  # type: ignore[arg-type]
        assert walker.plan.product.tcgen05_tiles > 0
        more = {}
        if sampled:
            more["temperatures"] = torch.linspace(0, 1.5, batch).to(device)
            more["noise"] = Noise(key=77, offset=torch.tensor([5], device=device))
        for _ in range(3):  # one workspace, several walks
            found = walker(base.to(device), anchor.to(device), **more).cpu()
        walker.check()
        tokens.append(found)
    assert torch.equal(*tokens)
