"""Train the target on next tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lab.config import Recipe
from lab.data import Tokens
from lab.losses import Terms, judge, projected_loss
from lab.target import Target
from lab.training import Batches, Run, autocast, dtype_of, train

__all__ = ["text_loss", "train_target", "validate_target"]


def text_loss(
    model: Target,
    ids: torch.Tensor,
    *,
    precision: str,
    chunk: int,
    judged: Callable[..., Any] = judge,
) -> torch.Tensor:
    """Mean -ln p of the next tokens of int64 [B, T + 1]."""
    device = ids.device
    with autocast(device, precision):
        hidden, _ = model(ids[:, :-1], dtype=dtype_of(precision))
    rows = hidden.flatten(0, 1).to(dtype_of(precision))
    loss, _ = projected_loss(
        rows,
        output=model.embed_tokens.weight,
        labels=ids[:, 1:].flatten(),
        weights=torch.ones(len(rows), device=device),
        terms=Terms(),
        chunk=chunk,
        judged=judged,
    )
    return loss


def validate_target(
    model: Target, tokens: Tokens, recipe: Recipe, device: torch.device, *, batches: int = 4
) -> float:
    """Mean -ln p over windows of held-out text, the same ones each time."""
    windows = Batches.of(tokens, recipe.target_phase, 0, device)
    chunk = recipe.target_phase.chunk
    with torch.no_grad():
        found = [
            float(text_loss(model, windows.at(step), precision=recipe.precision, chunk=chunk))
            for step in range(batches)
        ]
    return sum(found) / len(found)


def train_target(
    recipe: Recipe,
    tokens: Tokens,
    folder: Path,
    device: torch.device,
    *,
    seed: int,
    steps: int | None = None,
    judged: Callable[..., Any] = judge,
    say: Callable[[str], None] = lambda text: None,
) -> Target:
    """Train a target, or go on with one.

    Args:
        recipe: sizes and settings.
        tokens: the text to train on.
        folder: for state and log.
        device: where to train.
        seed: of weights and batches.
        steps: an exact number in place of the budget in seconds.
        judged: `lab.losses.judge`, or the same compiled.
        say: told what is going on.
    """
    model = Target(recipe.target)
    model.initialise(seed)
    model.to(device)
    batches = Batches.of(tokens, recipe.target_phase, seed + 1, device)

    def losses(step: int, fraction: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ids = batches.at(step)
        chunk = recipe.target_phase.chunk
        loss = text_loss(model, ids, precision=recipe.precision, chunk=chunk, judged=judged)
        return loss, {}

    train(Run(folder=folder, phase=recipe.target_phase, steps=steps, say=say), model, losses)
    return model
