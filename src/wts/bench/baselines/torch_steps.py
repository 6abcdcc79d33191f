"""The walk in plain torch, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from wts.bench.baselines.inputs import WalkInputs
from wts.heads.base import HeadState
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.numerics.limits import LEAST_TEMPERATURE

__all__ = ["latent_in_torch", "step_torch"]

# Half a unit of a 32-bit uniform: keeps a drawn 0 away from the logarithm of 0.
_LEAST_UNIFORM = 2.0**-33

_Latent = Callable[
    [HeadState, torch.Tensor, torch.Tensor | None], tuple[HeadState, torch.Tensor | None]
]
"""State, rows of the previous tokens, hidden states of the step -> state, latents (None: none)."""


def step_torch(inputs: WalkInputs) -> Callable[[], torch.Tensor]:
    """Plain torch, one step after the other: embedding, latent, linear, add, argmax, all in bf16.

    Greedy, these are the formulas of the bf16 head to the letter (the GRU of Domino is torch's own
    cell, which on a GPU rounds where they do). Sampled, the key is x / T - ln(-log1p(-u)) with u
    from torch's own generator: the same work, but not the Philox stream of the contract, so sampled
    tokens of this path can be compared with nobody's. Step logits are not kept.

    Args:
        inputs: noise, lm_head and logits_out are not used.
    """
    table, projection, hidden = inputs.table, inputs.projection, inputs.hidden
    base_logits, anchor = inputs.base_logits, inputs.anchor
    steps = inputs.steps
    latent_of, initial_state = latent_in_torch(inputs)
    divisor = (
        None
        if inputs.temperatures is None
        else inputs.temperatures.clamp(min=LEAST_TEMPERATURE)[:, None]
    )

    @torch.no_grad()
    def walk() -> torch.Tensor:
        token, state = anchor, initial_state
        tokens = []
        for step in range(steps):
            row = functional.embedding(token, table)
            state, latent = latent_of(state, row, None if hidden is None else hidden[:, step])
            keys = base_logits[:, step]
            if latent is not None:
                keys = keys + functional.linear(latent, projection)
            if divisor is not None:
                uniform = torch.rand_like(keys, dtype=torch.float32).add_(_LEAST_UNIFORM)
                keys = keys / divisor - torch.log(-torch.log1p(-uniform))
            token = keys.argmax(dim=-1)
            tokens.append(token)
        return torch.stack(tokens, dim=1)

    return walk


def latent_in_torch(inputs: WalkInputs) -> tuple[_Latent, HeadState]:
    """A head's latent function as few torch operations as it takes, and its first state."""
    return _LATENTS[inputs.head.kind](inputs.head, inputs.batch)


def _markov_in_torch(head: MarkovHead, batch: int) -> tuple[_Latent, HeadState]:
    del head, batch
    return lambda state, row, hidden: (state, row), None


def _gated_in_torch(head: GatedHead, batch: int) -> tuple[_Latent, HeadState]:
    del batch

    def latent(
        state: HeadState, row: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        assert hidden is not None
        joined = torch.cat([hidden, row], 1)
        return state, functional.linear(joined, head.gate_weight, head.gate_bias).sigmoid() * row

    return latent, None


def _rnn_in_torch(head: RnnHead, batch: int) -> tuple[_Latent, HeadState]:
    def latent(
        state: HeadState, row: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        assert hidden is not None
        assert isinstance(state, torch.Tensor)
        joined = torch.cat([state, row, hidden], 1)
        parts = functional.linear(joined, head.joint_weight, head.joint_bias).chunk(3, 1)
        gate, candidate = parts[0].sigmoid(), parts[1].tanh()
        return gate * state + (1 - gate) * candidate, parts[2].tanh()

    return latent, head.initial_state(batch)


def _domino_in_torch(head: DominoHead, batch: int) -> tuple[_Latent, HeadState]:
    zeros = head.table.new_zeros(batch, head.state_size)

    def latent(
        state: HeadState, row: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        assert hidden is not None
        before = zeros if state is None else state
        assert isinstance(before, torch.Tensor)
        after = torch.gru_cell(row, before, head.gru_input_weight, head.gru_state_weight)
        if state is None:
            return after, None
        joined = torch.cat([hidden, after], 1)
        return after, functional.silu(functional.linear(joined, head.projector_weight))

    return latent, None


_LATENTS: Mapping[str, Callable[[Any, int], tuple[_Latent, HeadState]]] = MappingProxyType(
    {
        "markov": _markov_in_torch,
        "gated": _gated_in_torch,
        "rnn": _rnn_in_torch,
        "domino": _domino_in_torch,
    }
)
"""By kind of head: a head and B -> its latent function and first state."""
