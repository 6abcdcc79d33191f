"""Checkpoint folders as SGLang loads them: Qwen3ForCausalLM, Qwen3DSparkModel, DFlashDraftModel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lab.config import DrafterShape, TargetShape
from lab.drafter import Drafter
from lab.target import Target
from wts.bench.serving.models import HEAD_TYPES, head_fields
from wts.heads.base import Head
from wts.heads.load import read_head

__all__ = [
    "drafters_in",
    "load_drafter",
    "load_head",
    "load_target",
    "save_drafter",
    "save_target",
    "write_tensors",
]


def _qwen3_fields(shape: TargetShape, layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def _write(folder: Path, fields: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    held = {name: tensor.detach().bfloat16().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(folder / "model.safetensors", held)


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file that others may read too."""
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def save_target(model: Target, folder: Path, *, end_token: int) -> Path:
    """Write a target in bf16."""
    fields = _qwen3_fields(model.shape, model.shape.layers)
    fields |= {
        "architectures": ["Qwen3ForCausalLM"],
        "bos_token_id": end_token,
        "eos_token_id": end_token,
    }
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    _write(folder, fields, tensors)
    return folder


def drafter_fields(target: TargetShape, shape: DrafterShape) -> dict[str, Any]:
    """What config.json says of a drafter."""
    shared = {
        "block_size": shape.queries,
        "num_target_layers": target.layers,
        "target_layer_ids": list(shape.target_layers),
        "mask_token_id": shape.mask_token,
    }
    head = head_fields(
        shape.kind, shared, rank=shape.rank, state=shape.state, shift_label=shape.shift_label
    )
    return _qwen3_fields(target, shape.layers) | shared | head


def save_drafter(model: Drafter, folder: Path) -> Path:
    """Write a drafter in bf16; embedding and output projection stay with its target."""
    _write(folder, drafter_fields(model.target_shape, model.shape), model.state_dict())
    return folder


def _load(model: nn.Module, tensors: dict[str, torch.Tensor], device: torch.device) -> None:
    model.to(torch.bfloat16)
    model.load_state_dict(tensors)
    model.to(device).eval().requires_grad_(False)


def _fields(folder: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return fields


def _target_shape(fields: dict[str, Any], layers: int) -> TargetShape:
    return TargetShape(
        vocab=fields["vocab_size"],
        hidden=fields["hidden_size"],
        layers=layers,
        heads=fields["num_attention_heads"],
        kv_heads=fields["num_key_value_heads"],
        head_dim=fields["head_dim"],
        intermediate=fields["intermediate_size"],
        rope_theta=fields["rope_theta"],
        max_positions=fields["max_position_embeddings"],
    )


def drafters_in(models: Path) -> list[str]:
    """Names of the drafters that `lab.run` has left in a folder, beside their target."""
    folders = sorted(p for p in models.iterdir() if (p / "config.json").is_file())
    return [folder.name for folder in folders if folder.name != "target"]


def load_target(folder: Path, device: torch.device) -> Target:
    """Read a target that `save_target` wrote, in bf16, not to be trained."""
    fields = _fields(folder)
    model = Target(_target_shape(fields, fields["num_hidden_layers"]))
    tensors = load_file(folder / "model.safetensors")
    held = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    _load(model, held, device)
    return model


def load_drafter(folder: Path, device: torch.device) -> Drafter:
    """Read a drafter that `save_drafter` wrote, in bf16, not to be trained."""
    fields = _fields(folder)
    domino = fields.get("dflash_config")
    kinds = {name: kind for kind, name in HEAD_TYPES.items()}
    shape = DrafterShape(
        kind="domino" if domino else kinds[fields["markov_head_type"]],
        steps=fields["block_size"] - (1 if domino else 0),
        layers=fields["num_hidden_layers"],
        target_layers=tuple(fields["target_layer_ids"]),
        rank=domino["emb_dim"] if domino else fields["markov_rank"],
        mask_token=fields["mask_token_id"],
        state=domino["gru_hidden_dim"] if domino else 0,
        shift_label=domino["shift_label"] if domino else True,
    )
    model = Drafter(_target_shape(fields, fields["num_target_layers"]), shape)
    _load(model, load_file(folder / "model.safetensors"), device)
    return model


def load_head(models: Path, name: str, device: torch.device) -> Head:
    """Read the head of a drafter in a folder of `lab.run`, as the package does, with its target."""
    domino = "dflash_config" in _fields(models / name)
    return read_head(models / name, target=models / "target" if domino else None, device=device)
