"""What steps are taken from: base logits, anchors and hidden states, drawn or read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from wts.errors import InputError, describe
from wts.heads.base import Head
from wts.numerics.torch_dtypes import DTYPES

__all__ = ["Inputs", "draw_inputs", "read_inputs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """What steps are taken from.

    Args:
        base_logits: bf16 | fp16 | fp32 [B, K, V].
        anchor: int64 [B].
        hidden: bf16 [B, K, H] for heads that read it.
        tokens: int64 [B, K], the text behind the anchors; a head reads these as previous tokens.
            None: it reads what the unquantised head takes for the best.
        recorded: whether they come from a drafter at work.
    """

    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor | None
    tokens: torch.Tensor | None
    recorded: bool


def draw_inputs(
    head: Head, *, requests: int, steps: int, seed: int, deviation: float = 1.0
) -> Inputs:
    """Draw inputs: normal base logits and hidden states, any anchors.

    Args:
        head: the head.
        requests: B.
        steps: K.
        seed: of the draw.
        deviation: of base logits.
    """
    generator = torch.Generator().manual_seed(seed)
    device = head.table.device
    base = deviation * torch.randn(requests, steps, head.vocab, generator=generator)
    hidden = None
    if head.hidden_size is not None:
        hidden = torch.randn(requests, steps, head.hidden_size, generator=generator)
        hidden = hidden.bfloat16().to(device)
    anchor = torch.randint(0, head.table_rows, (requests,), generator=generator)
    return Inputs(
        base_logits=base.bfloat16().to(device),
        anchor=anchor.to(device),
        hidden=hidden,
        tokens=None,
        recorded=False,
    )


def read_inputs(path: Path, head: Head) -> Inputs:
    """Read recorded inputs of a head.

    Args:
        path: a safetensors file with `base_logits` [B, K, V], `anchor` int64 [B], `hidden`
            [B, K, H] for heads that read it, and perhaps `tokens` int64 [B, K].
        head: the head.

    Raises:
        CheckpointError: not such a file.
        InputError: a tensor is missing or does not fit the head.
    """
    from safetensors import safe_open

    from wts.heads.checkpoint import tensor_names

    names = tensor_names(path)
    needed = ["base_logits", "anchor", *(["hidden"] if head.hidden_size is not None else [])]
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in (*needed, "tokens") if name in names}
    for name in needed:
        if name not in found:
            raise InputError.mismatch(
                f"{path}: tensor {name}",
                wanted=f"one, as a {head.kind} head reads it",
                found=", ".join(sorted(names)[:6]) or "no tensors",
                fix="record it with the others",
            )
    base = found["base_logits"]
    if base.ndim != 3 or 0 in base.shape or base.shape[2] < head.vocab or base.dtype not in DTYPES:
        raise InputError.mismatch(
            f"{path}: tensor base_logits",
            wanted=f"bfloat16, float16 or float32 [B, K, at least {head.vocab}]",
            found=describe(base),
            fix="pass the base logits of this head's drafter",
        )
    batch, steps = base.shape[:2]
    wanted = {"anchor": (torch.int64, (batch,)), "tokens": (torch.int64, (batch, steps))}
    if head.hidden_size is not None:
        wanted["hidden"] = (torch.bfloat16, (batch, steps, head.hidden_size))
    for name, (dtype, shape) in wanted.items():
        value = found.get(name)
        if value is not None and (value.dtype != dtype or tuple(value.shape) != shape):
            raise InputError.mismatch(
                f"{path}: tensor {name}",
                wanted=f"{str(dtype).removeprefix('torch.')}{list(shape)}",
                found=describe(value),
                fix="record it at the positions of the base logits",
            )
    device = head.table.device
    moved = {name: value.to(device) for name, value in found.items()}
    return Inputs(
        base_logits=moved["base_logits"],
        anchor=moved["anchor"],
        hidden=moved["hidden"] if head.hidden_size is not None else None,
        tokens=moved.get("tokens"),
        recorded=True,
    )
