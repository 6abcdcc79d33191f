"""SGLang's modules as heads: DSpark's head by its parts and a trial, Domino's by its three modules.

Source:
    SGLang 0.5.23, sglang/srt/models/dspark.py, sglang/srt/models/dflash.py and
    sglang/srt/speculative/domino_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from wts.engines.common.adopt import dspark_head, has_adapter, plain_weight, why_other_bias
from wts.engines.common.reasons import Reason
from wts.errors import WalkError
from wts.heads.base import Head
from wts.heads.domino import DominoHead

__all__ = ["adopt_domino", "adopt_dspark", "behaves", "plain_embedding"]


def adopt_dspark(module: Any) -> Head | Reason:
    """Make a head of a DSpark draft model's `markov_head`; its weights are shared, not copied.

    Args:
        module: VanillaMarkov, GatedMarkovHead, RNNHead or anything built of the same parts.

    Returns:
        The head, or why the module is none that walks.
    """
    if getattr(module, "vocab_shard", None) is not None or (
        getattr(module, "_tp_shard", None) is not None
    ):
        return Reason(
            kind="tensor parallelism",
            text="the projection is sharded over ranks; SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD=0 "
            "replicates it",
        )
    return dspark_head(module)


@dataclass(frozen=True, slots=True)
class _Trial:
    """SGLang's way to ask a DSpark module for a bias."""

    module: Any

    def start(self, hidden: torch.Tensor | None) -> Any:
        return self.module.init_state(None if hidden is None else hidden[:, None])

    def bias(
        self, tokens: torch.Tensor, hidden: torch.Tensor | None, state: Any
    ) -> tuple[torch.Tensor, Any]:
        bias, state = self.module.step_bias(tokens, hidden_states=hidden, state=state)
        return bias, state


def behaves(module: Any, head: Head) -> Reason | None:
    """Try a DSpark module on a few tokens: its bias has to be what the head's formula gives.

    Args:
        module: the module.
        head: what was made of it.
    """
    return why_other_bias(type(module).__name__, _Trial(module), head)


def adopt_domino(
    *,
    target_embedding: Any,
    prefix_gru: Any,
    embed_proj: Any,
    vocab_size: int,
    shift_label: bool,
) -> DominoHead | Reason:
    """Make a head of the modules that the Domino rollout is given.

    Returns:
        The head, or why it cannot walk.
    """
    reason = _why_not_modules(target_embedding, prefix_gru, embed_proj)
    if reason is not None:
        return reason
    parts: dict[str, torch.Tensor] = {}
    for name, owner in (
        ("table", target_embedding),
        ("projector_weight", embed_proj[0]),
        ("projection", embed_proj[2]),
    ):
        weight = plain_weight(name, owner)
        if isinstance(weight, Reason):
            return weight
        parts[name] = weight
    try:
        return DominoHead(
            table=parts["table"][:vocab_size],
            projection=parts["projection"],
            projector_weight=parts["projector_weight"],
            gru_input_weight=prefix_gru.weight_ih_l0.detach(),
            gru_state_weight=prefix_gru.weight_hh_l0.detach(),
            shift_label=bool(shift_label),
        )
    except WalkError as error:
        return Reason(kind="head", text=str(error))


def _why_not_modules(target_embedding: Any, prefix_gru: Any, embed_proj: Any) -> Reason | None:
    if has_adapter(target_embedding, prefix_gru, embed_proj):
        return Reason(kind="lora", text="a LoRA adapter wraps the embedding or the projector")
    if getattr(target_embedding, "tp_size", 1) != 1:
        return Reason(
            kind="tensor parallelism", text="the target's embedding is sharded over ranks"
        )
    if not _is_plain_gru(prefix_gru):
        return Reason(kind="head", text="prefix_gru is no GRU of one layer without bias")
    if not (
        len(embed_proj) == 3
        and isinstance(embed_proj[1], torch.nn.SiLU)
        and all(getattr(embed_proj[index], "bias", None) is None for index in (0, 2))
    ):
        return Reason(kind="head", text="embed_proj is not linear, SiLU, linear without bias")
    return None


def _is_plain_gru(gru: Any) -> bool:
    return (
        isinstance(gru, torch.nn.GRU)
        and gru.num_layers == 1
        and not gru.bias
        and not gru.bidirectional
    )


def plain_embedding(target_embedding: Any, head: DominoHead) -> Reason | None:
    """Try a target's embedding: some models scale what they look up."""
    device = head.table.device
    tokens = torch.linspace(0, head.table_rows - 1, 8, device=device).long()
    try:
        with torch.no_grad():
            same = torch.equal(target_embedding(tokens), head.table[tokens])
    except Exception as error:  # one that wants other arguments is no look-up
        return Reason(
            kind="head", text=f"the embedding cannot be tried: {type(error).__name__}: {error}"
        )
    if same:
        return None
    return Reason(kind="head", text="the target's embedding is more than a look-up")
