"""Heads of given rows, and reports of random inputs."""

from __future__ import annotations

from typing import Any

import torch

from wts.fidelity import examine
from wts.heads.markov import MarkovHead
from wts.walk.recorded import draw_inputs


def of_rows(rows: torch.Tensor, **more: Any) -> MarkovHead:
    """A head of this projection."""
    return MarkovHead(table=torch.ones(max(len(rows), 50), rows.shape[1]), projection=rows, **more)


def examine_random(head: Any, requests: int = 3, steps: int = 2) -> dict[str, Any]:
    return examine(head, draw_inputs(head, requests=requests, steps=steps, seed=4))
