"""The command line: wts demo | plan | walk | fidelity | doctor | bench | plot.

Results go to standard output, progress and errors to standard error. An error that names its cause
(`WalkError`) is one line and exit status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from wts.dtypes import WEIGHT_TYPES
from wts.errors import DeviceError, InputError, WalkError, describe
from wts.hardware.gpu import GPUS, LOCAL, GpuSpec, gpu_spec
from wts.heads.kinds import HEAD_KINDS
from wts.progress import sayer

if TYPE_CHECKING:
    import torch

    from wts.heads.cells import AnyHead

__all__ = ["main"]

_BACKENDS = ("auto", "device", "emulator", "reference")
_READINGS = ("auto", "offsets", "ids")
_GPU_NAMES = ", ".join([*GPUS, LOCAL])
_BASE_LOGITS = "base_logits"
_HIDDEN = "hidden"
_STATE_SIZE = 1024  # of published Domino heads
_HIDDEN_SIZE = 2560  # of Qwen3-4B
_RESULTS = Path("benchmarks/results/h200")
_FIGURES = Path("benchmarks/figures")
_BENCHES = {
    "head": "walks of a head beside step-wise execution, compared and then timed",
    "all": "everything that figures need of one GPU, in stages, resumable",
    "serving": "rounds of an SGLang server, with and without walks",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; those of the process by default.

    Returns:
        Exit status: 0; 1 where a check failed; 2 for an error that names its cause.
    """
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has what they wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except WalkError as error:
        print(f"wts {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wts",
        description="Weights That Stay: a drafter's serial head walked in one GPU launch. Every "
        "command has --help; demo, doctor, plan, walk with --backend emulator, fidelity and plot "
        "need no GPU.",
    )
    parser.add_argument("--version", action="version", version=f"wts {_version()}")
    parser.set_defaults(run=_list_commands(parser))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser("demo", help="the main job on whatever this machine has")
    demo.add_argument("--batch", type=int, default=1, metavar="B", help="requests (default 1)")
    demo.add_argument("--steps", type=int, default=16, metavar="K", help="steps (default 16)")
    demo.add_argument(
        "--head", type=Path, metavar="DIR", help="a Markov drafter's folder: no random head"
    )
    demo.set_defaults(run=_demo)

    plan = commands.add_parser("plan", help="show which weights live where")
    plan.add_argument("--vocab", type=int, required=True, metavar="V", help="projection rows")
    plan.add_argument("--rank", type=int, default=256, metavar="R", help="default 256")
    plan.add_argument("--head-kind", choices=HEAD_KINDS, default="markov", help="default markov")
    plan.add_argument(
        "--state-size", type=int, metavar="G", help=f"of a Domino head, default {_STATE_SIZE}"
    )
    plan.add_argument(
        "--hidden-size",
        type=int,
        metavar="H",
        help=f"of heads that read hidden states, default {_HIDDEN_SIZE}",
    )
    plan.add_argument("--gpu", default=LOCAL, help=f"{_GPU_NAMES} (default)")
    plan.add_argument("--batch", type=int, default=1, metavar="B", help="default 1")
    plan.add_argument("--steps", type=int, default=16, metavar="K", help="default 16")
    plan.add_argument("--blocks", type=int, metavar="N", help="co-resident blocks, if fewer")
    plan.add_argument("--sampled", action="store_true", help="plan for temperatures above 0")
    plan.add_argument(
        "--weights", choices=WEIGHT_TYPES, default="int8", help="of the projection, default int8"
    )
    plan.add_argument(
        "--exact", action="store_true", help="plan for tokens of the unquantised head, greedy"
    )
    plan.add_argument(
        "--tensor-memory",
        action="store_true",
        help="int8 weights too may go to a B200's tensor memory; bf16 ones do anyway",
    )
    plan.set_defaults(run=_plan)

    walk = commands.add_parser("walk", help="draft a block, print its tokens as JSON")
    walk.add_argument("--head", type=Path, required=True, metavar="DIR", help="drafter folder")
    walk.add_argument(
        "--base-logits",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"safetensors with {_BASE_LOGITS} (or one tensor), [B, K, V] or [K, V]",
    )
    walk.add_argument(
        "--hidden",
        type=Path,
        metavar="FILE",
        help=f"safetensors with {_HIDDEN} (or one tensor), bfloat16 [B, K, H] or [K, H]: hidden "
        "states at the positions of the base logits; for heads that read them",
    )
    walk.add_argument(
        "--target", type=Path, metavar="DIR", help="target model's folder, for a Domino drafter"
    )
    walk.add_argument(
        "--anchor",
        type=int,
        nargs="+",
        required=True,
        metavar="TOKEN",
        help="token before the first step, one per request",
    )
    walk.add_argument("--backend", choices=_BACKENDS, default="auto")
    walk.add_argument(
        "--weights",
        choices=WEIGHT_TYPES,
        default="int8",
        help="what the projection is kept as: int8 (default), or bf16 as a bf16 head has it",
    )
    walk.add_argument(
        "--exact",
        action="store_true",
        help="int8 finds the best rows, the head's own bf16 weights decide among them",
    )
    walk.add_argument(
        "--fallback", action="store_true", help="let auto use the emulator where there is no GPU"
    )
    walk.add_argument("--gpu", help=f"plan for {_GPU_NAMES}; tokens do not depend on it")
    walk.add_argument(
        "--d2t", choices=_READINGS, default="auto", help="how the drafter's d2t is meant"
    )
    walk.set_defaults(run=_walk)

    fidelity = commands.add_parser(
        "fidelity", help="what int8 does to a head, its logits and its tokens, as JSON"
    )
    fidelity.add_argument("head", type=Path, metavar="CHECKPOINT", help="drafter folder")
    fidelity.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="recorded inputs, safetensors with base_logits [B, K, V], anchor [B], for heads that "
        "read it hidden [B, K, H], and perhaps tokens [B, K]; random ones by default",
    )
    fidelity.add_argument(
        "--target", type=Path, metavar="DIR", help="target model's folder, for a Domino drafter"
    )
    fidelity.add_argument("--batch", type=int, default=16, metavar="B", help="of random inputs")
    fidelity.add_argument("--steps", type=int, default=7, metavar="K", help="of random inputs")
    fidelity.add_argument("--seed", type=int, default=0, help="of random inputs")
    fidelity.add_argument(
        "--out", type=Path, metavar="DIR", help="write fidelity.json and fidelity.png there"
    )
    fidelity.add_argument("--device", default="cpu", help="where to compute: cpu (default) or cuda")
    fidelity.add_argument(
        "--d2t", choices=_READINGS, default="auto", help="how the drafter's d2t is meant"
    )
    fidelity.set_defaults(run=_fidelity)

    doctor = commands.add_parser("doctor", help="say what this machine can run, and why not")
    doctor.set_defaults(run=_doctor)

    bench = commands.add_parser("bench", help="measure: head, all, serving, table")
    bench.set_defaults(run=_list_commands(bench))
    benches = bench.add_subparsers(dest="what", metavar="WHAT")
    for what, meant in _BENCHES.items():
        # Options are the benchmark's own, which parses them: nothing here is an option's prefix.
        own = benches.add_parser(what, help=meant, add_help=False, prefix_chars="\0")
        own.add_argument("options", nargs="*")
        own.set_defaults(run=_bench)
    table = benches.add_parser("table", help="the README's table of a results file")
    table.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a head.jsonl")
    table.add_argument("--every-point", action="store_true", help="the table of docs/benchmarks.md")
    table.set_defaults(run=_bench_table)

    plot = commands.add_parser("plot", help="draw what was measured, as SVG and PNG")
    plot.add_argument(
        "--results",
        type=Path,
        default=_RESULTS,
        metavar="DIR",
        help=f"records of one GPU, default {_RESULTS} of this project's clone",
    )
    plot.add_argument(
        "--out", type=Path, metavar="DIR", help=f"default {_FIGURES}/<name of the results folder>"
    )
    plot.add_argument("--figures", metavar="NAME,..", help="some only; a wrong name lists them")
    plot.set_defaults(run=_plot)
    return parser


def _list_commands(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """What a command without its subcommand does: it shows them, as misuse."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return show


def _version() -> str:
    try:
        return metadata.version("weights-that-stay")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _demo(args: argparse.Namespace) -> int:
    from wts import demo

    right = demo.run(batch=args.batch, steps=args.steps, head_folder=args.head, say=sayer())
    return 0 if right else 1


def _plan(args: argparse.Namespace) -> int:
    from wts.heads.kinds import Shape
    from wts.kernels.planner import plan_residency
    from wts.kernels.resident.cost import cost_line, predict

    spec = gpu_spec(args.gpu)
    if args.blocks is not None:
        spec = spec.with_blocks(args.blocks)
    if args.state_size is not None and args.head_kind != "domino":
        raise InputError.mismatch(
            "state-size",
            wanted="none: only a Domino head's state has a size of its own",
            found=f"{args.state_size} for a {args.head_kind} head",
            fix="leave it out",
        )
    if args.hidden_size is not None and args.head_kind == "markov":
        raise InputError.mismatch(
            "hidden-size",
            wanted="none: a Markov head reads no hidden states",
            found=args.hidden_size,
            fix="leave it out",
        )
    hidden = _HIDDEN_SIZE if args.hidden_size is None else args.hidden_size
    domino_size = _STATE_SIZE if args.state_size is None else args.state_size
    state = {"rnn": args.rank, "domino": domino_size}.get(args.head_kind, 0)
    shape = Shape(
        vocab=args.vocab,
        rank=args.rank,
        kind=args.head_kind,
        state=state,
        hidden=0 if args.head_kind == "markov" else hidden,
    )
    plan = plan_residency(
        shape,
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
        print(f"  {cost_line(cost, plan.gpu, plan.batch)}")
    if not spec.walks:
        print("  there is no kernel for this GPU: only the emulator walks this plan")
    elif spec.caution:
        print(f"  {spec.caution}")
    return 0


def _walk(args: argparse.Namespace) -> int:
    spec = _spec_to_walk(args)
    say = sayer()
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


def _read_head(args: argparse.Namespace) -> AnyHead:
    from wts.heads.load import read_head

    return read_head(args.head, target=args.target, d2t_reading=args.d2t)


def _read_hidden(args: argparse.Namespace, head: AnyHead) -> torch.Tensor | None:
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


def _fidelity(args: argparse.Namespace) -> int:
    for name, value in (("batch", args.batch), ("steps", args.steps)):
        if value < 1:
            raise InputError.mismatch(name, wanted="at least 1", found=value, fix="ask for more")
    say = sayer()
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


def _doctor(args: argparse.Namespace) -> int:
    from wts import doctor

    say = sayer()
    say("loading torch and trying the compiler")
    print(doctor.report(doctor.examine()))
    return 0


def _bench_table(args: argparse.Namespace) -> int:
    from wts.bench.report.summary import render_file

    for path in args.files:
        print(render_file(path, every_point=args.every_point))
    return 0


def _bench(args: argparse.Namespace) -> int:
    if args.what == "serving":
        from wts.cli import bench_serving

        return bench_serving.main(args.options)
    if args.what == "all":
        from wts.cli import bench_all

        return bench_all.main(args.options)
    from wts.cli import bench_head

    return bench_head.main(args.options)


def _plot(args: argparse.Namespace) -> int:
    from wts.bench.report.draw import draw_all
    from wts.bench.report.points import load

    results = load(args.results)
    folder = _FIGURES / results.gpu if args.out is None else args.out
    only = () if args.figures is None else tuple(args.figures.split(","))
    say = sayer()
    for path in draw_all(results, folder, only=only, say=say):
        print(path)
    return 0
