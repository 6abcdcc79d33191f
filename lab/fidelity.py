"""`wts fidelity` of trained drafters on real text: `python -m lab.fidelity DATA MODELS OUT`.

Base logits and hidden states are recorded at anchors in held-out files and examined at once: those
of a whole vocabulary are too large to keep. OUT gets NAME.json and NAME.png of each drafter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lab.checkpoints import drafters_in, load_drafter, load_head, load_target
from lab.data import Tokens, read_tokens
from lab.drafter import Drafter
from lab.draw import draw_below
from lab.export import Kept, choose_places, record_blocks
from lab.target import Target
from wts.fidelity import examine
from wts.progress import progress_printer
from wts.walk.recorded import Inputs

__all__ = ["record_whole"]


def record_whole(
    target: Target, drafter: Drafter, tokens: Tokens, *, requests: int, seed: int = 0
) -> Inputs:
    """Record inputs of a drafter's head over its whole vocabulary.

    Args:
        target: of the drafter, on the same device.
        drafter: of any kind.
        tokens: held-out text.
        requests: blocks, fewer where there are not as many files.
        seed: of the places.
    """
    everything = np.arange(target.shape.vocab)
    kept = Kept(target=everything, draft=everything)
    steps = drafter.shape.steps
    places = choose_places(tokens, kept, steps=steps, count=requests, seed=seed)
    device = target.embed_tokens.weight.device
    found = {
        name: value.to(device)
        for name, value in record_blocks(target, drafter, places, kept).items()
    }
    return Inputs(
        base_logits=found["base_logits"],
        anchor=found["anchor"],
        hidden=None if drafter.shape.kind == "markov" else found["hidden"],
        tokens=found["tokens"],
        recorded=True,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.fidelity", description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="what lab.data wrote")
    parser.add_argument("models", type=Path, help="what lab.run wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafter", action="append", metavar="NAME", help="all by default")
    parser.add_argument("--requests", type=int, default=128, help="blocks to record")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    say = progress_printer()

    device = torch.device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    tokens = read_tokens(args.data / "val.npz")
    target = load_target(args.models / "target", device)
    for name in args.drafter or drafters_in(args.models):
        drafter = load_drafter(args.models / name, device)
        head = load_head(args.models, name, device)
        say(f"{name}: recording")
        inputs = record_whole(target, drafter, tokens, requests=args.requests)
        report = examine(head, inputs, say=say)
        (args.out / f"{name}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
        weights, steps = report["weights"], report["steps"]
        say(
            f"{name}: {weights['share_below_crossover']:.1%} of weights below the crossover; error "
            f"of rows int8 {weights['error']['int8']:.4f}, E4M3 {weights['error']['e4m3']:.4f}; "
            f"flips int8 {steps['flip_rate']['int8']:.3%}, E4M3 {steps['flip_rate']['e4m3']:.3%}"
        )
    draw_below(args.out, say)


if __name__ == "__main__":
    main()
