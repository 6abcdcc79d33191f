"""Train everything of a recipe: `python -m lab.run DATA OUT`.

OUT gets a folder per model: `target`, and one for each drafter, with config.json and
model.safetensors; `training/NAME` beside them has the log and the state to go on from. A model
whose folder is complete is not trained again, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lab.checkpoints import load_drafter, load_target, save_drafter, save_target
from lab.config import RECIPES, Recipe, with_budgets
from lab.data import Tokens, read_tokens
from lab.losses import judge
from lab.target import Target
from lab.train_drafter import train_drafter, validate_drafter
from lab.train_target import train_target, validate_target
from wts.progress import Say, progress_printer

__all__ = ["run_recipe"]


def _done(folder: Path) -> bool:
    return (folder / "model.safetensors").is_file()


def _record(out: Path, name: str, numbers: dict[str, float], say: Say) -> None:
    say(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in numbers.items()))
    path = out / "validation.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    known[name] = {key: round(value, 5) for key, value in numbers.items()}
    path.write_text(json.dumps(known, indent=1) + "\n")


def _target(
    recipe: Recipe,
    train: Tokens,
    val: Tokens,
    out: Path,
    device: torch.device,
    *,
    seed: int,
    steps: int | None,
    judged: Callable[..., Any],
    say: Say,
) -> Target:
    folder = out / "target"
    if not _done(folder):
        say("training the target")
        log = out / "training" / "target"
        model = train_target(
            recipe, train, log, device, seed=seed, steps=steps, judged=judged, say=say
        )
        _record(out, "target", {"ce": validate_target(model, val, recipe, device)}, say)
        save_target(model, folder, end_token=recipe.end_token)
    # Drafters learn from the weights that will be served.
    return load_target(folder, device)


def run_recipe(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    device: torch.device,
    only: Sequence[str] | None = None,
    seed: int = 0,
    steps: int | None = None,
    compiled: bool = False,
    say: Say = lambda text: None,
) -> None:
    """Train the target and the drafters of a recipe, each only where it is not there yet.

    Args:
        recipe: what to train.
        data: folder with train.npz and val.npz.
        out: folder for the models.
        device: where to train.
        only: names of drafters; all by default.
        seed: of weights and batches.
        steps: of each training, in place of budgets in seconds; such a run repeats.
        compiled: whether the losses are compiled, which takes some seconds and then saves many.
        say: told what is going on.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    train, val = read_tokens(data / "train.npz"), read_tokens(data / "val.npz")
    judged: Callable[..., Any] = torch.compile(judge, dynamic=True) if compiled else judge
    target = _target(
        recipe, train, val, out, device, seed=seed, steps=steps, judged=judged, say=say
    )
    if recipe.precision == "fp32":
        target.float()
    for name in recipe.drafters:
        if (only is not None and name not in only) or _done(out / name):
            continue
        say(f"training {name}")
        start = recipe.starts.get(name)
        if start is not None and not _done(out / start):
            say(f"{start} is not there: {name} starts from nothing")
            start = None
        drafter = train_drafter(
            recipe,
            name,
            target,
            train,
            out / "training" / name,
            device,
            seed=seed + 100,
            start=None if start is None else load_drafter(out / start, torch.device("cpu")).float(),
            steps=steps,
            judged=judged,
            say=say,
        )
        numbers = validate_drafter(drafter, target, val, recipe, recipe.phases[name], device)
        _record(out, name, numbers, say)
        save_drafter(drafter, out / name)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.run", description="Train the models of a recipe.")
    parser.add_argument("data", type=Path, help="what lab.data wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="h200")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="drafters; none: the target only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=1.0, help="share of the recipe's seconds")
    parser.add_argument("--steps", type=int, help="of each training, in place of seconds")
    parser.add_argument("--compile", action="store_true", help="compile the losses")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    say = progress_printer()

    run_recipe(
        with_budgets(RECIPES[args.recipe], args.budget),
        args.data,
        args.out,
        device=torch.device(args.device),
        only=args.only,
        seed=args.seed,
        steps=args.steps,
        compiled=args.compile,
        say=say,
    )


if __name__ == "__main__":
    main()
