"""An engine's modules as heads: which tensors a module has says what it may be, a trial what it is.

A class name says little (subclasses change formulas, quantised layers keep names), so a head is
adopted by its parts, and then has to give the bias that the formula gives.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch

from wts.engines.common.reasons import Reason
from wts.errors import WalkError, describe
from wts.heads.base import Head, HeadState, product
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.numerics.torch_dtypes import DTYPES

__all__ = ["Trial", "Weight", "dspark_head", "has_adapter", "plain_weight", "why_other_bias"]

Weight: TypeAlias = torch.Tensor | Reason
"""A plain weight, or why there is none."""

_TRIED_STEPS = 2  # the second of them reads a state that is not zero
_TRIED_ROWS = 256
# Of the bias's length: sums of bf16 products in another order differ by far less, formulas by more.
_MOST_DIFFERENCE = 0.02


class Trial(Protocol):
    """How an engine asks its module for a bias."""

    def start(self, hidden: torch.Tensor | None) -> Any:
        """The state before the first step.

        Args:
            hidden: [B, H], of a head that reads hidden states.
        """

    def bias(
        self, tokens: torch.Tensor, hidden: torch.Tensor | None, state: Any
    ) -> tuple[torch.Tensor, Any]:
        """One step.

        Args:
            tokens: int64 [B], the previous ones.
            hidden: [B, H], of a head that reads hidden states.
            state: that after the step before.

        Returns:
            The bias, [B, V], and the state.
        """


def has_adapter(*modules: Any) -> bool:
    """Whether a LoRA adapter wraps a layer of these modules."""
    return any(hasattr(part, "base_layer") for module in modules for part in module.modules())


def dspark_head(module: Any) -> Head | Reason:
    """Make a head of a module with DSpark's parts: markov_w1, markov_w2, gate_proj or joint_proj.

    Returns:
        The head, whose weights are shared and not copied, or why the module is none that walks.
    """
    if has_adapter(module):
        return Reason(kind="lora", text="a LoRA adapter wraps the head")
    table = _layer_weight(module, "markov_w1")
    projection = _layer_weight(module, "markov_w2")
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
        weight = _layer_weight(module, joined[0], biased=True)
        if isinstance(weight, Reason):
            return weight
        bias = getattr(module, joined[0]).bias.detach()
        if joined == ["gate_proj"]:
            return GatedHead(table=table, projection=projection, gate_weight=weight, gate_bias=bias)
        return RnnHead(table=table, projection=projection, joint_weight=weight, joint_bias=bias)
    except WalkError as error:
        return Reason(kind="head", text=str(error))


def why_other_bias(name: str, trial: Trial, head: Head) -> Reason | None:
    """Try a module on a few tokens: its bias has to be what the head's formula gives.

    Args:
        name: of the module's class.
        trial: how it is asked.
        head: what was made of it.
    """
    try:
        with torch.no_grad():
            return _other_bias(name, trial, head)
    except Exception as error:  # a module that wants other arguments is no head of this kind
        return Reason(kind="head", text=f"{name} cannot be tried: {type(error).__name__}: {error}")


def _other_bias(name: str, trial: Trial, head: Head) -> Reason | None:
    device = head.projection.device
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(head.vocab, (_TRIED_STEPS, 2), generator=generator).to(device)
    rows = torch.randint(head.vocab, (_TRIED_ROWS,), generator=generator).to(device)
    hidden = None
    if head.hidden_size is not None:
        drawn = torch.randn(_TRIED_STEPS, 2, head.hidden_size, generator=generator)
        hidden = drawn.to(device, head.table.dtype)
    state: HeadState = head.initial_state(2)
    theirs = trial.start(None if hidden is None else hidden[0])
    for step in range(_TRIED_STEPS):
        read = None if hidden is None else hidden[step]
        bias, theirs = trial.bias(tokens[step], read, theirs)
        state, latent = head.latent(state, tokens[step], read)
        assert latent is not None
        wanted = product(head.projection[rows], latent)
        if tuple(bias.shape) != (2, head.vocab):
            return Reason(kind="head", text=f"its bias is {describe(bias)}")
        difference = (bias[:, rows].float() - wanted).norm()
        if not bool(difference <= _MOST_DIFFERENCE * wanted.norm()):
            return Reason(
                kind="head",
                text=f"{name} gives another bias than a {head.kind} head of its weights",
            )
    return None


def plain_weight(name: str, layer: Any) -> Weight:
    """The weight of a layer, if it is a plain matrix of numbers.

    Args:
        name: of the layer, for the reason.
        layer: the layer.
    """
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or weight.dtype not in DTYPES:
        found = describe(weight) if isinstance(weight, torch.Tensor) else "no tensor"
        return Reason(kind="quantised", text=f"{name} is quantised: its weight is {found}")
    return weight.detach()


def _layer_weight(module: Any, name: str, *, biased: bool = False) -> Weight:
    """The plain weight of a layer of a module."""
    layer = getattr(module, name, None)
    if layer is None:
        return Reason(kind="head", text=f"{type(module).__name__} has no {name}")
    if not biased and getattr(layer, "bias", None) is not None:
        return Reason(kind="head", text=f"{name} has a bias")
    return plain_weight(name, layer)
