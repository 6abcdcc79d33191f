"""Train a drafter on blocks of text behind random anchors, its target frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab.config import DrafterShape, Phase, Recipe, loss_of
from lab.data import Tokens
from lab.drafter import Drafter
from lab.losses import RowStats, judge, projected_loss, step_weights, terms_at
from lab.target import Target
from lab.training import Batches, Run, autocast, dtype_of, train

__all__ = ["Blocks", "block_loss", "draw_blocks", "start_from", "train_drafter", "validate_drafter"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Blocks to learn from: windows of text and anchors in them.

    Args:
        ids: int64 [B, T].
        anchors: int64 [B, N], ascending; every block ends inside of the window.
    """

    ids: torch.Tensor
    anchors: torch.Tensor

    def offset(self, first: int, count: int) -> torch.Tensor:
        """Positions anchor + first .. of each block, int64 [B, N count]."""
        steps = torch.arange(first, first + count, device=self.anchors.device)
        return (self.anchors[..., None] + steps).flatten(1)


def draw_blocks(batches: Batches, step: int, shape: DrafterShape, anchors: int) -> Blocks:
    """The blocks of one step. The first token is no anchor: it has no context."""
    ids = batches.at(step)[:, :-1]
    most = ids.shape[1] - shape.steps - 1
    generator = batches.generator(step, purpose=1)
    drawn = torch.randint(1, most + 1, (ids.shape[0], anchors), generator=generator)
    return Blocks(ids=ids, anchors=drawn.sort(1).values.to(ids.device))


def block_loss(
    drafter: Drafter,
    target: Target,
    blocks: Blocks,
    *,
    fraction: float,
    precision: str,
    chunk: int,
    with_target: bool,
    judged: Callable[..., Any] = judge,
) -> tuple[torch.Tensor, RowStats]:
    """The loss of a drafter over blocks, and what is known of its rows, step after step of a block.

    Args:
        drafter: trained.
        target: frozen.
        blocks: the blocks.
        fraction: of the training that is done.
        precision: of products.
        chunk: rows of logits at once.
        with_target: whether the target's distribution is compared with; an L1 term needs it.
        judged: `lab.losses.judge`, or the same compiled.
    """
    shape, loss = drafter.shape, loss_of(drafter.shape)
    steps, kind, device = shape.steps, dtype_of(precision), blocks.ids.device
    count = blocks.anchors.shape[1]
    with torch.no_grad(), autocast(device, precision):
        final, read = target(blocks.ids, read=shape.target_layers, dtype=kind)
    assert read is not None
    embedding = target.embed_tokens.weight.detach()
    prev = blocks.ids.gather(1, blocks.offset(0, steps))
    labels = blocks.ids.gather(1, blocks.offset(1, steps))
    with autocast(device, precision):
        positions = torch.arange(blocks.ids.shape[1], device=device).expand_as(blocks.ids)
        hidden = drafter.draft_hidden(
            embedding[blocks.ids.gather(1, blocks.anchors)].to(kind),
            embedding[shape.mask_token].to(kind),
            blocks.anchors,
            drafter.context(read.to(kind), positions),
        )
        hidden = hidden.flatten(0, 1).to(kind)
        prev = prev.view(-1, steps)
        rows = embedding[prev] if shape.kind == "domino" else hidden.new_zeros(0)
        latent = drafter.latents(hidden, prev, rows)
    # The target's opinion of the token at position i is its output at i - 1.
    index = blocks.offset(0, steps)[..., None].expand(-1, -1, final.shape[-1])
    wanted = final.gather(1, index).flatten(0, 1).to(kind)
    weights = step_weights(steps, loss.decay, device).repeat(len(blocks.ids) * count)
    return projected_loss(
        hidden.flatten(0, 1),
        output=embedding,
        labels=labels.flatten(),
        weights=weights,
        terms=terms_at(loss, fraction),
        chunk=chunk,
        latent=latent.flatten(0, 1).to(kind),
        projection=drafter.projection,
        target_hidden=wanted if with_target else None,
        judged=judged,
    )


def accepted_lengths(stats: RowStats, steps: int) -> dict[str, torch.Tensor]:
    """Mean accepted length of a round by teacher forcing, with the token that the target adds.

    `accepted` is that of sampling at T = 1, of rows whose target distribution was asked for;
    `accepted_greedy` counts leading steps whose largest logit is right.
    """
    greedy = stats.hit.view(-1, steps).cumprod(1).sum(1).mean() + 1
    numbers = {"accepted_greedy": greedy, "ce": stats.ce.mean()}
    if stats.accept is not None:
        numbers["accepted"] = stats.accept.view(-1, steps).cumprod(1).sum(1).mean() + 1
    return numbers


def start_from(drafter: Drafter, other: Drafter) -> list[str]:
    """Take over every weight that another drafter has under the same name and shape.

    The projection is taken along only between heads whose latents are alike, Markov and gated ones:
    to others its biases would be noise, and zero is the better start.

    Returns:
        The names of what was not taken over.
    """
    alike = {drafter.shape.kind, other.shape.kind} <= {"markov", "gated"}
    known = other.state_dict()
    left = []
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            mine = weight is drafter.projection and not (
                alike or drafter.shape.kind == other.shape.kind
            )
            if not mine and name in known and known[name].shape == weight.shape:
                weight.copy_(known[name])
            else:
                left.append(name)
    return left


def train_drafter(
    recipe: Recipe,
    name: str,
    target: Target,
    tokens: Tokens,
    folder: Path,
    device: torch.device,
    *,
    seed: int,
    start: Drafter | None = None,
    steps: int | None = None,
    judged: Callable[..., Any] = judge,
    say: Callable[[str], None] = lambda text: None,
) -> Drafter:
    """Train a drafter, or go on with one.

    Args:
        recipe: sizes and settings.
        name: of the drafter in it.
        target: trained, on the same device.
        tokens: the text to train on.
        folder: for state and log.
        device: where to train.
        seed: of weights and blocks.
        start: a drafter to start from.
        steps: an exact number in place of the budget in seconds.
        judged: `lab.losses.judge`, or the same compiled.
        say: told what is going on.
    """
    shape, phase = recipe.drafters[name], recipe.phases[name]
    drafter = Drafter(recipe.target, shape)
    drafter.initialise(seed)
    if start is not None:
        start_from(drafter, start)
    drafter.to(device)
    target.requires_grad_(False)
    batches = Batches.of(tokens, phase, seed + 1, device)

    def losses(step: int, fraction: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        blocks = draw_blocks(batches, step, shape, phase.anchors)
        loss, stats = block_loss(
            drafter,
            target,
            blocks,
            fraction=fraction,
            precision=recipe.precision,
            chunk=phase.chunk,
            with_target=loss_of(shape).l1 > 0,
            judged=judged,
        )
        return loss, accepted_lengths(stats, shape.steps)

    train(Run(folder=folder, phase=phase, steps=steps, say=say), drafter, losses)
    return drafter


def validate_drafter(
    drafter: Drafter,
    target: Target,
    tokens: Tokens,
    recipe: Recipe,
    phase: Phase,
    device: torch.device,
    *,
    batches: int = 2,
) -> dict[str, float]:
    """Accepted lengths by teacher forcing over blocks of held-out text, the same ones each time."""
    windows = Batches.of(tokens, phase, 0, device)
    sums: dict[str, float] = {}
    with torch.no_grad():
        for step in range(batches):
            blocks = draw_blocks(windows, step, drafter.shape, phase.anchors)
            _, stats = block_loss(
                drafter,
                target,
                blocks,
                fraction=1.0,
                precision=recipe.precision,
                chunk=phase.chunk,
                with_target=True,
            )
            for key, value in accepted_lengths(stats, drafter.shape.steps).items():
                sums[key] = sums.get(key, 0.0) + float(value) / batches
    return sums
