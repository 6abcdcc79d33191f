"""How a plan is made: which rows a block owns, and what of them goes to which memory.

The first of the measured choices that fits decides. Registers are filled first, then shared memory;
what is left is streamed. What a plan is, and every size that follows, is in `plan`. Pure integers;
no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wts.choices import BF16_CHOICES, Choice
from wts.device import GpuSpec, gpu_spec
from wts.errors import PlanError
from wts.numbers import (
    HEAD_KINDS,
    NUMBER_TYPES,
    RANKS,
    WEIGHT_TYPES,
    HeadKind,
    NumberType,
    WeightType,
)
from wts.plan import EXACT_ROWS, FRAGMENT_BYTES, PAIR_ROWS, TILES_JUDGED, ResidencyPlan
from wts.tensor_memory import COLUMNS, has_product

if TYPE_CHECKING:
    from wts.heads import Head

__all__ = [
    "Choice",
    "Shape",
    "plan_residency",
    "streaming_plan",
    "with_async_tiles",
    "with_choice",
    "with_fewer_registers",
    "with_lone_warps",
    "with_register_fragments",
]

LEAST_SWEEP_REGISTERS = 184
MAX_BATCH = 64
MAX_STATE = 1 << 14
MAX_HIDDEN = 1 << 16
MAX_STEPS = 32
MAX_VOCAB = 1 << 20
MAX_TABLE_ROWS = (1 << 31) - 1  # a row number is an int of the kernel
SWEEP_WARPS = 8  # of a block
MOST_UNROLLED_TILES = 20  # of a warp of a warpgroup: more take the compiler minutes
MOST_WRITTEN_PRODUCTS = 800  # of a sweep of a warp: the compiler writes out no more
# Half tiles of a warpgroup's ring: of two batches being multiplied, and of one on its way.
RING_UNITS = 6
# Fragments of a warp's ring, where warps multiply alone: what covers the way from L2. Of bulk
# copies, which also come while blocks exchange: about as many as come in that time.
RING_FRAGMENTS = range(8, 17)
BULK_RING_FRAGMENTS = 16
LEAST_BULK_PLACES = 3
MOST_BF16_FRAGMENTS = 640  # of a warp: the sweep of more takes the compiler minutes, and spills


_CHOICES = {
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
        Choice("wgmma", 8, 37, 0, 4, (208, 88), 2),
        Choice("mma", 4, 38, 4, 4, (216, 72)),
        Choice("mma", 2, 42, 4, 5, (216, 72)),
        Choice("mma", 1, 43, 6, 5, (216, 72)),
    ),
    "greedy, exact, groups": (Choice("wgmma", 8, 35, 0, 4, (208, 88), 2),),
    "greedy, exact, gated": (Choice("mma", 1, 39, 6, 5, (208, 88)),),
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
        Choice("wgmma", 8, 36, 0, 4, (208, 88), 2),
        Choice("mma", 4, 37, 4, 4, (216, 72)),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a plan needs to know of a head.

    Args:
        vocab: rows of the projection that can win.
        rank: latent elements.
        table_rows: rows of the previous-token table; vocab by default.
        table_type: number type of the table.
        mapped: whether draft ids are mapped to target ids.
        kind: of the head.
        state: elements of the state that a step carries over: r (RNN), G (Domino) or none.
        hidden: elements of the hidden states that it reads, H; 0 for a Markov head.
    """

    vocab: int
    rank: int
    table_rows: int | None = None
    table_type: NumberType = "bf16"
    mapped: bool = False
    kind: HeadKind = "markov"
    state: int = 0
    hidden: int = 0


def plan_residency(
    head: Head | Shape,
    device: GpuSpec | str,
    *,
    batch: int = 1,
    steps: int = 16,
    sampled: bool = False,
    base_type: NumberType = "bf16",
    exact: bool = False,
    weights: WeightType = "int8",
    tensor_memory: bool | None = None,
) -> ResidencyPlan:
    """Decide where each tile of a head lives for the whole walk.

    Args:
        head: the head, or only its Shape.
        device: a GpuSpec, or a name that `wts.device.gpu_spec` knows ("h200", "LOCAL", ...).
        batch: most requests walked together, 1 to 64.
        steps: most steps of a walk, 1 to 32.
        sampled: whether rows may have a temperature above 0; greedy plans exchange smaller words.
        base_type: number type of the base logits: "bf16", "fp16" or "fp32".
        exact: whether tokens are those of the unquantised head (docs/exact.md), of greedy walks in
            bf16.
        weights: "int8": rows of the projection are quantised, so that twice as many stay on chip;
            "bf16": they are the head's own, which are then bf16, as its table is.
        tensor_memory: whether tiles that registers have no room for go to a Blackwell's tensor
            memory before shared memory, and are multiplied there; by default bf16 weights are,
            where there is such a memory. Kernels for Blackwell were never run on a GPU.

    Returns:
        The plan; `print(plan)` shows its byte ledger.

    Raises:
        PlanError: an argument out of range, or a head that cannot be planned on this GPU.
        DeviceError: an unknown device name.
    """
    shape = head if isinstance(head, Shape) else _shape_of(head)
    spec = device if isinstance(device, GpuSpec) else gpu_spec(device)
    _check_range("vocab", shape.vocab, 1, MAX_VOCAB)
    if shape.table_rows is not None:
        _check_range("table_rows", shape.table_rows, 1, MAX_TABLE_ROWS)
    _check_range("batch", batch, 1, MAX_BATCH)
    _check_range("steps", steps, 1, MAX_STEPS)
    if shape.rank not in RANKS:
        raise PlanError.mismatch(
            "rank",
            wanted=f"one of {', '.join(map(str, RANKS))}",
            found=shape.rank,
            fix="pad the head's rank",
        )
    if shape.kind not in HEAD_KINDS:
        raise PlanError.mismatch(
            "kind",
            wanted=f"one of {', '.join(HEAD_KINDS)}",
            found=repr(shape.kind),
            fix="name one of them",
        )
    if shape.kind in ("rnn", "domino"):
        _check_range("state", shape.state, 1, MAX_STATE)
        fits = shape.state == shape.rank if shape.kind == "rnn" else shape.state % 32 == 0
        if not fits:
            raise PlanError.mismatch(
                "state",
                wanted="the rank" if shape.kind == "rnn" else "a multiple of 32",
                found=shape.state,
                fix="give the size of the head's state",
            )
    elif shape.state != 0:
        raise PlanError.mismatch(
            "state",
            wanted=f"0 for a {shape.kind} head",
            found=repr(shape.state),
            fix="leave it out",
        )
    if shape.kind != "markov":
        _check_range("hidden", shape.hidden, 1, MAX_HIDDEN)
    elif shape.hidden != 0:
        raise PlanError.mismatch(
            "hidden", wanted="0 for a markov head", found=repr(shape.hidden), fix="leave it out"
        )
    for name, value in (("base_type", base_type), ("table_type", shape.table_type)):
        if value not in NUMBER_TYPES:
            raise PlanError.mismatch(
                name,
                wanted=f"one of {', '.join(NUMBER_TYPES)}",
                found=repr(value),
                fix="name one of them",
            )

    if weights not in WEIGHT_TYPES:
        raise PlanError.mismatch(
            "weights",
            wanted=f"one of {', '.join(WEIGHT_TYPES)}",
            found=repr(weights),
            fix="name one of them",
        )
    if weights == "bf16":
        _check_bf16(head, shape, spec)

    unplaced = _unplaced(shape, spec, batch, steps, sampled, base_type, weights)
    if exact:
        _check_exact(unplaced)
        unplaced = replace(unplaced, exact=True)
    fragments = unplaced.warp_tiles * unplaced.slabs
    if weights == "bf16" and fragments > MOST_BF16_FRAGMENTS:
        raise PlanError.mismatch(
            "weights",
            wanted=f"int8 where a warp has more than {MOST_BF16_FRAGMENTS} fragments",
            found=f"bf16, {fragments} fragments",
            fix="plan with weights='int8', or for a GPU with more co-resident blocks",
        )
    there = spec.tensor_bytes_per_sm > 0 and has_product(spec.arch, weights)
    if tensor_memory and not there:
        raise PlanError.mismatch(
            "tensor_memory",
            wanted=f"a GPU that multiplies {weights} weights from tensor memory",
            found=f"{spec.name} ({spec.arch})",
            fix="leave it out; b200 has it for all weights, b300 for weights='bf16'",
        )
    if tensor_memory or (tensor_memory is None and there and weights == "bf16"):
        unplaced = replace(unplaced, tensor_limit=COLUMNS)
    eight = spec.is_hopper or weights == "bf16"  # int8 wants a warpgroup's instruction for them
    widest = 8 if eight and batch > 4 else 4 if batch > 2 else batch
    plan = _first_that_fits(unplaced, widest)
    if plan.shared_bytes > plan.shared_limit:
        matrix = 2 * plan.unit_rows * plan.block_units * plan.state
        if matrix > plan.shared_limit // 2:  # blocks are as many as the vocabulary fills
            raise PlanError(
                f"vocab {plan.vocab}, state {plan.state}: wanted at most {plan.shared_limit // 2} "
                f"bytes of the state's matrix in each of {plan.num_blocks} blocks, found {matrix}; "
                "walk so small a head on the emulator"
            )
        raise PlanError(
            f"batch {batch} with base logits in {base_type}: wanted at most {plan.shared_limit} "
            f"bytes of shared memory, found {plan.shared_bytes}; plan a smaller batch, or a GPU "
            "with more co-resident blocks"
        )
    if plan.matrix_instructions > MOST_WRITTEN_PRODUCTS:
        raise PlanError(
            f"vocab {shape.vocab} of rank {shape.rank} in {spec.max_blocks} blocks: wanted at most "
            f"{MOST_WRITTEN_PRODUCTS} products of a warp, found {plan.matrix_instructions}; "
            "walk it on a GPU with more co-resident blocks"
        )
    return plan


def _check_exact(plan: ResidencyPlan) -> None:
    """Refuse what an exact walk cannot be made of."""
    if not plan.quantised:
        raise PlanError.mismatch(
            "exact",
            wanted="False with bf16 weights",
            found="exact=True and weights='bf16'",
            fix="leave exact out: these weights are the head's own, or plan with weights='int8'",
        )
    if plan.sampled:
        raise PlanError.mismatch(
            "exact",
            wanted="False where rows are sampled",
            found="exact=True and sampled=True",
            fix="leave exact out: a sampled walk exports the very logits it drew from, so that its "
            "verification is lossless already",
        )
    if plan.step_type != "bf16":
        raise PlanError.mismatch(
            "exact",
            wanted="base logits and a table in bf16",
            found=f"steps in {plan.step_type}",
            fix="convert them, or leave exact out",
        )
    if plan.rows > EXACT_ROWS:
        raise PlanError.mismatch(
            "exact",
            wanted=f"at most {EXACT_ROWS} rows a block",
            found=f"{plan.rows} on {plan.gpu}",
            fix="take a GPU with more co-resident blocks, or leave exact out",
        )


def _check_bf16(head: Head | Shape, shape: Shape, spec: GpuSpec) -> None:
    """Refuse bf16 weights for a head of other numbers, or on a GPU that they have no kernel for."""
    projection = None if isinstance(head, Shape) else str(head.projection.dtype)
    found = "bf16" if projection in (None, "torch.bfloat16") else projection
    if (found, shape.table_type) != ("bf16", "bf16"):
        raise PlanError.mismatch(
            "weights",
            wanted="int8 for a head whose projection or table is not bf16",
            found=f"bf16, a projection in {found} and a table in {shape.table_type}",
            fix="convert the head to bf16, or plan with weights='int8'",
        )
    if not spec.walks:
        raise PlanError.mismatch(
            "weights",
            wanted=f"int8 on {spec.name} ({spec.arch})",
            found="bf16",
            fix="plan with weights='int8', or for a GPU that there is a kernel for",
        )


def _choices(plan: ResidencyPlan, widest: int, *, streaming: bool) -> list[Choice]:
    """Choices for a plan, the best first: most columns, then those for its kind."""
    how = "sampled" if plan.sampled else "greedy"
    groups = {1: "one group", 2: "two groups"}.get(-(-plan.batch // widest), "groups")
    special = groups if plan.sampled else "64-bit words" if plan.wide else "32-bit words"
    end = ", streaming" if streaming else ""
    if not plan.quantised:
        special = "wide" if plan.wide and not plan.sampled else ""
        kinds = (plan.kind, "state" if plan.state else "", special)
        keys = [f"{how}, {kind}" for kind in kinds if kind] + [how + end]
        if plan.tensor_limit:
            keys = [f"{how}, tensor memory"]
        chosen = next(BF16_CHOICES[key] for key in keys if key in BF16_CHOICES)
        return [choice for choice in chosen if choice.columns <= widest]
    every = [
        *(_CHOICES.get(f"{how}, exact, {groups}{end}", ()) if plan.exact else ()),
        *(_CHOICES.get(f"{how}, exact, state{end}", ()) if plan.exact and plan.state else ()),
        *(_CHOICES.get(f"{how}, exact, {plan.kind}{end}", ()) if plan.exact else ()),
        *(_CHOICES.get(f"{how}, exact{end}", ()) if plan.exact else ()),
        *_CHOICES.get(f"{how}, {plan.kind}{end}", ()),
        *(_CHOICES.get(f"{how}, state{end}", ()) if plan.state else ()),
        *_CHOICES.get(f"{how}, {special}{end}", ()),
        *reversed(_CHOICES[how + end]),
    ]
    every.sort(key=lambda choice: -choice.columns)
    return [choice for choice in every if choice.columns <= widest]


def _first_that_fits(unplaced: ResidencyPlan, widest: int) -> ResidencyPlan:
    """The plan of the first choice that can be; of the last one, too large, where none can."""
    plan = unplaced
    for choice in _choices(unplaced, widest, streaming=False):
        plan = _arrange(unplaced, choice)
        if plan.shared_bytes > plan.shared_limit:
            continue  # large shards may leave no room to stage so many requests' base logits
        if plan.warpgroups and plan.warp_tiles > MOST_UNROLLED_TILES:
            continue
        # Where little streams, and by warpgroups, the choice for resident weights is as good.
        resident = plan.register_fragments + plan.shared_fragments
        if plan.streamed_fragments == 0 or (plan.warpgroups and plan.streamed_fragments < resident):
            return plan
        for other in _choices(unplaced, widest, streaming=True):
            if other.columns == plan.columns:
                streaming = _arrange(unplaced, other)
                if streaming.shared_bytes <= streaming.shared_limit:
                    return streaming
        return plan
    return plan


def _unplaced(
    shape: Shape,
    spec: GpuSpec,
    batch: int,
    steps: int,
    sampled: bool,
    base_type: NumberType,
    weights: WeightType,
) -> ResidencyPlan:
    """What a plan is before anything is chosen: which rows a block and a warp own."""
    tiles = 2 * -(-shape.vocab // PAIR_ROWS)
    warp_tiles = -(-tiles // (spec.max_blocks * SWEEP_WARPS))
    return ResidencyPlan(
        gpu=spec.name,
        arch=spec.arch,
        kind=shape.kind,
        state=shape.state,
        hidden=shape.hidden,
        hidden_inside=False,
        hidden_places=1,
        vocab=shape.vocab,
        rank=shape.rank,
        table_rows=shape.table_rows if shape.table_rows is not None else shape.vocab,
        mapped=shape.mapped,
        weights=weights,
        batch=batch,
        steps=steps,
        sampled=sampled,
        base_type=base_type,
        step_type=_promote(base_type, shape.table_type),
        num_blocks=-(-tiles // (warp_tiles * SWEEP_WARPS)),
        instruction="mma",
        sweep_warps=SWEEP_WARPS,
        sweep_registers=0,
        service_registers=0,
        warp_tiles=warp_tiles,
        register_fragments=0,
        shared_fragments=0,
        streamed_fragments=0,
        ring_units=0,
        copied_together=1,
        columns=1,
        groups=batch,
        tiles_per_accumulator=1,
        phases=1,
        operand_slabs=1,
        queue_depth=1,
        tiles_in_flight=1,
        served_together=1,
        base_slots=2,
        exchange_lag=0,
        shared_limit=spec.shared_bytes_per_block,
        max_blocks=spec.max_blocks,
    )


def _arrange(plan: ResidencyPlan, choice: Choice) -> ResidencyPlan:
    """The same rows arranged as a choice says; it may need more shared memory than there is."""
    groups = -(-plan.batch // choice.columns)
    warpgroups = choice.instruction == "wgmma"
    sharing = 1 if warpgroups else max(1, 4 // choice.columns)
    accumulators = -(-plan.warp_tiles // sharing)
    plan = replace(
        plan,
        instruction=choice.instruction,
        sweep_registers=choice.registers[0],
        service_registers=choice.registers[1],
        columns=choice.columns,
        groups=groups,
        tiles_per_accumulator=-(-plan.warp_tiles // accumulators),
        queue_depth=max(1, choice.queue),
        operand_slabs=choice.operands or plan.slabs,
        copied_together=choice.copied,
        tiles_in_flight=choice.live if warpgroups else 1,
        served_together=choice.together,
        exchange_lag=1 if groups > 2 else 0,
    )
    longer = (
        0 if warpgroups else max(0, plan.operand_slabs - 8) // 2
    )  # a longer latent takes as many
    live = accumulators if warpgroups else choice.live
    return _place(plan, choice.fragments - longer, live)


def with_fewer_registers(plan: ResidencyPlan) -> ResidencyPlan:
    """The same rows with four fragments fewer in registers, for a compiler that spilled.

    Half of what is gained is left to the sweeping warps, half goes to the service warps: either may
    have spilled.

    Raises:
        PlanError: too few are left to take away.
    """
    if plan.register_fragments <= 8:
        raise PlanError(
            f"plan {plan.hash}: wanted more than 8 fragments in registers, found "
            f"{plan.register_fragments}; report this plan: {plan!r}"
        )
    # Fewer loads ahead and more sums at once are what else was seen to help where tiles are many.
    live = plan.lone_accumulators if plan.warpgroups else 5
    shift = 8 if plan.sweep_registers > LEAST_SWEEP_REGISTERS else 0
    fewer = replace(
        plan,
        queue_depth=min(plan.queue_depth, 2),
        sweep_registers=plan.sweep_registers - shift,
        service_registers=plan.service_registers + 2 * shift,
    )
    fewer = _place(fewer, plan.register_fragments - 4, live)
    if fewer.shared_bytes > fewer.shared_limit:
        raise PlanError(
            f"plan {plan.hash}: wanted room in shared memory for four more fragments a warp, found "
            f"none; report this plan: {plan!r}"
        )
    return fewer


def with_lone_warps(plan: ResidencyPlan) -> ResidencyPlan:
    """The same rows and batch for warps that multiply alone.

    For a warpgroup's plan that a compiler spills and that has no register left to give.
    """
    return _first_that_fits(plan, widest=4)


def streaming_plan(plan: ResidencyPlan) -> ResidencyPlan:
    """The same walk with nothing resident: every weight comes from L2 in every step.

    For benchmarks only: it separates what one launch saves from what residency saves.

    Args:
        plan: of a Markov head, as `plan_residency` makes it.

    Raises:
        PlanError: a head that reads hidden states, or a shard that no ring divides.
    """
    if plan.kind != "markov":
        raise PlanError(f"plan: wanted one of a markov head, found {plan.kind}; stream no other")
    plan = replace(plan, tensor_limit=0, tensor_tiles=0, matrix_tiles=0)
    fragments = plan.warp_tiles * plan.slabs
    if plan.warpgroups:
        # Whole tiles are in flight at once: more of them than a ring holds would wait for ever.
        plan = replace(plan, tiles_in_flight=TILES_JUDGED)
        ring = min(RING_UNITS, fragments // plan.unit_fragments)
    else:
        plan = replace(plan, copied_together=1)
        whole = [length for length in RING_FRAGMENTS if fragments % length == 0]
        ring = max(whole, default=0)
    streaming = replace(
        plan,
        register_fragments=0,
        shared_fragments=0,
        streamed_fragments=fragments,
        ring_units=ring,
    )
    if ring == 0 or streaming.shared_bytes > streaming.shared_limit:
        raise PlanError(
            f"plan {plan.hash}: wanted {fragments} fragments of a warp in whole rings that fit in "
            f"shared memory, found none; stream a head with more rows"
        )
    return streaming


def with_register_fragments(plan: ResidencyPlan, fragments: int) -> ResidencyPlan:
    """The same rows with another number of fragments in registers, the others placed behind them.

    For benchmarks: how a plan's placement was chosen. A compiler may spill such a plan.

    Raises:
        PlanError: none or more than a warp has.
    """
    _check_range("fragments", fragments, 1, plan.fragments)
    live = plan.accumulators if plan.warpgroups else plan.live_accumulators
    return _place_lone_tiles(plan, fragments, live)


def with_async_tiles(plan: ResidencyPlan, tensor: int, matrix: int) -> ResidencyPlan:
    """The same rows with other numbers of each warp's tiles multiplied by tcgen05.

    For benchmarks and tests. A compiler may spill such a plan.

    Args:
        plan: one with `tensor_memory`.
        tensor: tiles in tensor memory.
        matrix: tiles in shared memory.

    Raises:
        PlanError: a plan without, too few tiles left to a warp itself, tiles of one accumulator
            that not all would be multiplied in the same way, or more than there is room for.
    """
    left = plan.warp_tiles - tensor - matrix
    if min(tensor, matrix) < 0 or left < 1 or left % plan.tiles_per_accumulator:
        raise PlanError.mismatch(
            "tensor, matrix",
            wanted=f"so many that a multiple of {plan.tiles_per_accumulator} of {plan.warp_tiles} "
            "tiles is left",
            found=f"{tensor}, {matrix}",
            fix="give other numbers",
        )
    found = replace(plan, tensor_tiles=tensor, matrix_tiles=matrix)
    if found.tensor_columns > plan.tensor_limit:
        raise PlanError.mismatch(
            "tensor",
            wanted=f"at most {plan.tensor_limit} columns of tensor memory",
            found=f"{tensor} tiles, {found.tensor_columns} columns with their sums",
            fix="give fewer, and plan with tensor_memory=True",
        )
    found = _place_lone_tiles(found, plan.register_fragments, plan.live_accumulators)
    if found.shared_bytes > found.shared_limit:
        raise PlanError.mismatch(
            "matrix",
            wanted=f"at most {found.shared_limit} bytes of shared memory",
            found=f"{matrix} tiles, {found.shared_bytes} bytes in all",
            fix="give fewer",
        )
    return found


def with_choice(plan: ResidencyPlan, choice: Choice) -> ResidencyPlan:
    """The same walk divided as another choice says.

    For benchmarks: how the choices were chosen. A compiler may spill such a plan.

    Raises:
        PlanError: it does not fit in shared memory.
    """
    other = _arrange(plan, choice)
    if other.shared_bytes > other.shared_limit:
        raise PlanError(
            f"{choice}: wanted at most {other.shared_limit} bytes of shared memory, found "
            f"{other.shared_bytes}; keep more fragments in registers"
        )
    return other


def _place(plan: ResidencyPlan, most_registers: int, live: int) -> ResidencyPlan:
    """Place the weights: in registers, then in tensor memory where a plan may, then elsewhere.

    Tiles that share an accumulator are multiplied in the same way, so registers may be left
    unused; of what streams as little, the plan that uses most of them is taken, and of these one
    whose warps read the least from shared memory themselves.
    """
    sharing = plan.tiles_per_accumulator
    plan = replace(plan, tensor_tiles=0, matrix_tiles=0)
    placed = [_place_lone_tiles(plan, most_registers, live)]
    if not plan.tensor_limit:
        return placed[0]
    for lone in range((plan.warp_tiles - 1) // sharing * sharing, 0, -sharing):
        tiles = plan.warp_tiles - lone
        splits = (
            replace(plan, tensor_tiles=tiles - matrix, matrix_tiles=matrix)
            for matrix in range(tiles)
        )
        split = next((s for s in splits if s.tensor_columns <= plan.tensor_limit), None)
        if split is not None:
            placed.append(_place_lone_tiles(split, most_registers, live))
    fitting = [p for p in placed if p.shared_bytes <= p.shared_limit] or placed
    return min(
        fitting,
        key=lambda p: (
            p.streamed_fragments,
            -p.register_fragments,
            p.shared_fragments + p.matrix_tiles * p.slabs,
            -p.matrix_tiles,
        ),
    )


def _place_lone_tiles(plan: ResidencyPlan, most_registers: int, live: int) -> ResidencyPlan:
    """Place what warps multiply themselves; weights of hidden states too, if they displace none.

    Warps that make the latents of few requests together have time to multiply them, and no other
    kernel has to run before the walk. Lanes read eight elements at once.
    """
    if plan.hidden > 0 and plan.hidden % 8 == 0 and plan.groups == 1 and plan.columns <= 2:
        fitting = []
        for places in (2, 1):  # with two, one step's are multiplied while the next one's come
            inside = replace(plan, hidden_inside=True, hidden_places=places)
            inside = _place_projection(inside, most_registers, live)
            if inside.shared_bytes <= inside.shared_limit and inside.streamed_fragments == 0:
                fitting.append(inside)
        if fitting:  # the first one, unless its second place is in the way of base logits
            return max(fitting, key=lambda inside: inside.base_slots)
    plan = replace(plan, hidden_inside=False, hidden_places=1)
    return _place_projection(plan, most_registers, live)


def _place_projection(plan: ResidencyPlan, most_registers: int, live: int) -> ResidencyPlan:
    """Fill registers, then shared memory; stream the rest; stage base logits in what is left."""
    fragments = plan.fragments
    registers = min(fragments, most_registers)
    plan = replace(
        plan,
        register_fragments=registers,
        shared_fragments=fragments - registers,
        streamed_fragments=0,
        ring_units=0,
        phases=-(-plan.lone_accumulators // live),
        base_slots=2,
    )
    if plan.warpgroups and plan.shared_bytes > plan.shared_limit:
        # With one group, base logits of one round: they come while blocks exchange.
        plan = replace(plan, base_slots=1 if plan.groups == 1 else 2)
        return (
            plan if plan.shared_bytes <= plan.shared_limit else _stream_units(plan, most_registers)
        )
    if plan.shared_bytes > plan.shared_limit:
        return _stream_fragments(plan)
    while plan.base_slots < 4:  # further ahead where it costs no residency
        deeper = replace(plan, base_slots=plan.base_slots + 1)
        if deeper.shared_bytes > plan.shared_limit:
            break
        plan = deeper
    return plan


def _stream_fragments(plan: ResidencyPlan) -> ResidencyPlan:
    """What there is no room for passes through warps' rings; too large a plan where none is left.

    A ring of lanes' copies divides what is streamed, so that a fragment has the same place in each
    sweep; of bulk copies some are a fragment shorter.
    """
    too_many = plan.shared_bytes - plan.shared_limit
    lacking = -(-too_many // (plan.sweep_warps * FRAGMENT_BYTES))
    if plan.copied_together > 1:
        places = max(LEAST_BULK_PLACES, BULK_RING_FRAGMENTS // plan.copied_together)
        for streamed in range(lacking + places * plan.copied_together, plan.shared_fragments + 1):
            streaming = replace(
                plan,
                shared_fragments=plan.shared_fragments - streamed,
                streamed_fragments=streamed,
                ring_units=places,
            )
            if streaming.shared_bytes <= plan.shared_limit:
                return streaming
        return plan
    for missing in range(max(lacking, RING_FRAGMENTS[0]), plan.shared_fragments + 1):
        for length in reversed(RING_FRAGMENTS):
            streamed = missing + length
            if missing % length or streamed > plan.shared_fragments:
                continue
            streaming = replace(
                plan,
                shared_fragments=plan.shared_fragments - streamed,
                streamed_fragments=streamed,
                ring_units=length,
            )
            if streaming.shared_bytes <= plan.shared_limit:
                return streaming
    return plan


def _stream_units(plan: ResidencyPlan, most_registers: int) -> ResidencyPlan:
    """As few half tiles streamed as there is no room for; too large a plan where none fits."""
    fragments = plan.warp_tiles * plan.slabs
    ring = RING_UNITS if plan.tiles_in_flight > TILES_JUDGED else RING_UNITS - 2
    plan = replace(plan, ring_units=ring)
    for streamed in range(ring * plan.unit_fragments, fragments + 1, plan.unit_fragments):
        registers = min(fragments - streamed, most_registers)
        plan = replace(
            plan,
            register_fragments=registers,
            shared_fragments=fragments - streamed - registers,
            streamed_fragments=streamed,
        )
        if plan.shared_bytes <= plan.shared_limit:
            break
    return plan


def _promote(first: NumberType, second: NumberType) -> NumberType:
    """torch's promotion of two number types: equal ones stay, different ones meet in fp32."""
    return first if first == second else "fp32"


def _shape_of(head: Head) -> Shape:
    needed = ("kind", "vocab", "rank", "table_rows", "table_type", "draft_to_target", "state_size")
    if not all(hasattr(head, name) for name in needed):
        raise PlanError.mismatch(
            "head",
            wanted="a head or a Shape",
            found=type(head).__name__,
            fix="pass a MarkovHead, or Shape(vocab=..., rank=...) where there are no weights yet",
        )
    return Shape(
        vocab=head.vocab,
        rank=head.rank,
        table_rows=head.table_rows,
        table_type=head.table_type,
        mapped=head.draft_to_target is not None,
        kind=head.kind,
        state=head.state_size,
        hidden=head.hidden_size or 0,
    )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanError.mismatch(
            name,
            wanted=f"an integer from {low} to {high}",
            found=repr(value),
            fix="give one of them",
        )
