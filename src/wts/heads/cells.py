"""What heads that read hidden states compute on the device, operation by operation, in torch.

A head's weights are cut by what they multiply, so that a step does little after its token is known:

- the hidden part: weights times hidden states, plus the bias. No token is in it: it is one matrix
  product for all steps, before the walk, or the kernel makes it steps ahead (`plan.hidden_inside`);
- the input rows: weights times every table row, at packing time. A token fetches one;
- the product with the state (`lane_product`), whose order is fixed;
- what is left is element by element (`latent` of the cells), with `wts.numerics.activations`.

R() is one rounding to bf16; every other operation is rounded to fp32, none is fused but those of
`lane_product`.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from wts.heads.domino import DominoCell, DominoHead
from wts.heads.gated import GatedCell, GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnCell, RnnHead
from wts.numerics.lane_sums import fine_product

__all__ = ["AnyHead", "Cell", "RecurrentHead", "cell_of", "input_rows"]

RecurrentHead: TypeAlias = GatedHead | RnnHead | DominoHead
"""A head that reads hidden states."""

AnyHead: TypeAlias = MarkovHead | RecurrentHead
"""A head that can be walked."""


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
    product = fine_product(weight, rows)
    if isinstance(head, GatedHead):
        return torch.cat([_bytes(product), _bytes(rows)], 1)
    return _bytes(product.to(torch.bfloat16) if isinstance(head, DominoHead) else product)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


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
