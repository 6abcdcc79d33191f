"""How a plan is made: which rows a block owns, and what of them goes to which memory.

The first of the measured choices (`choices`) that fits decides; `placement` fills registers, then
shared memory, and streams what is left. What a plan is, and every size that follows, is in `plan`.
Pure integers; no torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wts.dtypes import NUMBER_TYPES, WEIGHT_TYPES, NumberType, WeightType
from wts.errors import PlanError, check_range
from wts.hardware.gpu import GpuSpec, gpu_spec
from wts.hardware.tensor_memory import has_product
from wts.heads.kinds import KINDS, RANKS, HeadShape
from wts.kernels.resident.arrange import first_that_fits
from wts.kernels.resident.exchange import Exchange
from wts.kernels.resident.placement import Placement
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.product import Product
from wts.kernels.resident.recurrence import Recurrence
from wts.kernels.resident.roles import Roles
from wts.kernels.resident.rounds import Rounds
from wts.kernels.resident.shard import PAIR_ROWS, Shard
from wts.selection import SIZES
from wts.selection.exact import EXACT_ROWS
from wts.selection.request import WalkRequest

if TYPE_CHECKING:
    from wts.heads.base import Head

__all__ = ["plan_residency", "plan_walk"]

MAX_BATCH = 64
MAX_STEPS = 32
MAX_VOCAB = 1 << 20
MAX_TABLE_ROWS = (1 << 31) - 1  # a row number is an int of the kernel
SWEEP_WARPS = 8  # of a block

# Products of a warp's sweep that the compiler writes out, one for each fragment.
MOST_WRITTEN = {"int8": 800, "bf16": 400}


def plan_walk(
    head: Head | HeadShape,
    device: GpuSpec | str,
    *,
    batch: int = 1,
    steps: int = 16,
    sampled: bool = False,
    base_type: NumberType = "bf16",
    exact: bool = False,
    weights: WeightType = "int8",
    tensor_memory: bool | None = None,
) -> ResidentPlan:
    """Decide where each tile of a head lives for the whole walk.

    Args:
        head: the head, or only its HeadShape.
        device: a GpuSpec, or a name that `wts.hardware.gpu.gpu_spec` knows ("h200", "LOCAL", ...).
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
    shape = head if isinstance(head, HeadShape) else _shape_of(head)
    spec = device if isinstance(device, GpuSpec) else gpu_spec(device)
    check_range("vocab", shape.vocab, 1, MAX_VOCAB)
    if shape.table_rows is not None:
        check_range("table_rows", shape.table_rows, 1, MAX_TABLE_ROWS)
    check_range("batch", batch, 1, MAX_BATCH)
    check_range("steps", steps, 1, MAX_STEPS)
    for flag, asked in (("sampled", sampled), ("exact", exact), ("tensor_memory", tensor_memory)):
        if not isinstance(asked, bool) and (flag, asked) != ("tensor_memory", None):
            raise PlanError.mismatch(
                flag, wanted="True or False", found=repr(asked), fix="give one of them"
            )
    if shape.rank not in RANKS:
        raise PlanError.mismatch(
            "rank",
            wanted=f"one of {', '.join(map(str, RANKS))}",
            found=shape.rank,
            fix="pad the head's rank",
        )
    if shape.kind not in KINDS:
        raise PlanError.mismatch(
            "kind",
            wanted=f"one of {', '.join(KINDS)}",
            found=repr(shape.kind),
            fix="name one of them",
        )
    KINDS[shape.kind].check(shape)
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

    request = WalkRequest(
        shape=replace(shape, table_rows=_table_rows(shape)),
        batch=batch,
        steps=steps,
        base_type=base_type,
        weights=weights,
        selection="exact" if exact else "token_race" if sampled else "greedy",
    )
    unplaced = _unplaced(request, spec)
    if exact:
        _check_exact(unplaced, sampled)
    fragments = unplaced.shard.warp_fragments
    if weights == "bf16" and fragments > MOST_WRITTEN[weights]:
        raise PlanError.mismatch(
            "weights",
            wanted=f"int8 where a warp has more than {MOST_WRITTEN[weights]} fragments",
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
    used = (there and weights == "bf16") if tensor_memory is None else tensor_memory
    unplaced = unplaced.replaced(request=replace(request, tensor_memory=used))
    eight = spec.is_hopper or weights == "bf16"  # int8 wants a warpgroup's instruction for them
    widest = 8 if eight and batch > 4 else 4 if batch > 2 else batch
    plan = first_that_fits(unplaced, widest)
    if not plan.fits:
        most, recurrence = spec.shared_bytes_per_block, plan.recurrence
        if recurrence.state_fills_blocks:
            raise PlanError(
                f"vocab {shape.vocab}, state {shape.state}: wanted at most {most // 2} bytes of "
                f"the state's matrix in each of {plan.shard.num_blocks} blocks, found "
                f"{recurrence.state_matrix_bytes}; walk so small a head on the emulator"
            )
        raise PlanError(
            f"batch {batch} with base logits in {base_type}: wanted at most {most} bytes of shared "
            f"memory, found {plan.shared_bytes}; plan a smaller batch, or a GPU with more "
            "co-resident blocks"
        )
    if plan.product.matrix_instructions > MOST_WRITTEN[weights]:
        raise PlanError(
            f"vocab {shape.vocab} of rank {shape.rank} in {spec.max_blocks} blocks: wanted at most "
            f"{MOST_WRITTEN[weights]} products of a warp, found "
            f"{plan.product.matrix_instructions}; walk it on a GPU with more co-resident blocks"
        )
    return plan


plan_residency = plan_walk
"""What it was called before."""


def _check_exact(plan: ResidentPlan, sampled: bool) -> None:
    """Refuse what an exact walk cannot be made of."""
    if not plan.request.quantised:
        raise PlanError.mismatch(
            "exact",
            wanted="False with bf16 weights",
            found="exact=True and weights='bf16'",
            fix="leave exact out: these weights are the head's own, or plan with weights='int8'",
        )
    if sampled:
        raise PlanError.mismatch(
            "exact",
            wanted="False where rows are sampled",
            found="exact=True and sampled=True",
            fix="leave exact out: a sampled walk exports the very logits it drew from, so that its "
            "verification is lossless already",
        )
    if plan.request.step_type != "bf16":
        raise PlanError.mismatch(
            "exact",
            wanted="base logits and a table in bf16",
            found=f"steps in {plan.request.step_type}",
            fix="convert them, or leave exact out",
        )
    if plan.shard.rows > EXACT_ROWS:
        raise PlanError.mismatch(
            "exact",
            wanted=f"at most {EXACT_ROWS} rows a block",
            found=f"{plan.shard.rows} on {plan.gpu.name}",
            fix="take a GPU with more co-resident blocks, or leave exact out",
        )


def _check_bf16(head: Head | HeadShape, shape: HeadShape, spec: GpuSpec) -> None:
    """Refuse bf16 weights for a head of other numbers, or on a GPU that they have no kernel for."""
    projection = None if isinstance(head, HeadShape) else str(head.projection.dtype)
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


def _unplaced(request: WalkRequest, gpu: GpuSpec) -> ResidentPlan:
    """What a plan is before anything is chosen: which rows a block and a warp own."""
    tiles = 2 * -(-request.shape.vocab // PAIR_ROWS)
    warp_tiles = -(-tiles // (gpu.max_blocks * SWEEP_WARPS))
    shard = Shard(
        request=request,
        num_blocks=-(-tiles // (warp_tiles * SWEEP_WARPS)),
        sweep_warps=SWEEP_WARPS,
        warp_tiles=warp_tiles,
    )
    product = Product(
        request=request,
        shard=shard,
        instruction="mma",
        columns=1,
        groups=request.batch,
        tiles_per_accumulator=1,
        sweep_passes=1,
        operand_slabs=1,
        queue_depth=1,
        tiles_in_flight=1,
    )
    placement = Placement(
        request=request,
        shard=shard,
        product=product,
        register_fragments=0,
        shared_fragments=0,
        streamed_fragments=0,
        ring_slots=0,
        copied_together=1,
    )
    roles = Roles(shard=shard, sweep_registers=0, service_registers=0, columns_per_wait=1)
    rounds = Rounds(request=request, shard=shard, product=product, base_buffers=2, exchange_lag=0)
    recurrence = Recurrence(
        request=request,
        gpu=gpu,
        shard=shard,
        product=product,
        rounds=rounds,
        hidden_inside=False,
        hidden_buffers=1,
    )
    selection = SIZES[request.selection](
        request=request,
        shard=shard,
        product=product,
        roles=roles,
        rounds=rounds,
        recurrence=recurrence,
    )
    return ResidentPlan(
        request=request,
        gpu=gpu,
        shard=shard,
        product=product,
        placement=placement,
        roles=roles,
        rounds=rounds,
        recurrence=recurrence,
        selection=selection,
        exchange=Exchange(shard=shard, product=product, selection=selection),
    )


def _table_rows(shape: HeadShape) -> int:
    return shape.vocab if shape.table_rows is None else shape.table_rows


def _shape_of(head: Head) -> HeadShape:
    needed = ("kind", "vocab", "rank", "table_rows", "table_type", "draft_to_target", "state_size")
    if not all(hasattr(head, name) for name in needed):
        raise PlanError.mismatch(
            "head",
            wanted="a head or a Shape",
            found=type(head).__name__,
            fix="pass a MarkovHead, or Shape(vocab=..., rank=...) where there are no weights yet",
        )
    return HeadShape(
        vocab=head.vocab,
        rank=head.rank,
        table_rows=head.table_rows,
        table_type=head.table_type,
        mapped=head.draft_to_target is not None,
        kind=head.kind,
        state=head.state_size,
        hidden=head.hidden_size or 0,
    )
