"""Model folders to serve where there are no trained ones: real shapes, random weights.

A target needs no weights here: SGLang fills it itself (`load_format="dummy"`, uniform in +-0.001).
A drafter needs some. Dummy weights depend on a tensor's size alone, so both matrices of a Markov
head would be equal and every step logit near-tied, which is not what a walk meets in service. So
the drafter's folder holds random weights of the deviations that its layers expect.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

__all__ = [
    "DOMINO_STATE_SIZE",
    "DRAFTERS",
    "GEOMETRIES",
    "HEAD_TYPES",
    "Drafter",
    "Geometry",
    "head_fields",
    "head_of",
    "steps_of",
    "write_drafter",
    "write_target",
]

Drafter: TypeAlias = Literal["dspark", "dspark-gated", "dspark-rnn", "domino"]
"""A DSpark drafter of a Markov, a gated or an RNN head, or a DFlash drafter of a Domino head."""

DRAFTERS: tuple[Drafter, ...] = ("dspark", "dspark-gated", "dspark-rnn", "domino")

DOMINO_STATE_SIZE = 1024
"""G of published Domino heads."""

_HEADS = {"dspark": "markov", "dspark-gated": "gated", "dspark-rnn": "rnn", "domino": "domino"}
HEAD_TYPES = {"markov": "vanilla", "gated": "gated", "rnn": "rnn"}
"""What a DSpark drafter's config calls a kind of head."""

# Of a dummy target's weights, uniform in +-0.001.
_DUMMY_DEVIATION = 1e-3 / math.sqrt(3)
# Of a random drafter's base logits: its head's biases are noise of deviation 1, a favourite at 10.
_BASE_DEVIATION = 2.0
# The place of the mask token before the end of the vocabulary: 151669 of 151936.
_MASK_FROM_END = 267


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The shape of a Qwen3 target and of the drafters that are made for it.

    Args:
        hidden: elements of a hidden state.
        intermediate: elements inside an MLP.
        layers: of the target.
        heads: attention heads.
        kv_heads: of keys and values.
        head_dim: elements of one.
        vocab: V, of target and drafter.
        tied: whether the target's lm_head is its embedding.
        draft_layers: of the drafter, which reads as many layers of the target.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    vocab: int = 151_936
    tied: bool = False
    draft_layers: int = 5

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The target's layers that a drafter reads, evenly spread: 1, 9, 17, 25, 33 of 36."""
        step = (self.layers - 4) / max(self.draft_layers - 1, 1)
        return tuple(1 + round(step * number) for number in range(self.draft_layers))


GEOMETRIES: dict[str, Geometry] = {
    "qwen3-4b": Geometry(
        hidden=2560, intermediate=9728, layers=36, heads=32, kv_heads=8, tied=True
    ),
    "qwen3-8b": Geometry(hidden=4096, intermediate=12288, layers=36, heads=32, kv_heads=8),
    # No model that anyone serves: to try the benchmark itself in little time.
    "tiny": Geometry(
        hidden=256,
        intermediate=512,
        layers=8,
        heads=4,
        kv_heads=2,
        head_dim=64,
        vocab=8192,
        tied=True,
        draft_layers=2,
    ),
}


def head_of(drafter: Drafter) -> str:
    """The kind of a drafter's head, as records name it."""
    return _HEADS[drafter]


def steps_of(drafter: Drafter, block: int) -> int:
    """K of a block. The first token of a Domino block is the one before its first step."""
    return block - 1 if drafter == "domino" else block


def write_target(folder: Path, geometry: Geometry) -> Path:
    """Write the folder of a target without weights, for `load_format="dummy"`."""
    fields = _backbone(geometry, layers=geometry.layers)
    fields |= {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": geometry.tied}
    return _write_config(folder, fields)


def write_drafter(
    folder: Path,
    geometry: Geometry,
    drafter: Drafter,
    *,
    block: int,
    rank: int,
    seed: int,
    device: str | torch.device = "cpu",
) -> Path:
    """Write the folder of a drafter with random weights, unless it is there already.

    The final norm is scaled so that, behind a dummy target's lm_head, base logits have a deviation
    of 2. What a head multiplies hidden states with, and a Domino head the target's small embedding,
    is scaled back.

    Args:
        folder: of this drafter alone.
        geometry: of its target.
        drafter: which kind.
        block: tokens of a block.
        rank: r of the head.
        seed: of the weights.
        device: where they are drawn; another device draws other ones.

    Source: sglang/srt/models/dflash.py and dspark.py (names and shapes of tensors),
        sglang/srt/speculative/dflash_utils.py and dspark_components/dspark_config.py (fields).
    """
    from safetensors.torch import save_file

    weights = folder / "model.safetensors"
    if weights.is_file():
        return folder
    fields = _backbone(geometry, layers=geometry.draft_layers)
    shared = {
        "block_size": block,
        "mask_token_id": geometry.vocab - _MASK_FROM_END,
        "target_layer_ids": list(geometry.target_layers),
        "num_target_layers": geometry.layers,
    }
    if drafter == "domino":
        fields |= {"block_size": block, "num_target_layers": geometry.layers}
    else:
        fields |= shared
    fields |= head_fields(
        head_of(drafter), shared, rank=rank, state=DOMINO_STATE_SIZE, shift_label=False
    )
    _write_config(folder, fields)
    tensors = _backbone_tensors(geometry, seed=seed, device=device)
    tensors |= _head_tensors(geometry, drafter, rank=rank, seed=seed, device=device)
    # Under its own name only once it is whole: a folder half written is written again.
    partial = folder / f"partial-{os.getpid()}.safetensors"
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial)
    partial.replace(weights)
    return folder


def head_fields(
    kind: str, shared: Mapping[str, object], *, rank: int, state: int, shift_label: bool
) -> dict[str, object]:
    """What config.json says of a drafter's architecture and head.

    Args:
        kind: of the head.
        shared: fields of block and target layers, which a Domino drafter has in dflash_config.
        rank: r.
        state: G of a Domino head.
        shift_label: of a Domino head.
    """
    if kind == "domino":
        return {
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {
                **shared,
                "projector_type": "domino",
                "emb_dim": rank,
                "gru_hidden_dim": state,
                "shift_label": shift_label,
                "pure_draft_prefix_len": 1,
            },
        }
    return {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": rank,
        "markov_head_type": HEAD_TYPES[kind],
        "enable_confidence_head": False,
        "confidence_head_with_markov": False,
    }


def _backbone(geometry: Geometry, *, layers: int) -> dict[str, object]:
    return {
        "model_type": "qwen3",
        "hidden_size": geometry.hidden,
        "intermediate_size": geometry.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
        "vocab_size": geometry.vocab,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 40_960,
        "max_window_layers": layers,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def _write_config(folder: Path, fields: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return folder


def _backbone_tensors(
    geometry: Geometry, *, seed: int, device: str | torch.device
) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        drawn = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        return drawn.normal_(0, 1 / math.sqrt(columns), generator=generator)

    def norm(size: int, value: float = 1.0) -> torch.Tensor:
        return torch.full((size,), value, dtype=torch.bfloat16, device=device)

    hidden, inner = geometry.hidden, geometry.intermediate
    queries = geometry.heads * geometry.head_dim
    keys = geometry.kv_heads * geometry.head_dim
    tensors = {
        "fc.weight": matrix(hidden, len(geometry.target_layers) * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden, _hidden_deviation(hidden)),
    }
    for number in range(geometry.draft_layers):
        layer = f"layers.{number}"
        tensors |= {
            f"{layer}.input_layernorm.weight": norm(hidden),
            f"{layer}.self_attn.q_proj.weight": matrix(queries, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(keys, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(keys, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, queries),
            f"{layer}.self_attn.q_norm.weight": norm(geometry.head_dim),
            f"{layer}.self_attn.k_norm.weight": norm(geometry.head_dim),
            f"{layer}.post_attention_layernorm.weight": norm(hidden),
            f"{layer}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    return tensors


def _hidden_deviation(size: int) -> float:
    """Of hidden states whose product with a dummy lm_head has the deviation of base logits."""
    return _BASE_DEVIATION / (_DUMMY_DEVIATION * math.sqrt(size))


def _scaled(weight: torch.Tensor, columns: slice, hidden: int) -> torch.Tensor:
    """A weight whose columns for hidden states are made for ones of deviation 1."""
    changed = weight.clone()
    changed[:, columns] /= _hidden_deviation(hidden)
    return changed


def _head_tensors(
    geometry: Geometry, drafter: Drafter, *, rank: int, seed: int, device: str | torch.device
) -> dict[str, torch.Tensor]:
    from wts.heads.dspark import W1, W2
    from wts.heads.gated import GatedHead
    from wts.heads.markov import MarkovHead
    from wts.heads.rnn import RnnHead

    vocab, hidden = geometry.vocab, geometry.hidden
    if drafter == "domino":
        return _domino_tensors(geometry, rank=rank, seed=seed, device=device)
    if drafter == "dspark-gated":
        gated = GatedHead.random(vocab=vocab, rank=rank, hidden_size=hidden, seed=seed)
        return {
            W1: gated.table,
            W2: gated.projection,
            "markov_head.gate_proj.weight": _scaled(gated.gate_weight, slice(hidden), hidden),
            "markov_head.gate_proj.bias": gated.gate_bias,
        }
    if drafter == "dspark-rnn":
        rnn = RnnHead.random(vocab=vocab, rank=rank, hidden_size=hidden, seed=seed)
        return {
            W1: rnn.table,
            W2: rnn.projection,
            "markov_head.joint_proj.weight": _scaled(
                rnn.joint_weight, slice(2 * rank, None), hidden
            ),
            "markov_head.joint_proj.bias": rnn.joint_bias,
        }
    markov = MarkovHead.random(vocab=vocab, rank=rank, seed=seed)
    return {W1: markov.table, W2: markov.projection}


def _domino_tensors(
    geometry: Geometry, *, rank: int, seed: int, device: str | torch.device
) -> dict[str, torch.Tensor]:
    """Drawn here: `DominoHead.random` draws a table too, which here is the target's embedding."""
    import torch

    generator = torch.Generator(device).manual_seed(seed + 1)

    def matrix(rows: int, columns: int, deviation: float = 1.0) -> torch.Tensor:
        drawn = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        return drawn.normal_(0, deviation / math.sqrt(columns), generator=generator)

    hidden, state = geometry.hidden, DOMINO_STATE_SIZE
    projector = torch.cat([matrix(rank, hidden, 0.3), matrix(rank, state, 4.0)], 1)
    return {
        "prefix_gru.weight_ih_l0": matrix(3 * state, hidden, 1.5 / _DUMMY_DEVIATION),
        "prefix_gru.weight_hh_l0": matrix(3 * state, state, 0.7),
        "embed_proj.0.weight": _scaled(projector, slice(hidden), hidden),
        "embed_proj.2.weight": matrix(geometry.vocab, rank),
    }
