"""`wts demo`: the main job once, on whatever this machine has, and checked.

With a Hopper GPU: a head of Qwen3's vocabulary walks on the device, its tokens are compared with
the emulator's, and the walk is timed beside step-wise torch. Without one: the emulator executes
the plan of a few blocks, each as full as in the real thing, and is compared with the reference.
Then the head that ships with the package, if it is there, drafts behind real text.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wts.cli.doctor import device_obstacle
from wts.errors import CompileError, DeviceError
from wts.hardware.gpu import GPUS, LOCAL, GpuSpec
from wts.progress import Say, progress_printer

if TYPE_CHECKING:
    import torch

    from wts.heads.markov import MarkovHead
    from wts.walk.shipped import Sample
    from wts.walk.walker import Walker

__all__ = ["configure", "demonstrate", "run"]

_RANK = 256
_REAL_VOCAB = 151_936
# On 8 blocks it fills registers and shared memory of each just as 151,936 rows fill 132 blocks.
_SMALL_VOCAB = 8_209
_SMALL_BLOCKS = 8
_SEED = 7
_TIMED_ROUNDS = 30
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A walk's inputs."""

    base_logits: torch.Tensor
    anchor: torch.Tensor


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `wts demo` to a parser."""
    add = parser.add_argument
    add("--batch", type=int, default=1, metavar="B", help="requests (default 1)")
    add("--steps", type=int, default=16, metavar="K", help="steps (default 16)")
    add("--head", type=Path, metavar="DIR", help="a Markov drafter's folder: no random head")


def run(args: argparse.Namespace) -> int:
    """Walk one block; 1 if its tokens are wrong."""
    right = demonstrate(
        batch=args.batch, steps=args.steps, head_folder=args.head, say=progress_printer()
    )
    return 0 if right else 1


def demonstrate(*, batch: int, steps: int, head_folder: Path | None, say: Say) -> bool:
    """Walk one block and print what happened.

    Args:
        batch: requests walked together.
        steps: of the walk.
        head_folder: a drafter to read the head from; a random head by default.
        say: told what is going on.

    Returns:
        Whether the tokens were the right ones.

    Raises:
        WalkError: the head cannot be read or planned, or a walk was given up.
    """
    say("loading torch")
    obstacle = device_obstacle()
    from wts.walk.shipped import has_sample, load_sample

    right = _main_job(obstacle, batch, steps, head_folder, say)
    if head_folder is None and has_sample():
        right &= _on_sample(load_sample(), obstacle is None, say)
    return right


def _main_job(
    obstacle: str | None, batch: int, steps: int, head_folder: Path | None, say: Say
) -> bool:
    """Walk one block where nothing is in the way, else on the CPU."""
    if obstacle is None:
        head = _head(head_folder, _REAL_VOCAB, say)
        try:
            walker = _device_walker(head, batch, steps, say)
        except (CompileError, DeviceError) as error:
            obstacle = str(error)
        else:
            return _on_device(walker, _draw(head, batch, steps, "cuda"), say)
    print(f"No walk on a GPU here: {obstacle}. On the CPU instead:\n")
    head = _head(head_folder, _SMALL_VOCAB, say)
    spec = GPUS["h200"] if head_folder else GPUS["h200"].with_blocks(_SMALL_BLOCKS)
    return _on_cpu(head, spec, _draw(head, batch, steps, "cpu"), say)


def _head(folder: Path | None, vocab: int, say: Say) -> MarkovHead:
    from wts.heads.markov import MarkovHead

    if folder is not None:
        say(f"reading the head of {folder}")
        return MarkovHead.from_checkpoint(folder)
    say(f"drawing a random head, V = {vocab}, r = {_RANK}")
    return MarkovHead.random(vocab=vocab, rank=_RANK, seed=_SEED)


def _device_walker(head: MarkovHead, batch: int, steps: int, say: Say) -> Walker:
    from wts.kernels.planner import plan_residency
    from wts.walk.walker import Walker

    plan = plan_residency(head, LOCAL, batch=batch, steps=steps)
    say("packing the head and compiling its kernel (kept in the cache)")
    return Walker(head, plan, backend="device")


def _draw(head: MarkovHead, batch: int, steps: int, device: str) -> _Block:
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    base_logits = torch.randn(batch, steps, head.vocab, generator=generator).bfloat16()
    anchor = torch.randint(0, head.table_rows, (batch,), generator=generator)
    return _Block(base_logits=base_logits.to(device), anchor=anchor.to(device))


def _on_cpu(head: MarkovHead, spec: GpuSpec, block: _Block, say: Say) -> bool:
    from wts.kernels.planner import plan_residency
    from wts.walk.walker import Walker

    batch, steps, _ = block.base_logits.shape
    plan = plan_residency(head, spec, batch=batch, steps=steps)
    print(plan)
    say(f"walking {batch} x {steps} tokens on the emulator and on the reference")
    tokens = Walker(head, plan, backend="emulator")(block.base_logits, block.anchor)
    wanted = Walker(head, plan, backend="reference")(block.base_logits, block.anchor)
    _print_tokens(block.anchor, tokens)
    print(
        f"\nemulator (int8 head) and reference (unquantised head) agree on "
        f"{_num_same(tokens, wanted)} of {wanted.numel()} tokens"
    )
    num_wrong = _num_beyond_bound(head, block, tokens)
    print(
        "every token is the reference's best, or closer to it than quantisation explains"
        if num_wrong == 0
        else f"{num_wrong} tokens are further from the reference's best than quantisation explains"
    )
    return num_wrong == 0


def _on_sample(sample: Sample, with_device: bool, say: Say) -> bool:
    """Draft behind real text, on every backend there is, and compare."""
    from wts.kernels.planner import plan_residency
    from wts.walk.walker import Walker

    head, inputs = sample.head, sample.inputs
    batch, steps, _ = inputs.base_logits.shape
    spec = LOCAL if with_device else GPUS["h200"].with_blocks(_SMALL_BLOCKS)
    plan = plan_residency(head, spec, batch=batch, steps=steps)
    say(f"drafting {batch} x {steps} tokens behind real text with a trained head")
    int8 = Walker(head, plan, backend="emulator")(
        inputs.base_logits, inputs.anchor, hidden=inputs.hidden
    )
    formula = Walker(head, plan, backend="reference")(
        inputs.base_logits, inputs.anchor, hidden=inputs.hidden
    )
    print(f"\nA trained {head.kind} head of {head.vocab} tokens, behind real text:")
    for row in range(min(batch, _SHOWN)):
        anchor, drafted = inputs.anchor[row : row + 1], int8[row]
        real = drafted[:0] if inputs.tokens is None else inputs.tokens[row]
        texts = [sample.text_of(tokens) for tokens in (anchor, drafted, real)]
        if None in texts:
            texts = [" ".join(map(str, t.tolist())) for t in (anchor, drafted, real)]
        print(f"  {texts[0]!r} -> {texts[1]!r}, in the file {texts[2]!r}")
    print(
        "emulator (int8 head) and reference (unquantised head) agree on "
        f"{_num_same(int8, formula)} of {int8.numel()} tokens"
    )
    if not with_device:
        return True
    try:
        walker = Walker(head, plan, backend="device")
    except (CompileError, DeviceError) as error:
        print(f"no walk of it on the GPU: {error}")
        return True

    hidden = None if inputs.hidden is None else inputs.hidden.cuda()
    tokens = walker(inputs.base_logits.cuda(), inputs.anchor.cuda(), hidden=hidden)
    walker.check()
    # What hidden states add may be a library's product: the emulator is given the device's.
    term = walker.hidden_term()
    wanted = walker.twin()(inputs.base_logits, inputs.anchor, hidden_term=term)
    num_same = _num_same(tokens, wanted)
    print(f"device and emulator agree on {num_same} of {wanted.numel()} tokens")
    return num_same == wanted.numel()


def _on_device(walker: Walker, block: _Block, say: Say) -> bool:
    from wts.walk.walker import Walker

    print(walker.plan)
    batch, steps, _ = block.base_logits.shape
    say(f"walking {batch} x {steps} tokens on the device")
    tokens = walker(block.base_logits, block.anchor)
    walker.check()
    say("the same on the emulator, for comparison")
    emulator = Walker(walker.head, walker.plan, backend="emulator")
    wanted = emulator(block.base_logits.cpu(), block.anchor.cpu())
    _print_tokens(block.anchor, tokens)
    num_same = _num_same(tokens, wanted)
    print(f"\ndevice and emulator agree on {num_same} of {wanted.numel()} tokens")
    if num_same < wanted.numel():
        return False
    _time(walker, block, say)
    walker.check()
    return True


def _time(walker: Walker, block: _Block, say: Say) -> None:
    """Time the walk beside step-wise torch, both in CUDA graphs, replayed in turns, L2 cold."""
    from wts.bench.baselines.inputs import WalkInputs
    from wts.bench.baselines.torch_steps import step_torch
    from wts.bench.clock import time_interleaved
    from wts.heads.markov import MarkovHead

    say("timing it beside step-wise torch, L2 cold")
    device = block.base_logits.device
    head = walker.head
    inputs = WalkInputs(
        head=MarkovHead(
            table=head.table.to(device), projection=head.projection[: head.vocab].to(device)
        ),
        base_logits=block.base_logits,
        anchor=block.anchor,
    )
    timings = time_interleaved(
        {
            "wts": lambda: walker(block.base_logits, block.anchor),
            "step_torch": step_torch(inputs),
        },
        rounds=_TIMED_ROUNDS,
    )
    ours, theirs = timings["wts"].p50_us, timings["step_torch"].p50_us
    print(
        f"wts {ours:.1f} us, step-wise torch {theirs:.1f} us a block (medians of "
        f"{_TIMED_ROUNDS}, CUDA graphs, L2 cold): {theirs / ours:.1f} x"
    )


def _print_tokens(anchor: torch.Tensor, tokens: torch.Tensor) -> None:
    print()
    for token, row in zip(anchor.tolist(), tokens.tolist(), strict=True):
        print(f"  {token} -> {' '.join(map(str, row))}")


def _num_same(tokens: torch.Tensor, wanted: torch.Tensor) -> int:
    return int((tokens.cpu() == wanted.cpu()).sum())


def _num_beyond_bound(head: MarkovHead, block: _Block, tokens: torch.Tensor) -> int:
    """Count tokens whose reference logit is below the best by more than quantisation can move it.

    A weight is off by up to half a level of its row, a latent element by up to half a level of its
    latent; the step's dtype rounds the reference twice and the emulator once. Each step is judged
    after the tokens that were really drafted before it, so one near-tie is not counted again in
    every step that follows.
    """
    import torch

    from wts.numerics.quantise import LATENT_LEVELS, WEIGHT_LEVELS
    from wts.numerics.step_logits import step_logits

    weight = head.projection[: head.vocab].float()
    weight_level = weight.abs().amax(1) / WEIGHT_LEVELS
    weight_sum = weight.abs().sum(1) + head.rank * weight_level / 2
    previous = block.anchor
    num_beyond = 0
    for step, token in enumerate(tokens.unbind(1)):
        _, latent = head.latent(None, previous)
        base = block.base_logits[:, step, : head.vocab]
        logits = step_logits(head, base, latent)
        size = latent.float().abs()
        quantisation = size.sum(1, keepdim=True) * weight_level / 2
        quantisation += size.amax(1, keepdim=True) / LATENT_LEVELS * weight_sum / 2
        x = logits.float()
        rounding = torch.finfo(logits.dtype).eps / 2 * (3 * x.abs() + base.float().abs())
        error = 1.01 * (quantisation + rounding)  # second-order terms are below a hundredth
        best = x.argmax(1, keepdim=True)
        chosen = _draft_ids(head, token)[:, None]
        gap = x.gather(1, best) - x.gather(1, chosen)
        num_beyond += int((gap > error.gather(1, best) + error.gather(1, chosen)).sum())
        previous = token
    return num_beyond


def _draft_ids(head: MarkovHead, token: torch.Tensor) -> torch.Tensor:
    if head.draft_to_target is None:
        return token
    return (head.draft_to_target[: head.vocab] == token[:, None]).int().argmax(1)
