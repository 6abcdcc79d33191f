"""Products summed in a fixed order, as a warp sums them, and what hidden states add to a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["LANES", "fine_product", "hidden_term", "lane_product", "write_hidden_term"]

LANES = 32
"""Lanes that share a product with a state: its elements come in as many."""


# ---- products ----------------------------------------------------------------------------------


def fine_product(weight: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """weight . vector, fp32 [..., n]: products exact, summed in fp64, rounded once to fp32.

    So the result is that of the exact sum unless the sum lies within 2^-52 of its terms of a
    rounding boundary of fp32: it does not depend on the order of the sum, and so not on the batch.

    Args:
        weight: bf16 [n, m].
        vectors: bf16 [..., m].
    """
    return (vectors.double() @ weight.double().T).float()


def hidden_term(
    weight: torch.Tensor, bias: torch.Tensor | None, hidden: torch.Tensor, *, by_lanes: bool = False
) -> torch.Tensor:
    """What hidden states add to the inner sums of each step.

    Args:
        weight: bf16 [P, H], `hidden_weight` of a head.
        bias: bf16 [P], its `hidden_bias`; None adds nothing.
        hidden: bf16 [B, K, H], any strides.
        by_lanes: whether the product is summed as the kernel sums it; H is then a multiple of 8.

    Returns:
        fp32 [B, K, P]: the product, rounded to fp32, plus the bias in fp32.
    """
    if by_lanes:
        product = lane_product(weight, hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
    else:
        product = fine_product(weight, hidden)
    return product if bias is None else product + bias.float()


def lane_product(weight: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """weight . vector as a warp sums it: element i is of lane i / 8 mod 32, of its sum i mod 4.

    A sum starts at 0 and takes in its elements in ascending order, each by one fused multiply-add;
    then a lane's sums are added in a tree, first those 2 apart, and lanes in another, 16 apart,
    then 8, 4, 2, 1.

    The fused multiply-add is made in fp64 and then rounded to fp32, which rounds twice and still
    gives what rounding once does. A product p of two bf16 numbers has 16 bits: it is exact in fp64.
    Its sum with an fp32 number c is exact there too, wherever its bits span at most 53. Else either
    c has the higher bits, and p is below 2^-13 of c's last place; or p has them, is an fp32
    number (above 2^-120), and c is below 2^-5 of its last place. Both are too little to reach a
    boundary: the result in fp32 is the larger of the two, whatever fp64 made of the rest.

    Args:
        weight: bf16 [n, m]; m is a multiple of 8.
        vector: bf16 [B, m].

    Returns:
        fp32 [B, n].
    """
    rows, length = weight.shape
    turns = -(-length // (8 * LANES))
    padding = (0, turns * 8 * LANES - length)
    weights = F.pad(weight, padding).double().view(1, rows, turns, LANES, 2, 4)
    vectors = F.pad(vector, padding).double().view(len(vector), 1, turns, LANES, 2, 4)
    total = torch.zeros(len(vector), rows, LANES, 4, device=weight.device)
    for turn in range(turns):
        owned = torch.arange(LANES, device=weight.device) < length // 8 - turn * LANES
        for half in range(2):
            at = (slice(None), slice(None), turn, slice(None), half)
            taken = weights[at] * vectors[at] + total.double()
            total = torch.where(owned[:, None], taken.float(), total)
    for apart in (2, 1):
        total = total[..., :apart] + total[..., apart : 2 * apart]
    lanes, apart = total[..., 0], LANES // 2
    while apart:
        lanes = lanes[..., :apart] + lanes[..., apart : 2 * apart]
        apart //= 2
    return lanes[..., 0]


def write_hidden_term(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """What hidden states add to inner sums: a library's product, sums in fp32 in its order.

    Args:
        hidden: bf16 [n, H].
        weight: bf16 [rows, H].
        bias: [rows], or None.
        out: fp32 [n, rows].
    """
    torch.mm(hidden, weight.T, out_dtype=torch.float32, out=out)
    if bias is not None:
        out.add_(bias)
