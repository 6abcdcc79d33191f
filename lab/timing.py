"""How long walks of trained heads take: `python -m lab.timing DATA MODELS OUT`, on a GPU.

Blocks are recorded at anchors in held-out files, whole vocabulary and all, and walked one request
at a time by the int8 walk and by the exact walk: what exactness costs depends on how many rows are
close to the best one, and a trained head's are not those of a random head. Beside the times: the
share of steps that exact logits decided, and how often the base logits' best token is the drafted
one, with how many rounds a walk would take that guessed so and verified several steps at once.

Tokens are compared first: the exact walk's with the formula's or the emulator's, the int8 walk's
with the emulator's. OUT gets timing.json and records for benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.checkpoints import drafters_in, load_drafter, load_head, load_target
from lab.data import read_tokens
from lab.fidelity import record_whole
from wts.bench import record
from wts.bench.clock import CacheControl, Timing, capture, time_replays
from wts.bench.compare import compare
from wts.hardware.gpu import LOCAL
from wts.heads.base import Head
from wts.kernels.planner import plan_residency
from wts.progress import progress_printer
from wts.walk.recorded import Inputs
from wts.walk.walker import Walker

__all__ = ["rounds_with_guesses", "time_walks"]

_WINDOWS = (2, 4, 8)


def rounds_with_guesses(right: torch.Tensor, window: int) -> float:
    """Rounds that walks would take if every step's predecessor but the first one's were guessed.

    A round takes `window` steps at once. The first of them knows its predecessor; each other one
    counts if all tokens of the round before it are what was guessed.

    Args:
        right: bool [B, K], whether the token of a step is what was guessed for it.
        window: steps of a round.

    Returns:
        The mean over walks.
    """
    total = 0
    for row in right.tolist():
        step = 0
        while step < len(row):
            taken = 1
            while taken < window and step + taken < len(row) and row[step + taken - 1]:
                taken += 1
            step += taken
            total += 1
    return total / len(right)


def _walkers(head: Head, steps: int) -> dict[str, Walker]:
    found = {}
    for path, exact in (("wts", False), ("wts_exact", True)):
        plan = plan_residency(head, LOCAL, batch=1, steps=steps, exact=exact)
        found[path] = Walker(head, plan, backend="device")
    return found


def _check(walkers: dict[str, Walker], inputs: Inputs, blocks: int) -> None:
    """Compare the tokens of some blocks with the emulator's.

    Raises:
        WalkFault: they are others.
    """
    for path, walker in walkers.items():
        twin = walker.twin()
        for block in range(min(blocks, len(inputs.anchor))):
            base, anchor, hidden = _block(inputs, block)
            found = walker(base, anchor, hidden=hidden)
            wanted = twin(base.cpu(), anchor.cpu(), hidden_term=walker.hidden_term())
            compare(f"tokens of {path}, block {block}", found.cpu(), wanted)


def _block(inputs: Inputs, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    one = slice(block, block + 1)
    hidden = None if inputs.hidden is None else inputs.hidden[one]
    return inputs.base_logits[one], inputs.anchor[one], hidden


def time_walks(
    head: Head, inputs: Inputs, *, rounds: int, checked: int
) -> tuple[dict[str, Timing], dict[str, Any], dict[str, Walker]]:
    """Time both walks of each recorded block, L2 cold, and count what decided.

    Args:
        head: trained, on the GPU.
        inputs: blocks of it, there too.
        rounds: replays of each block.
        checked: blocks whose tokens are compared with the emulator's first.

    Returns:
        Times of all blocks together by path; shares and counts; the Walkers.

    Raises:
        WalkFault: tokens differ from the emulator's.
    """
    requests, steps, _ = inputs.base_logits.shape
    walkers = _walkers(head, steps)
    _check(walkers, inputs, checked)
    tokens, unlike = [], 0
    before = walkers["wts_exact"].report()
    for block in range(requests):
        base, anchor, hidden = _block(inputs, block)
        found = walkers["wts_exact"](base, anchor, hidden=hidden)
        unlike += not torch.equal(found, walkers["wts"](base, anchor, hidden=hidden))
        tokens.append(found)
    after = walkers["wts_exact"].report()
    decided = after.rescored_steps - before.rescored_steps
    right = torch.cat(tokens) == inputs.base_logits[:, :, : head.vocab].argmax(2)
    numbers = {
        "blocks": requests,
        "blocks_unlike_int8": unlike,
        "rescored_share": decided / (requests * steps),
        "rescored_rows": (after.rescored_rows - before.rescored_rows) / max(1, decided),
        "base_best_share": float(right.float().mean()),
        "rounds_with_guesses": {w: rounds_with_guesses(right, w) for w in _WINDOWS},
    }
    control = CacheControl()
    samples: dict[str, list[float]] = {path: [] for path in walkers}
    for block in range(requests):
        base, anchor, hidden = _block(inputs, block)
        calls = {
            path: partial(walker, base, anchor, hidden=hidden) for path, walker in walkers.items()
        }
        timed = time_replays(capture(calls), cache="cold", control=control, rounds=rounds)
        for path, timing in timed.items():
            samples[path] += timing.samples_us
    for walker in walkers.values():
        walker.check()
    timings = {path: Timing(name=path, samples_us=tuple(found)) for path, found in samples.items()}
    return timings, numbers, walkers


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.timing", description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="what lab.data wrote")
    parser.add_argument("models", type=Path, help="what lab.run wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafter", action="append", metavar="NAME", help="all by default")
    parser.add_argument("--requests", type=int, default=32, help="blocks to record")
    parser.add_argument("--checked", type=int, default=1, help="blocks compared with the emulator")
    parser.add_argument("--rounds", type=int, default=5, help="replays of each block")
    parser.add_argument("--commit", help="git describe --always --dirty, where there is no git")
    args = parser.parse_args(argv)
    say = progress_printer()

    device = torch.device("cuda")
    args.out.mkdir(parents=True, exist_ok=True)
    tokens = read_tokens(args.data / "val.npz")
    target = load_target(args.models / "target", device)
    environment = record.capture_environment(described=args.commit)
    run_id = record.new_run_id()
    report = {}
    for name in args.drafter or drafters_in(args.models):
        drafter = load_drafter(args.models / name, device)
        head = load_head(args.models, name, device)
        inputs = record_whole(target, drafter, tokens, requests=args.requests)
        timings, numbers, walkers = time_walks(
            head, inputs, rounds=args.rounds, checked=args.checked
        )
        int8, exact = timings["wts"].p50_us, timings["wts_exact"].p50_us
        report[name] = {**numbers, "int8_us": int8, "exact_us": exact}
        say(
            f"{name}: int8 {int8:.1f} us, exact {exact:.1f} us ({exact / int8 - 1:+.1%}); exact "
            f"logits decided {numbers['rescored_share']:.1%} of steps; base logits' best is drafted"
            f" in {numbers['base_best_share']:.1%}; rounds with guesses "
            f"{numbers['rounds_with_guesses']}"
        )
        for path, timing in timings.items():
            rescored = {}
            if path == "wts_exact":
                rescored = {k: numbers[k] for k in ("rescored_share", "rescored_rows")}
            line = record.build(
                environment, bench="trained", run_id=run_id, path=path, head=head.kind,
                weights="int8", V=head.vocab, r=head.rank, B=1, K=inputs.base_logits.shape[1],
                T=0.0, cache="cold", inputs="recorded", excludes="",
                p50_us=timing.p50_us, p05_us=timing.p05_us, p95_us=timing.p95_us,
                n=timing.num_samples, resident_share=walkers[path].plan.placement.resident_share,
                plan=walkers[path].plan.hash, **rescored,
            )  # fmt: skip
            record.append(args.out / "results", line)
        (args.out / "timing.json").write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
