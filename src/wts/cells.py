"""What heads that read hidden states compute on the device, operation by operation, in torch.

A head's weights are cut by what they multiply, so that a step does little after its token is known:

- the hidden part: weights times hidden states, plus the bias. No token is in it: it is one matrix
  product for all steps, before the walk, or the kernel makes it steps ahead (`plan.hidden_inside`);
- the input rows: weights times every table row, at packing time. A token fetches one;
- the product with the state (`lane_product`), whose order is fixed;
- what is left is element by element (`latent` of the cells), with `wts.activations`.

R() is one rounding to bf16; every other operation is rounded to fp32, none is fused but those of
`lane_product`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from wts.activations import rounded, sigmoid, silu, tanh
from wts.domino import DominoHead
from wts.heads import HeadState, MarkovHead
from wts.recurrent import GatedHead, RnnHead
from wts.weights import LANES

__all__ = [
    "AnyHead",
    "Cell",
    "DominoCell",
    "GatedCell",
    "RecurrentHead",
    "RnnCell",
    "cell_of",
    "hidden_part",
    "input_rows",
    "lane_product",
]

RecurrentHead: TypeAlias = GatedHead | RnnHead | DominoHead
"""A head that reads hidden states."""

AnyHead: TypeAlias = MarkovHead | RecurrentHead
"""A head that can be walked."""


# ---- products ----------------------------------------------------------------------------------


def _fine_product(weight: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """weight . vector, fp32 [..., n]: products exact, summed in fp64, rounded once to fp32.

    So the result is that of the exact sum unless the sum lies within 2^-52 of its terms of a
    rounding boundary of fp32: it does not depend on the order of the sum, and so not on the batch.

    Args:
        weight: bf16 [n, m].
        vectors: bf16 [..., m].
    """
    return (vectors.double() @ weight.double().T).float()


def hidden_part(
    weight: torch.Tensor, bias: torch.Tensor | None, hidden: torch.Tensor, *, by_lanes: bool = False
) -> torch.Tensor:
    """What hidden states add to the inner sums of each step.

    Args:
        weight: bf16 [P, H], `hidden_weight` of a head.
        bias: bf16 [P], its `hidden_bias`; None adds nothing.
        hidden: bf16 [B, K, H], any strides.
        by_lanes: whether the product is summed as the kernel sums it; H is then a multiple of 8.

    Returns:
        fp32 [B, K, P]: the product, rounded to fp32, plus the bias in fp32.
    """
    if by_lanes:
        product = lane_product(weight, hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
    else:
        product = _fine_product(weight, hidden)
    return product if bias is None else product + bias.float()


def lane_product(weight: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """weight . vector as a warp sums it: element i is of lane i / 8 mod 32.

    A lane starts at 0 and takes in its elements in ascending order, each by one fused multiply-add;
    then lanes are added in a tree, first those 16 apart, then 8, 4, 2, 1.

    The fused multiply-add is made in fp64 and then rounded to fp32, which rounds twice and still
    gives what rounding once does. A product p of two bf16 numbers has 16 bits: it is exact in fp64.
    Its sum with an fp32 number c is exact there too, wherever its bits span at most 53. Else either
    c has the higher bits, and p is below 2^-13 of c's last place; or p has them, is an fp32
    number (above 2^-120), and c is below 2^-5 of its last place. Both are too little to reach a
    boundary: the result in fp32 is the larger of the two, whatever fp64 made of the rest.

    Args:
        weight: bf16 [n, m]; m is a multiple of 8.
        vector: bf16 [B, m].

    Returns:
        fp32 [B, n].
    """
    rows, length = weight.shape
    turns = -(-length // (8 * LANES))
    padding = (0, turns * 8 * LANES - length)
    weights = F.pad(weight, padding).double().view(1, rows, turns, LANES, 8)
    vectors = F.pad(vector, padding).double().view(len(vector), 1, turns, LANES, 8)
    total = torch.zeros(len(vector), rows, LANES, device=weight.device)
    for turn in range(turns):
        owned = torch.arange(LANES, device=weight.device) < length // 8 - turn * LANES
        for i in range(8):
            taken = weights[:, :, turn, :, i] * vectors[:, :, turn, :, i] + total.double()
            total = torch.where(owned, taken.float(), total)
    apart = LANES // 2
    while apart:
        total = total[:, :, :apart] + total[:, :, apart : 2 * apart]
        apart //= 2
    return total[:, :, 0]


# ---- input rows --------------------------------------------------------------------------------


def input_rows(head: RecurrentHead, rows: torch.Tensor) -> torch.Tensor:
    """Pack table rows into what a step fetches for a token.

    Args:
        head: the head.
        rows: bf16 [n, ...], rows of its table.

    Returns:
        uint8 [n, ...]. Gated: G_e e, fp32 [r], then e, bf16 [r]. RNN: J_e e, fp32 [3 r]. Domino:
        R(W_ih e), bf16 [3 G].
    """
    weight = head.input_weight.to(rows.device)
    product = _fine_product(weight, rows)
    if isinstance(head, GatedHead):
        return torch.cat([_bytes(product), _bytes(rows)], 1)
    return _bytes(product.to(torch.bfloat16) if isinstance(head, DominoHead) else product)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


# ---- cells -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatedCell:
    """A gated head between its token and its latent.

    Args:
        hidden_weight: bf16 [r, H].
        hidden_bias: bf16 [r].
    """

    hidden_weight: torch.Tensor
    hidden_bias: torch.Tensor

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step: none."""
        return None

    def latent(
        self, state: HeadState, rows: torch.Tensor, part: torch.Tensor
    ) -> tuple[HeadState, torch.Tensor]:
        """R(R(sigmoid(R(part + G_e e))) e).

        Args:
            state: carried over unchanged.
            rows: uint8 [B, 6 r], input rows of the tokens.
            part: fp32 [B, r], the hidden part of the step.

        Returns:
            The state and the latents, bf16 [B, r].
        """
        rank = part.shape[1]
        product = rows[:, : 4 * rank].contiguous().view(torch.float32)
        row = rows[:, 4 * rank :].contiguous().view(torch.bfloat16).float()
        gate = rounded(sigmoid(rounded(part + product)))
        return state, (gate * row).to(torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RnnCell:
    """An RNN head between its token and its latent.

    Args:
        hidden_weight: bf16 [3 r, H].
        hidden_bias: bf16 [3 r].
        state_weight: bf16 [3 r, r].
    """

    hidden_weight: torch.Tensor
    hidden_bias: torch.Tensor
    state_weight: torch.Tensor

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step: bf16 zeros [B, r]."""
        return self.state_weight.new_zeros(batch, self.state_weight.shape[1])

    def latent(
        self, state: HeadState, rows: torch.Tensor, part: torch.Tensor
    ) -> tuple[HeadState, torch.Tensor]:
        """j = R((part + J_s state) + J_e e), and the formula of the head from there.

        The first sum needs no token: it can be made while the step before is selecting one.

        Args:
            state: bf16 [B, r].
            rows: uint8 [B, 12 r], input rows of the tokens.
            part: fp32 [B, 3 r], the hidden part of the step.

        Returns:
            The new state and the latents, both bf16 [B, r].
        """
        assert isinstance(state, torch.Tensor)
        early = part + lane_product(self.state_weight, state)
        joint = rounded(early + rows.contiguous().view(torch.float32))
        gate, candidate, output = joint.chunk(3, 1)
        gate, candidate = rounded(sigmoid(gate)), rounded(tanh(candidate))
        kept, taken = rounded(gate * state.float()), rounded(rounded(1.0 - gate) * candidate)
        return (kept + taken).to(torch.bfloat16), tanh(output).to(torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DominoCell:
    """A Domino head between its token and its latent.

    Args:
        hidden_weight: bf16 [r, H].
        state_weight: W_hh, bf16 [3 G, G].
        projector_weight: P_h, the columns of P that meet h, bf16 [r, G].
    """

    hidden_weight: torch.Tensor
    state_weight: torch.Tensor
    projector_weight: torch.Tensor

    @property
    def hidden_bias(self) -> None:
        """A projector has no bias."""

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step: None, which tells that there is no token yet."""
        return None

    def latent(
        self, state: HeadState, rows: torch.Tensor, part: torch.Tensor
    ) -> tuple[HeadState, torch.Tensor | None]:
        """Take in a token, then R(SiLU(R(part + P_h h))).

        R(W_hh h) needs no token: it can be made while the step before is selecting one. Each
        operation in the order of its parentheses: r = sigmoid(i_r + g_r), z = sigmoid(i_z + g_z),
        n = tanh(i_n + (r g_n)), h = R(n + (z (h - n))).

        Args:
            state: bf16 [B, G]; None at the first step.
            rows: uint8 [B, 6 G], input rows of the tokens.
            part: fp32 [B, r], the hidden part of the step.

        Returns:
            The new state, bf16 [B, G], and the latents, bf16 [B, r]; None at the first step.
        """
        first = state is None
        if first:
            state = self.state_weight.new_zeros(len(rows), self.state_weight.shape[1])
        assert isinstance(state, torch.Tensor)
        inputs = rows.contiguous().view(torch.bfloat16).float().chunk(3, 1)
        states = rounded(lane_product(self.state_weight, state)).chunk(3, 1)
        reset, update = sigmoid(inputs[0] + states[0]), sigmoid(inputs[1] + states[1])
        new = tanh(inputs[2] + reset * states[2])
        state = (new + update * (state.float() - new)).to(torch.bfloat16)
        if first:
            return state, None
        projected = rounded(part + lane_product(self.projector_weight, state))
        return state, silu(projected).to(torch.bfloat16)


Cell: TypeAlias = GatedCell | RnnCell | DominoCell
"""What is left of a head's latent function once its input rows are packed."""


def cell_of(head: RecurrentHead, device: torch.device) -> Cell:
    """Copy the weights that the steps of a walk need.

    Args:
        head: the head.
        device: where they go.
    """

    def copied(weight: torch.Tensor) -> torch.Tensor:
        return weight.to(device, copy=True).contiguous()

    if isinstance(head, GatedHead):
        return GatedCell(
            hidden_weight=copied(head.hidden_weight), hidden_bias=copied(head.hidden_bias)
        )
    if isinstance(head, RnnHead):
        return RnnCell(
            hidden_weight=copied(head.hidden_weight),
            hidden_bias=copied(head.hidden_bias),
            state_weight=copied(head.state_weight),
        )
    return DominoCell(
        hidden_weight=copied(head.hidden_weight),
        state_weight=copied(head.state_weight),
        projector_weight=copied(head.projector_weight[:, head.hidden_size :]),
    )
