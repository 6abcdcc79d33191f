"""How a block may divide its registers and its work, and which of that suits which plan."""

from __future__ import annotations

from dataclasses import dataclass

from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.product import Instruction

__all__ = ["BF16_CHOICES", "INT8_CHOICES", "Choice", "choices_for"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How a block divides its registers and its work, as measured best (docs/measured.md).

    Args:
        instruction: matrix instruction.
        columns: requests walked side by side.
        fragments: of a sweeping warp, in registers: more leave no room to load ahead, fewer crowd
            shared memory.
        queue: fragments loaded ahead of their product (mma).
        live: accumulators at once (mma), or tiles in flight (wgmma).
        registers: of a sweeping and of a service thread; 8 and 4 warps of them make up what a block
            of 384 threads is launched with. 64-bit words and many columns want more of the second.
        together: columns whose exchange a service warp waits for at once.
        operands: slabs of a latent that a lane holds at once (mma); 0: all.
        copied: most fragments that are streamed by one copy (mma); 1: by copies of each lane.
    """

    instruction: Instruction
    columns: int
    fragments: int
    queue: int
    live: int
    registers: tuple[int, int]
    together: int = 1
    operands: int = 0
    copied: int = 1


INT8_CHOICES = {
    "greedy": (
        Choice("mma", 1, 44, 6, 5, (232, 40)),
        Choice("mma", 2, 42, 4, 5, (232, 40)),
        Choice("mma", 4, 40, 4, 5, (232, 40)),
        Choice("wgmma", 8, 40, 0, 4, (224, 56), 2),
    ),
    "sampled": (
        Choice("mma", 1, 42, 6, 5, (216, 72)),
        Choice("mma", 2, 36, 4, 5, (216, 72)),
        Choice("mma", 4, 34, 4, 5, (216, 72)),
        Choice("wgmma", 8, 33, 0, 2, (216, 72)),
    ),
    # One group draws its noise while blocks exchange, and has words to park.
    "sampled, one group": (Choice("wgmma", 8, 32, 0, 2, (208, 88), 2),),
    "sampled, two groups": (Choice("wgmma", 8, 33, 0, 2, (208, 88)),),
    # 64-bit words take service warps twice the registers.
    "greedy, 64-bit words": (
        Choice("wgmma", 8, 38, 0, 4, (216, 72), 2),
        Choice("mma", 4, 38, 4, 5, (224, 56)),
        Choice("mma", 2, 42, 4, 5, (224, 56)),
        Choice("mma", 1, 42, 6, 5, (224, 56)),
    ),
    "greedy, 64-bit words, streaming": (
        Choice("wgmma", 8, 34, 0, 4, (216, 72), 2),
        Choice("mma", 4, 37, 4, 4, (224, 56)),
        Choice("mma", 2, 37, 4, 8, (224, 56)),
        Choice("mma", 1, 40, 3, 5, (224, 56), 1, 2, 4),
    ),
    # So do exact logits.
    "greedy, exact": (
        Choice("wgmma", 8, 35, 0, 4, (200, 104), 2),
        Choice("mma", 4, 36, 4, 4, (216, 72)),
        Choice("mma", 2, 39, 4, 5, (216, 72)),
        Choice("mma", 1, 40, 4, 5, (216, 72)),
    ),
    "greedy, exact, groups": (Choice("wgmma", 8, 33, 0, 4, (200, 104), 2),),
    "greedy, exact, gated": (Choice("mma", 1, 36, 6, 5, (208, 88)),),
    "greedy, exact, state": (
        Choice("mma", 2, 36, 4, 5, (208, 88)),
        Choice("mma", 1, 36, 6, 5, (208, 88)),
    ),
    "greedy, exact, domino": (Choice("mma", 4, 30, 4, 4, (208, 88)),),
    "greedy, exact, state, streaming": (
        Choice("mma", 4, 30, 4, 4, (208, 88)),
        Choice("mma", 2, 32, 4, 5, (208, 88)),
        Choice("mma", 1, 32, 4, 5, (208, 88)),
    ),
    "greedy, exact, streaming": (
        Choice("wgmma", 8, 34, 0, 4, (200, 104), 2),
        Choice("mma", 4, 36, 4, 4, (216, 72)),
        Choice("mma", 2, 36, 4, 8, (216, 72)),
        Choice("mma", 1, 37, 4, 5, (216, 72)),
    ),
    # So does making latents, and a state's more so.
    "greedy, gated": (
        Choice("wgmma", 8, 40, 0, 4, (224, 56), 2),
        Choice("mma", 4, 38, 4, 5, (224, 56)),
        Choice("mma", 2, 40, 4, 5, (224, 56)),
        Choice("mma", 1, 41, 6, 5, (224, 56)),
    ),
    "greedy, state": (
        Choice("wgmma", 8, 36, 0, 4, (216, 72), 2),
        Choice("mma", 4, 38, 4, 5, (224, 56)),
        Choice("mma", 2, 38, 4, 5, (216, 72)),
        Choice("mma", 1, 41, 6, 5, (224, 56)),
    ),
    # Of units that are owned, service warps hold many words; a Domino head's states leave
    # no room for a long ring.
    "greedy, rnn": (
        Choice("wgmma", 8, 34, 0, 4, (208, 88), 2),
        Choice("mma", 4, 38, 4, 5, (216, 72)),
    ),
    "greedy, domino": (
        Choice("wgmma", 8, 28, 0, 2, (216, 72), 2),
        Choice("mma", 4, 38, 2, 5, (216, 72)),
        Choice("mma", 2, 40, 4, 5, (224, 56)),
        Choice("mma", 1, 42, 6, 5, (224, 56)),
    ),
    "sampled, gated": (
        Choice("mma", 2, 34, 4, 5, (208, 88)),
        Choice("mma", 1, 36, 6, 5, (208, 88)),
    ),
    "sampled, state": (
        Choice("wgmma", 8, 20, 0, 2, (192, 120)),
        Choice("mma", 4, 26, 4, 5, (200, 104)),
        Choice("mma", 2, 28, 4, 5, (200, 104)),
        Choice("mma", 1, 34, 6, 5, (200, 104)),
    ),
    "greedy, gated, streaming": (
        Choice("wgmma", 8, 38, 0, 4, (224, 56), 2),
        Choice("mma", 4, 37, 4, 4, (224, 56)),
        Choice("mma", 2, 37, 4, 8, (224, 56)),
        Choice("mma", 1, 40, 3, 5, (224, 56), 1, 2, 4),
    ),
    "greedy, state, streaming": (
        Choice("wgmma", 8, 28, 0, 4, (200, 104), 2),
        Choice("mma", 4, 32, 4, 4, (216, 72)),
        Choice("mma", 2, 32, 4, 8, (208, 88)),
        Choice("mma", 1, 34, 4, 5, (208, 88)),
    ),
    "sampled, state, streaming": (
        Choice("wgmma", 8, 16, 0, 2, (192, 120)),
        Choice("mma", 4, 20, 4, 5, (200, 104)),
        Choice("mma", 2, 22, 4, 8, (200, 104)),
        Choice("mma", 1, 32, 4, 5, (200, 104)),
    ),
    # Where fragments are streamed, the compiler needs more room not to spill.
    "greedy, streaming": (
        Choice("mma", 1, 43, 4, 5, (232, 40)),
        Choice("mma", 2, 40, 4, 8, (232, 40)),
        Choice("mma", 4, 40, 4, 4, (232, 40)),
        Choice("wgmma", 8, 38, 0, 4, (224, 56), 2),
    ),
    "sampled, streaming": (
        Choice("mma", 1, 38, 4, 5, (216, 72)),
        Choice("mma", 2, 30, 4, 8, (216, 72)),
        Choice("mma", 4, 30, 4, 5, (216, 72)),
        Choice("wgmma", 8, 24, 0, 2, (216, 72)),
    ),
    "sampled, two groups, streaming": (Choice("wgmma", 8, 18, 0, 2, (208, 88)),),
}

# bf16 weights, the most columns first: what compiles without spills; only one greedy request was
# measured (docs/measured.md). Lone warps multiply for up to eight requests. A slab's operand is
# loaded two slabs ahead: where much streams, the more weights stay the better.
BF16_CHOICES = {
    "greedy": (
        Choice("mma", 8, 38, 3, 5, (216, 72), 2, 2, 4),
        Choice("mma", 4, 44, 3, 5, (232, 40), 1, 2, 4),
        Choice("mma", 2, 44, 3, 5, (232, 40), 1, 2, 4),
        Choice("mma", 1, 44, 3, 5, (232, 40), 1, 2, 4),
    ),
    "greedy, streaming": (
        Choice("mma", 8, 38, 3, 5, (216, 72), 2, 2, 4),
        Choice("mma", 4, 42, 3, 5, (232, 40), 1, 2, 4),
        Choice("mma", 2, 42, 3, 5, (232, 40), 1, 2, 4),
        Choice("mma", 1, 44, 4, 5, (232, 40), 1, 2),
    ),
    "sampled": (
        Choice("mma", 8, 26, 3, 5, (216, 72), 1, 2, 4),
        Choice("mma", 4, 34, 3, 5, (216, 72), 1, 2, 4),
        Choice("mma", 2, 34, 3, 5, (216, 72), 1, 2, 4),
        Choice("mma", 1, 38, 3, 5, (216, 72), 1, 2, 4),
    ),
    "sampled, streaming": (
        Choice("mma", 8, 22, 3, 5, (216, 72), 1, 2, 4),
        Choice("mma", 4, 34, 3, 5, (216, 72), 1, 2, 4),
        Choice("mma", 2, 34, 3, 5, (216, 72), 1, 2, 4),
        Choice("mma", 1, 38, 3, 5, (216, 72), 1, 2, 4),
    ),
    # As with int8 weights, 64-bit words and the making of latents take service warps more.
    "greedy, wide": (
        Choice("mma", 8, 32, 3, 5, (216, 72), 2, 2, 4),
        Choice("mma", 4, 40, 3, 5, (224, 56), 1, 2, 4),
        Choice("mma", 2, 40, 3, 5, (224, 56), 1, 2, 4),
        Choice("mma", 1, 42, 3, 5, (224, 56), 1, 2, 4),
    ),
    "greedy, gated": (
        Choice("mma", 8, 30, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 4, 40, 3, 5, (224, 56), 1, 2, 4),
        Choice("mma", 2, 40, 3, 5, (224, 56), 1, 2, 4),
        Choice("mma", 1, 42, 3, 5, (224, 56), 1, 2, 4),
    ),
    "greedy, state": (
        Choice("mma", 8, 28, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 4, 32, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 2, 36, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 1, 36, 3, 5, (208, 88), 1, 2, 4),
    ),
    "sampled, gated": (
        Choice("mma", 8, 24, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 4, 32, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 2, 34, 3, 5, (208, 88), 1, 2, 4),
        Choice("mma", 1, 36, 3, 5, (208, 88), 1, 2, 4),
    ),
    "sampled, state": (
        Choice("mma", 8, 20, 3, 5, (200, 104), 1, 2, 4),
        Choice("mma", 4, 26, 3, 5, (200, 104), 1, 2, 4),
        Choice("mma", 2, 30, 3, 5, (200, 104), 1, 2, 4),
        Choice("mma", 1, 32, 3, 5, (200, 104), 1, 2, 4),
    ),
    # With tensor memory, as much in registers as NVRTC 13.0 does not spill; none was measured.
    "greedy, tensor memory": (
        Choice("mma", 8, 44, 4, 5, (224, 56), 2, 4),
        Choice("mma", 4, 48, 4, 5, (232, 40), 1, 4),
        Choice("mma", 2, 48, 4, 5, (232, 40), 1, 4),
        Choice("mma", 1, 48, 4, 5, (232, 40), 1, 4),
    ),
    "sampled, tensor memory": (
        Choice("mma", 8, 32, 4, 5, (216, 72), 1, 4),
        Choice("mma", 4, 40, 2, 5, (216, 72), 1, 4),
        Choice("mma", 2, 40, 4, 5, (216, 72), 1, 4),
        Choice("mma", 1, 42, 4, 5, (216, 72), 1, 4),
    ),
}


def choices_for(plan: ResidentPlan, widest: int, *, streaming: bool) -> list[Choice]:
    """Choices for a plan, the best first: most columns, then those for its kind."""
    how = "sampled" if plan.request.sampled else "greedy"
    groups = {1: "one group", 2: "two groups"}.get(-(-plan.request.batch // widest), "groups")
    special = (
        groups
        if plan.request.sampled
        else "64-bit words"
        if plan.selection.long_words
        else "32-bit words"
    )
    end = ", streaming" if streaming else ""
    if not plan.request.quantised:
        special = "wide" if plan.selection.long_words and not plan.request.sampled else ""
        kinds = (plan.request.shape.kind, "state" if plan.request.shape.state else "", special)
        keys = [f"{how}, {kind}" for kind in kinds if kind] + [how + end]
        if plan.placement.tmem_limit:
            keys = [f"{how}, tensor memory"]
        chosen = next(BF16_CHOICES[key] for key in keys if key in BF16_CHOICES)
        return [choice for choice in chosen if choice.columns <= widest]
    every = [
        *(INT8_CHOICES.get(f"{how}, exact, {groups}{end}", ()) if plan.request.exact else ()),
        *(
            INT8_CHOICES.get(f"{how}, exact, state{end}", ())
            if plan.request.exact and plan.request.shape.state
            else ()
        ),
        *(
            INT8_CHOICES.get(f"{how}, exact, {plan.request.shape.kind}{end}", ())
            if plan.request.exact
            else ()
        ),
        *(INT8_CHOICES.get(f"{how}, exact{end}", ()) if plan.request.exact else ()),
        *INT8_CHOICES.get(f"{how}, {plan.request.shape.kind}{end}", ()),
        *(INT8_CHOICES.get(f"{how}, state{end}", ()) if plan.request.shape.state else ()),
        *INT8_CHOICES.get(f"{how}, {special}{end}", ()),
        *reversed(INT8_CHOICES[how + end]),
    ]
    every.sort(key=lambda choice: -choice.columns)
    return [choice for choice in every if choice.columns <= widest]
