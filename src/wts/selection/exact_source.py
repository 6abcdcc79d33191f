"""What an exact walk reads of the unquantised head, as the kernel finds it in memory; no torch.

It lies in memory, not among the kernel's arguments, so that captured graphs find new weights.
"""

from __future__ import annotations

from wts.hardware.abi import Field, Record

__all__ = ["EXACT_SOURCE"]

EXACT_SOURCE = Record(
    "ExactSource",
    (
        Field("weight", "const Byte*", note="W, [VOCAB or more, RANK] in bf16."),
        Field("table", "const Byte*", note="E, [TABLE_ROWS, RANK] in bf16, of a Markov head."),
        Field("largest_scale", "float", note="Of rows; then how a latent's slack is made of it."),
        Field("spread", "float"),
        Field("growth", "float"),
        Field("smallest", "float"),
        Field("longest", "float"),
    ),
)
"""The struct; how its numbers bound exact logits is in `wts.numerics.exact_bounds`."""
