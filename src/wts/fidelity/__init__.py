"""`wts fidelity`: what int8 does to a head, its logits and its tokens, and what E4M3 would do.

int8 places 255 levels evenly over a row's range. E4M3, scaled so that a row's largest weight is its
largest number, places levels ever closer towards zero: they are closer than those of int8 for
weights below a fourteenth of the largest, further apart above. Where a row's weights lie decides
which is better. Then steps are taken from the formula's state: the int8 step logits against those
of the unquantised head and the derived bound, and how often the token differs, by the margin of the
best logit over the next.
"""

from __future__ import annotations

from typing import Any

from wts.fidelity.steps import examine_steps
from wts.fidelity.weights import examine_weights
from wts.heads.base import Head
from wts.progress import Say
from wts.walk.recorded import Inputs

__all__ = ["examine"]


def examine(head: Head, inputs: Inputs, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Everything that the report has, as numbers and lists for JSON.

    Args:
        head: the head; work is done where it is.
        inputs: where steps are taken from, on the same device.
        say: told what is going on.
    """
    say("quantising the projection")
    weights = examine_weights(head)
    say("taking steps")
    return {
        "head": {
            "kind": head.kind,
            "vocab": head.vocab,
            "rank": head.rank,
            "table_type": head.table_type,
        },
        "inputs": {
            "kind": "recorded" if inputs.recorded else "random",
            "requests": len(inputs.anchor),
            "steps": inputs.base_logits.shape[1],
            "previous_tokens": "recorded" if inputs.tokens is not None else "best",
        },
        "weights": weights,
        "steps": examine_steps(head, inputs, say),
    }
