"""`wts plan`: which weights live where, and what a walk should cost; no torch."""

from __future__ import annotations

import argparse

from wts.cli.options import GPU_NAMES
from wts.dtypes import WEIGHT_TYPES
from wts.errors import DeviceError, InputError
from wts.hardware.gpu import LOCAL, gpu_spec
from wts.heads.kinds import HEAD_KINDS, KINDS, HeadShape

__all__ = ["configure", "run"]

_STATE_SIZE = 1024  # of published Domino heads
_HIDDEN_SIZE = 2560  # of Qwen3-4B


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts plan` to a parser."""
    add = parser.add_argument
    add("--vocab", type=int, required=True, metavar="V", help="projection rows")
    add("--rank", type=int, default=256, metavar="R", help="default 256")
    add("--head-kind", choices=HEAD_KINDS, default="markov", help="default markov")
    add("--state-size", type=int, metavar="G", help=f"of a Domino head, default {_STATE_SIZE}")
    add(
        "--hidden-size",
        type=int,
        metavar="H",
        help=f"of heads that read hidden states, default {_HIDDEN_SIZE}",
    )
    add("--gpu", default=LOCAL, help=f"{GPU_NAMES} (default)")
    add("--batch", type=int, default=1, metavar="B", help="default 1")
    add("--steps", type=int, default=16, metavar="K", help="default 16")
    add("--blocks", type=int, metavar="N", help="co-resident blocks, if fewer")
    add("--sampled", action="store_true", help="plan for temperatures above 0")
    add("--weights", choices=WEIGHT_TYPES, default="int8", help="of the projection, default int8")
    add("--exact", action="store_true", help="plan for tokens of the unquantised head, greedy")
    add(
        "--tensor-memory",
        action="store_true",
        help="int8 weights too may go to a B200's tensor memory; bf16 ones do anyway",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan that the options ask for."""
    from wts.kernels.planner import plan_residency
    from wts.kernels.resident.cost import cost_line, predict

    spec = gpu_spec(args.gpu)
    if args.blocks is not None:
        spec = spec.with_blocks(args.blocks)
    plan = plan_residency(
        _shape(args),
        spec,
        batch=args.batch,
        steps=args.steps,
        sampled=args.sampled,
        weights=args.weights,
        exact=args.exact,
        tensor_memory=True if args.tensor_memory else None,
    )
    print(plan)
    try:
        cost = predict(plan, spec)
    except DeviceError as error:  # a GPU of no known kind, whose driver names no clock
        print(f"  no prediction: {error}")
    else:
        print(f"  {cost_line(cost, plan.gpu.name, plan.request.batch)}")
    if not spec.walks:
        print("  there is no kernel for this GPU: only the emulator walks this plan")
    elif spec.caution:
        print(f"  {spec.caution}")
    return 0


def _shape(args: argparse.Namespace) -> HeadShape:
    """The head that the options describe.

    Raises:
        InputError: sizes that this kind of head has not.
    """
    kind = KINDS[args.head_kind]
    if args.state_size is not None and kind.state != "own":
        raise InputError.mismatch(
            "state-size",
            wanted="none: only a Domino head's state has a size of its own",
            found=f"{args.state_size} for a {args.head_kind} head",
            fix="leave it out",
        )
    if args.hidden_size is not None and not kind.reads_hidden:
        raise InputError.mismatch(
            "hidden-size",
            wanted="none: a Markov head reads no hidden states",
            found=args.hidden_size,
            fix="leave it out",
        )
    hidden = _HIDDEN_SIZE if args.hidden_size is None else args.hidden_size
    state = _STATE_SIZE if args.state_size is None else args.state_size
    return HeadShape(
        vocab=args.vocab,
        rank=args.rank,
        kind=kind.name,
        state=kind.state_size(args.rank, state),
        hidden=hidden if kind.reads_hidden else 0,
    )
