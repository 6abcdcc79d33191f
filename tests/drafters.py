"""Drafter folders for tests, written the way training frameworks write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from wts.heads.base import Head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.rnn import RnnHead

W1 = "markov_head.markov_w1.weight"
W2 = "markov_head.markov_w2.weight"
GATE = "markov_head.gate_proj"
JOINT = "markov_head.joint_proj"
GRU_INPUT = "prefix_gru.weight_ih_l0"
GRU_STATE = "prefix_gru.weight_hh_l0"
PROJECTOR = "embed_proj.0.weight"
DOMINO_W = "embed_proj.2.weight"
EMBEDDING = "embed_tokens.weight"


def domino_fields(head: DominoHead) -> dict[str, Any]:
    """What a Domino drafter's config says in `dflash_config`."""
    return {
        "projector_type": "domino",
        "emb_dim": head.rank,
        "gru_hidden_dim": head.state_size,
        "shift_label": head.shift_label,
        "pure_draft_prefix_len": 1,
    }


def write_config(folder: Path, head: Head, **changes: object) -> None:
    """Write config.json for a head; a change to None removes the field."""
    fields: dict[str, Any] = {"vocab_size": head.table_rows, "block_size": 7}
    if head.hidden_size is not None:
        fields["hidden_size"] = head.hidden_size
    if isinstance(head, DominoHead):
        fields |= {"architectures": ["DFlashDraftModel"], "dflash_config": domino_fields(head)}
    else:
        types = {"markov": "vanilla", "gated": "gated", "rnn": "rnn"}
        fields |= {
            "architectures": ["Qwen3DSparkModel"],
            "markov_rank": head.rank,
            "markov_head_type": types[head.kind],
        }
    if head.vocab != head.table_rows:
        fields["draft_vocab_size"] = head.vocab
    fields |= changes
    kept = {name: value for name, value in fields.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def head_tensors(head: Head, *, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint of this head holds, d2t as offsets."""
    tensors = {W1: head.table, W2: head.projection}
    if isinstance(head, GatedHead):
        tensors |= {f"{GATE}.weight": head.gate_weight, f"{GATE}.bias": head.gate_bias}
    if isinstance(head, RnnHead):
        tensors |= {f"{JOINT}.weight": head.joint_weight, f"{JOINT}.bias": head.joint_bias}
    if isinstance(head, DominoHead):
        tensors = {
            GRU_INPUT: head.gru_input_weight,
            GRU_STATE: head.gru_state_weight,
            PROJECTOR: head.projector_weight,
            DOMINO_W: head.projection,
        }
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    if head.draft_to_target is not None:
        ids = head.draft_to_target[: head.vocab]
        tensors[prefix + "d2t"] = ids - torch.arange(ids.numel())
    return tensors


def write_target(folder: Path, head: Head, *, prefix: str = "model.") -> Path:
    """Write the folder of a target model whose embedding is a head's table, with some padding."""
    folder.mkdir(parents=True, exist_ok=True)
    padding = torch.full((3, head.table.shape[1]), 9.0).to(head.table.dtype)
    embedding = torch.cat([head.table, padding])
    save_file({prefix + EMBEDDING: embedding}, folder / "model.safetensors")
    return folder


def write_drafter(
    folder: Path,
    head: Head,
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
