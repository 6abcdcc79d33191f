"""`wts fidelity`: what int8 does to a head, its logits and its tokens, as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from wts.cli.options import D2T_READINGS
from wts.errors import DeviceError, InputError
from wts.progress import progress_printer

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts fidelity` to a parser."""
    add = parser.add_argument
    add("head", type=Path, metavar="CHECKPOINT", help="drafter folder")
    add(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="recorded inputs, safetensors with base_logits [B, K, V], anchor [B], for heads that "
        "read it hidden [B, K, H], and perhaps tokens [B, K]; random ones by default",
    )
    add("--target", type=Path, metavar="DIR", help="target model's folder, for a Domino drafter")
    add("--batch", type=int, default=16, metavar="B", help="of random inputs")
    add("--steps", type=int, default=7, metavar="K", help="of random inputs")
    add("--seed", type=int, default=0, help="of random inputs")
    add("--out", type=Path, metavar="DIR", help="write fidelity.json and fidelity.png there")
    add("--device", default="cpu", help="where to compute: cpu (default) or cuda")
    add("--d2t", choices=D2T_READINGS, default="auto", help="how the drafter's d2t is meant")


def run(args: argparse.Namespace) -> int:
    """Examine a head, and print and keep the report."""
    for name, value in (("batch", args.batch), ("steps", args.steps)):
        if value < 1:
            raise InputError.mismatch(name, wanted="at least 1", found=value, fix="ask for more")
    say = progress_printer()
    say("loading torch")
    import torch

    from wts import fidelity
    from wts.fidelity.draw import draw_fidelity
    from wts.fidelity.summary import summary
    from wts.heads.load import read_head
    from wts.walk.recorded import draw_inputs, read_inputs

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceError.mismatch(
            "device", wanted="a GPU that torch can use", found="none", fix="leave out --device"
        )
    say(f"reading the head of {args.head}")
    head = read_head(args.head, target=args.target, device=args.device, d2t_reading=args.d2t)
    if args.inputs is None:
        inputs = draw_inputs(head, requests=args.batch, steps=args.steps, seed=args.seed)
    else:
        inputs = read_inputs(args.inputs, head)
    report = fidelity.examine(head, inputs, say=say)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "fidelity.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
        try:
            draw_fidelity(report, args.out / "fidelity.png")
        except InputError as error:  # the numbers are there all the same
            say(f"no figure: {error}")
    for line in summary(report):
        say(line)
    print(json.dumps(report))
    return 0
