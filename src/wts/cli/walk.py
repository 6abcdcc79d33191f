"""`wts walk`: draft a block of a drafter's head, and print its tokens as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from wts.cli.options import D2T_READINGS, GPU_NAMES
from wts.dtypes import WEIGHT_TYPES
from wts.errors import DeviceError, InputError, describe
from wts.hardware.gpu import GPUS, LOCAL, GpuSpec, gpu_spec
from wts.progress import progress_printer

if TYPE_CHECKING:
    import torch

    from wts.heads.base import Head

__all__ = ["configure", "run"]

_BACKENDS = ("auto", "device", "emulator", "reference")
_BASE_LOGITS = "base_logits"
_HIDDEN = "hidden"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts walk` to a parser."""
    add = parser.add_argument
    add("--head", type=Path, required=True, metavar="DIR", help="drafter folder")
    add(
        "--base-logits",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"safetensors with {_BASE_LOGITS} (or one tensor), [B, K, V] or [K, V]",
    )
    add(
        "--hidden",
        type=Path,
        metavar="FILE",
        help=f"safetensors with {_HIDDEN} (or one tensor), bfloat16 [B, K, H] or [K, H]: hidden "
        "states at the positions of the base logits; for heads that read them",
    )
    add("--target", type=Path, metavar="DIR", help="target model's folder, for a Domino drafter")
    add(
        "--anchor",
        type=int,
        nargs="+",
        required=True,
        metavar="TOKEN",
        help="token before the first step, one per request",
    )
    add("--backend", choices=_BACKENDS, default="auto")
    add(
        "--weights",
        choices=WEIGHT_TYPES,
        default="int8",
        help="what the projection is kept as: int8 (default), or bf16 as a bf16 head has it",
    )
    add(
        "--exact",
        action="store_true",
        help="int8 finds the best rows, the head's own bf16 weights decide among them",
    )
    add("--fallback", action="store_true", help="let auto use the emulator where there is no GPU")
    add("--gpu", help=f"plan for {GPU_NAMES}; tokens do not depend on it")
    add("--d2t", choices=D2T_READINGS, default="auto", help="how the drafter's d2t is meant")


def run(args: argparse.Namespace) -> int:
    """Walk, and print tokens, backend, plan and clamped anchors."""
    spec = _spec_to_walk(args)
    say = progress_printer()
    say("loading torch")
    import torch

    from wts.kernels.planner import plan_residency
    from wts.numerics.torch_dtypes import NUMBER_TYPE_OF
    from wts.walk.walker import Walker

    say(f"reading the head of {args.head}")
    head = _read_head(args)
    base_logits = _read_steps(args.base_logits, _BASE_LOGITS, "V")
    hidden = _read_hidden(args, head)
    if base_logits.dtype not in NUMBER_TYPE_OF:
        raise InputError.mismatch(
            f"{args.base_logits}",
            wanted="base logits in bfloat16, float16 or float32",
            found=describe(base_logits),
            fix="convert them",
        )
    plan = plan_residency(
        head,
        spec,
        batch=base_logits.shape[0],
        steps=base_logits.shape[1],
        base_type=NUMBER_TYPE_OF[base_logits.dtype],
        weights=args.weights,
        exact=args.exact,
    )
    say("packing the head" + ("" if args.backend in ("emulator", "reference") else ", compiling"))
    walker = Walker(head, plan, backend=args.backend, fallback=args.fallback)
    device = "cuda" if walker.backend == "device" else "cpu"
    say(f"walking on the {walker.backend}")
    tokens = walker(
        base_logits.to(device),
        torch.tensor(args.anchor, device=device),
        hidden=None if hidden is None else hidden.to(device),
    )
    walker.check()
    result = {
        "tokens": tokens.tolist(),
        "backend": walker.backend,
        "plan": plan.hash,
        "clamped_anchors": walker.report().clamped_anchors,
    }
    print(json.dumps(result))
    return 0


def _spec_to_walk(args: argparse.Namespace) -> GpuSpec:
    """The GPU to plan for: the one named, the local one, or any where no GPU takes part."""
    if args.gpu is not None:
        return gpu_spec(args.gpu)
    if args.backend in ("emulator", "reference"):
        return GPUS["h200"]
    try:
        spec = gpu_spec(LOCAL)
    except DeviceError:
        if args.backend == "auto" and args.fallback:
            return GPUS["h200"]
        raise DeviceError.mismatch(
            "gpu",
            wanted="an NVIDIA GPU that torch can use",
            found="none",
            fix="walk on the CPU with --backend emulator, or see what `wts doctor` says is missing",
        ) from None
    return spec if spec.walks or not args.fallback else GPUS["h200"]


def _read_head(args: argparse.Namespace) -> Head:
    from wts.heads.load import read_head

    return read_head(args.head, target=args.target, d2t_reading=args.d2t)


def _read_hidden(args: argparse.Namespace, head: Head) -> torch.Tensor | None:
    """Read hidden states where a head reads them; what they have to be is checked by the walk."""
    if (args.hidden is None) != (head.hidden_size is None):
        raise InputError.mismatch(
            "hidden",
            wanted="none: a Markov head reads no hidden states"
            if head.hidden_size is None
            else f"hidden states of {head.hidden_size} elements, which this {head.kind} head reads",
            found="none" if args.hidden is None else args.hidden,
            fix="leave it out" if head.hidden_size is None else "pass --hidden FILE",
        )
    return None if args.hidden is None else _read_steps(args.hidden, _HIDDEN, "H")


def _read_steps(path: Path, name: str, last: str) -> torch.Tensor:
    """Read [B, K, ...]; one request may leave its dimension out.

    Args:
        path: a safetensors file.
        name: of the tensor, where the file has several.
        last: letter of its last dimension.
    """
    from safetensors import safe_open

    from wts.heads.checkpoint import tensor_names

    names = tensor_names(path)
    if name not in names and len(names) != 1:
        raise InputError.mismatch(
            f"{path}",
            wanted=f"a tensor {name}, or only one",
            found=f"{len(names)}: {', '.join(sorted(names)[:4])}",
            fix="rename the one to walk over",
        )
    with safe_open(path, framework="pt") as file:
        value: torch.Tensor = file.get_tensor(name if name in names else names[0])
    if value.ndim not in (2, 3) or 0 in value.shape:
        raise InputError.mismatch(
            f"{path}",
            wanted=f"[B, K, {last}] or [K, {last}]",
            found=describe(value),
            fix="reshape it",
        )
    return value if value.ndim == 3 else value[None]
