"""What tests of the lab share: a small text and small models."""

from __future__ import annotations

from pathlib import Path

import torch

import wts
from lab.checkpoints import save_drafter, save_target
from lab.config import RECIPES, DrafterShape, Recipe
from lab.data import byte_encoder, prepare
from lab.drafter import Drafter
from lab.target import Target
from lab.train_drafter import Blocks

SMOKE: Recipe = RECIPES["smoke"]
CPU = torch.device("cpu")
NAMES = tuple(SMOKE.drafters)


def write_data(folder: Path) -> Path:
    """The sources of the package as a text."""
    encode, end = byte_encoder()
    root = Path(wts.__file__).parent
    prepare(
        folder, roots=[root], encode=encode, end_token=end, most_tokens=400_000, most_of_one=1.0
    )
    return folder


def random_target(seed: int = 1) -> Target:
    """A target of random weights that are large enough to tell tokens apart."""
    target = Target(SMOKE.target)
    target.initialise(seed)
    with torch.no_grad():
        target.embed_tokens.weight.mul_(20)
    return target


def random_drafter(shape: DrafterShape, seed: int = 2) -> Drafter:
    """A drafter of random weights, its projection too."""
    drafter = Drafter(SMOKE.target, shape)
    drafter.initialise(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        drafter.projection.copy_(torch.randn(drafter.projection.shape, generator=generator) / 4)
        for name, weight in drafter.named_parameters():
            if name.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    return drafter


def random_blocks(
    shape: DrafterShape, *, batch: int = 2, length: int = 30, seed: int = 3
) -> Blocks:
    """Blocks in a random text."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (batch, length), generator=generator)
    anchors = torch.randint(1, length - shape.steps - 1, (batch, 4), generator=generator)
    return Blocks(ids=ids, anchors=anchors.sort(1).values)


def save_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Checkpoint folders of a random drafter of the smoke recipe and its target."""
    drafter = random_drafter(SMOKE.drafters[name])
    target = save_target(random_target(), folder / "target", end_token=SMOKE.end_token)
    return save_drafter(drafter, folder / name), target
