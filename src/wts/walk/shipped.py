"""The sample that ships: a small head cut out of a trained drafter, and blocks of real text.

So the main job runs on real input on any machine. It was made by lab/export.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from wts.errors import InputError
from wts.heads.base import Head
from wts.heads.load import read_head
from wts.walk.recorded import Inputs, read_inputs

__all__ = ["FOLDER", "Sample", "has_sample", "load_sample"]

FOLDER = Path(__file__).parents[1] / "data" / "sample"
"""Where the sample lies in an installed package."""

_RECORDED = "recorded.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A head and what its drafter had for it.

    Args:
        head: the head, with a reduced draft vocabulary.
        inputs: recorded base logits, hidden states and anchors, and the text behind them.
        texts: the text of each target token; None where they are not there.
    """

    head: Head
    inputs: Inputs
    texts: tuple[str, ...] | None

    def text_of(self, tokens: torch.Tensor) -> str | None:
        """The text of target tokens int64 [n]; None where texts are not there."""
        if self.texts is None:
            return None
        return "".join(self.texts[token] for token in tokens.tolist())


def has_sample(folder: Path = FOLDER) -> bool:
    """Whether the sample is there."""
    return (folder / _RECORDED).is_file()


def load_sample(folder: Path = FOLDER, *, device: str | torch.device = "cpu") -> Sample:
    """Read the sample.

    Args:
        folder: where it lies.
        device: where its tensors go.

    Raises:
        InputError: it is not there.
        CheckpointError: it cannot be read.
    """
    if not has_sample(folder):
        raise InputError.mismatch(
            "folder",
            wanted=f"a sample, with {_RECORDED}",
            found=f"none in {folder}",
            fix="install the whole package, or make one with lab/export.py",
        )
    head = read_head(folder, device=device)
    texts = folder / "texts.json"
    return Sample(
        head=head,
        inputs=read_inputs(folder / _RECORDED, head),
        texts=tuple(json.loads(texts.read_text(encoding="utf-8"))) if texts.is_file() else None,
    )
