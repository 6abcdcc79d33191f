"""SGLang's modules as heads: which tensors a module has says what it may be, a trial what it is.

A class name says little (subclasses change formulas, quantised layers keep names), so a head is
adopted by its parts, and DSpark's then has to give the bias that the formula gives.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from wts.engines.common.reasons import Reason
from wts.errors import WalkError, describe
from wts.heads.base import Head, HeadState, product
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.numerics.torch_dtypes import DTYPES

__all__ = ["Weight", "adopt_domino", "adopt_dspark", "behaves", "plain_embedding"]

Weight: TypeAlias = torch.Tensor | Reason
"""A plain weight, or why there is none."""

_TRIED_STEPS = 2  # the second of them reads a state that is not zero
_TRIED_ROWS = 256
# Of the bias's length: sums of bf16 products in another order differ by far less, formulas by more.
_MOST_DIFFERENCE = 0.02


def adopt_dspark(module: Any) -> Head | Reason:
    """Make a head of a DSpark draft model's `markov_head`; its weights are shared, not copied.

    Args:
        module: VanillaMarkov, GatedMarkovHead, RNNHead or anything built of the same parts.

    Returns:
        The head, or why the module is none that walks.

    Source:
        SGLang 0.5.23, sglang/srt/models/dspark.py.
    """
    if getattr(module, "vocab_shard", None) is not None or (
        getattr(module, "_tp_shard", None) is not None
    ):
        return Reason(
            kind="tensor parallelism",
            text="the projection is sharded over ranks; SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD=0 "
            "replicates it",
        )
    if any(hasattr(part, "base_layer") for part in module.modules()):
        return Reason(kind="lora", text="a LoRA adapter wraps the head")
    table = _weight(module, "markov_w1")
    projection = _weight(module, "markov_w2")
    if isinstance(table, Reason):
        return table
    if isinstance(projection, Reason):
        return projection
    table = table[: len(projection)]  # an embedding may be padded; no token is past the vocabulary
    joined = [name for name in ("gate_proj", "joint_proj") if hasattr(module, name)]
    try:
        if not joined:
            return MarkovHead(table=table, projection=projection)
        if len(joined) == 2:
            return Reason(kind="head", text="it has both gate_proj and joint_proj")
        weight = _weight(module, joined[0], biased=True)
        if isinstance(weight, Reason):
            return weight
        bias = getattr(module, joined[0]).bias.detach()
        if joined == ["gate_proj"]:
            return GatedHead(table=table, projection=projection, gate_weight=weight, gate_bias=bias)
        return RnnHead(table=table, projection=projection, joint_weight=weight, joint_bias=bias)
    except WalkError as error:
        return Reason(kind="head", text=str(error))


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

    Source:
        SGLang 0.5.23, sglang/srt/speculative/domino_utils.py and sglang/srt/models/dflash.py.
    """
    modules = (target_embedding, prefix_gru, embed_proj)
    if any(hasattr(part, "base_layer") for module in modules for part in module.modules()):
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
    parts: dict[str, torch.Tensor] = {}
    for name, owner in (
        ("table", target_embedding),
        ("projector_weight", embed_proj[0]),
        ("projection", embed_proj[2]),
    ):
        weight = _weight_of(name, owner)
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


def behaves(module: Any, head: Head) -> Reason | None:
    """Try a DSpark module on a few tokens: its bias has to be what the head's formula gives.

    Args:
        module: the module.
        head: what was made of it.
    """
    device = head.projection.device
    generator = torch.Generator().manual_seed(0)
    size = head.hidden_size
    tokens = torch.randint(head.vocab, (_TRIED_STEPS, 2), generator=generator).to(device)
    rows = torch.randint(head.vocab, (_TRIED_ROWS,), generator=generator).to(device)
    hidden = None
    if size is not None:
        drawn = torch.randn(_TRIED_STEPS, 2, size, generator=generator)
        hidden = drawn.to(device, head.table.dtype)
    state: HeadState = head.initial_state(2)
    try:
        with torch.no_grad():
            theirs = module.init_state(None if hidden is None else hidden[0][:, None])
            for step in range(_TRIED_STEPS):
                read = None if hidden is None else hidden[step]
                bias, theirs = module.step_bias(tokens[step], hidden_states=read, state=theirs)
                state, latent = head.latent(state, tokens[step], read)
                assert latent is not None
                wanted = product(head.projection[rows], latent)
                if tuple(bias.shape) != (2, head.vocab):
                    return Reason(kind="head", text=f"its bias is {describe(bias)}")
                difference = (bias[:, rows].float() - wanted).norm()
                if not bool(difference <= _MOST_DIFFERENCE * wanted.norm()):
                    return Reason(
                        kind="head",
                        text=f"{type(module).__name__} gives another bias than a {head.kind} head "
                        "of its weights",
                    )
    except Exception as error:  # a module that wants other arguments is no head of this kind
        return Reason(
            kind="head",
            text=f"{type(module).__name__} cannot be tried: {type(error).__name__}: {error}",
        )
    return None


def plain_embedding(target_embedding: Any, head: DominoHead) -> Reason | None:
    """Try a target's embedding: some models scale what they look up."""
    device = head.table.device
    tokens = torch.linspace(0, head.table_rows - 1, 8, device=device).long()
    try:
        with torch.no_grad():
            same = torch.equal(target_embedding(tokens), head.table[tokens])
    except Exception as error:  # as above
        return Reason(
            kind="head", text=f"the embedding cannot be tried: {type(error).__name__}: {error}"
        )
    if same:
        return None
    return Reason(kind="head", text="the target's embedding is more than a look-up")


def _is_plain_gru(gru: Any) -> bool:
    return (
        isinstance(gru, torch.nn.GRU)
        and gru.num_layers == 1
        and not gru.bias
        and not gru.bidirectional
    )


def _weight(module: Any, name: str, *, biased: bool = False) -> Weight:
    """The plain weight of a layer of a module."""
    owner = getattr(module, name, None)
    if owner is None:
        return Reason(kind="head", text=f"{type(module).__name__} has no {name}")
    if not biased and getattr(owner, "bias", None) is not None:
        return Reason(kind="head", text=f"{name} has a bias")
    return _weight_of(name, owner)


def _weight_of(name: str, owner: Any) -> Weight:
    weight = getattr(owner, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or weight.dtype not in DTYPES:
        found = describe(weight) if isinstance(weight, torch.Tensor) else "no tensor"
        return Reason(kind="quantised", text=f"{name} is quantised: its weight is {found}")
    return weight.detach()
