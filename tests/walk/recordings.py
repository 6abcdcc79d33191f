"""Recorded inputs that tests make up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from wts.walk.recorded import draw_inputs


def save_inputs(path: Path, head: Any, **changes: torch.Tensor | None) -> Path:
    drawn = draw_inputs(head, requests=2, steps=3, seed=1)
    tensors = {"base_logits": drawn.base_logits, "anchor": drawn.anchor, "hidden": drawn.hidden}
    held = {name: value for name, value in (tensors | changes).items() if value is not None}
    save_file(held, path)
    return path
