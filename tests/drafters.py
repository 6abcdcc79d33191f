"""Drafter folders for tests, written the way training frameworks write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from wts.heads import MarkovHead

W1 = "markov_head.markov_w1.weight"
W2 = "markov_head.markov_w2.weight"


def write_config(folder: Path, head: MarkovHead, **changes: object) -> None:
    """Write config.json for a head; a change to None removes the field."""
    fields: dict[str, Any] = {
        "architectures": ["Qwen3DSparkModel"],
        "vocab_size": head.table_rows,
        "markov_rank": head.rank,
        "markov_head_type": "vanilla",
        "block_size": 7,
    }
    if head.vocab != head.table_rows:
        fields["draft_vocab_size"] = head.vocab
    fields |= changes
    kept = {name: value for name, value in fields.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def head_tensors(head: MarkovHead, *, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint of this head holds, d2t as offsets."""
    tensors = {prefix + W1: head.table, prefix + W2: head.projection}
    if head.draft_to_target is not None:
        ids = head.draft_to_target[: head.vocab]
        tensors[prefix + "d2t"] = ids - torch.arange(ids.numel())
    return tensors


def write_drafter(
    folder: Path,
    head: MarkovHead,
    *,
    tensors: Mapping[str, torch.Tensor] | None = None,
    shards: int = 1,
    **config: object,
) -> Path:
    """Write a whole drafter folder, in shards with an index if more than one is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, head, **config)
    held = dict(head_tensors(head) if tensors is None else tensors)
    held["model.layers.0.mlp.up_proj.weight"] = torch.zeros(4, 4)
    if shards == 1:
        save_file(held, folder / "model.safetensors")
        return folder
    files: dict[str, dict[str, torch.Tensor]] = {}
    for number, (name, tensor) in enumerate(held.items()):
        file = f"model-{number % shards + 1:05}-of-{shards:05}.safetensors"
        files.setdefault(file, {})[name] = tensor
    for file, part in files.items():
        save_file(part, folder / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
