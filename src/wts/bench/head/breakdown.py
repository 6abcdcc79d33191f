"""Where a step's time goes: time stamps of a kernel that is built to be traced, in cycles.

Their writing costs a little itself, so nothing else is read off such a walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from wts.bench.baselines.inputs import WalkInputs
from wts.bench.compare import compare
from wts.kernels.launch import LoadedKernel
from wts.kernels.resident.args import EVENTS, TRACED_ROUNDS
from wts.numerics.gumbel import Noise
from wts.selection.call import Call
from wts.walk.walker import Walker

__all__ = ["PARTS", "breakdown_of", "breakdown_text", "traced_breakdown"]

# Part of a step, between two events; the last ones end in the same group's next step.
PARTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "sweep": ("LATENT_SEEN", "SWEPT"),
        "last roundings, warps' best": ("SWEPT", "OFFERED"),
        "gather": ("OFFERED", "GATHERED"),
        "publish": ("GATHERED", "PUBLISHED"),
        "exchange: wait and decode": ("PUBLISHED", "DECODED"),
        "latent and state": ("DECODED", "LATENT_SENT"),
        "seen": ("LATENT_SENT", "LATENT_SEEN"),
        "a step": ("LATENT_SEEN", "LATENT_SEEN"),
    }
)
"""Parts of a step in their order, with the events that begin and end them."""

_TIMEOUT_MS = 2000


def breakdown_of(stamps: torch.Tensor, *, steps: int, groups: int) -> dict[str, float]:
    """Medians over blocks and rounds, but the last step's, in cycles.

    Args:
        stamps: int64 [blocks, traced rounds, events]; a block's clock is its own.
        steps: of the walk, at least two.
        groups: that take turns; a round is one step of one group.

    Returns:
        Each of `PARTS`; one whose events a kernel does not mark is left out.
    """
    names = EVENTS
    num_rounds = min(steps * groups, TRACED_ROUNDS) - groups
    found = {}
    for part, (begin, end) in PARTS.items():
        later = groups if end == "LATENT_SEEN" else 0
        started = stamps[:, :num_rounds, names.index(begin)]
        ended = stamps[:, later : later + num_rounds, names.index(end)]
        marked = (started != 0) & (ended != 0)
        if bool(marked.any()):
            found[part] = float((ended - started)[marked].double().median())
    return found


def traced_breakdown(walker: Walker, inputs: WalkInputs) -> dict[str, float]:
    """Walk with a traced build of a device Walker's kernel; L2 is warm.

    Raises:
        WalkFault: it gave other tokens than the Walker.
    """
    device = inputs.base_logits.device
    traced = LoadedKernel(walker.head, walker.plan, device, _TIMEOUT_MS, trace=True)
    assert traced.stamps is not None
    tokens = torch.zeros(inputs.batch, inputs.steps, dtype=torch.int64, device=device)
    offset = torch.zeros(1, dtype=torch.int64, device=device)
    sampled = inputs.temperatures is not None
    call = Call(
        base_logits=inputs.base_logits,
        anchor=inputs.anchor,
        hidden=inputs.hidden,
        temperatures=inputs.temperatures,
        noise=Noise(key=inputs.noise_key, offset=offset) if sampled else None,
        logits_out=inputs.logits_out if sampled else None,
    )
    for _ in range(2):  # the second finds its weights in L2
        offset.zero_()
        traced.stamps.zero_()
        traced.launch(call, tokens)
    traced.check()
    offset.zero_()
    wanted = walker(
        call.base_logits,
        call.anchor,
        hidden=call.hidden,
        temperatures=call.temperatures,
        noise=call.noise,
        logits_out=call.logits_out,
    )
    compare("tokens of a traced walk", tokens, wanted)
    return breakdown_of(traced.stamps.cpu(), steps=inputs.steps, groups=traced.plan.product.groups)


def breakdown_text(columns: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Parts of several walks, named, one line each: cycles of each part."""
    lines = ["parts of a step, cycles (medians over blocks and rounds of a traced, warm walk)"]
    for name, parts in columns:
        shown = ", ".join(f"{part} {cycles:,.0f}" for part, cycles in parts.items())
        lines.append(f"{name}: {shown}")
    return "\n".join(lines)
