"""How a block may divide its registers and its work; those for bf16 weights."""

from __future__ import annotations

from dataclasses import dataclass

from wts.plan import Instruction

__all__ = ["BF16_CHOICES", "Choice"]


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
