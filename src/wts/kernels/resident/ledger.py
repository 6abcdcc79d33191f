"""What a plan prints: how many bytes are kept where, and what a step has to read again."""

from __future__ import annotations

from wts.hardware.tensor_memory import COLUMNS
from wts.kernels.resident.sections import Sections
from wts.kernels.resident.shard import FRAGMENT_BYTES

__all__ = ["ledger"]

_MIB = 1 << 20


def ledger(plan: Sections, *, name: str, shared_bytes: int) -> str:
    """The byte ledger as a table.

    Args:
        plan: all that it is made of.
        name: of the plan.
        shared_bytes: shared memory of one block.
    """
    lines = [_asked(plan, name), _blocks(plan), *_memories(plan), *_latents(plan)]
    lines += _held(plan, shared_bytes)
    return "\n".join([*lines, *_sweep(plan)])


def _asked(plan: Sections, name: str) -> str:
    """For what, and for which GPU."""
    request, shape = plan.request, plan.request.shape
    chosen = "sampled" if request.sampled else "greedy"
    return (
        f"plan {name}: {shape.kind}, V = {shape.vocab}, r = {shape.rank}, {request.weights}, "
        f"batch {request.batch}, {request.steps} steps, {chosen}, "
        f"{'exact, ' if request.exact else ''}on {plan.gpu.name} ({plan.gpu.arch})"
    )


def _blocks(plan: Sections) -> str:
    return (
        f"  {plan.shard.num_blocks} blocks of {plan.roles.threads} threads, {plan.shard.rows} rows "
        f"each ({plan.gpu.max_blocks} can be co-resident)"
    )


def _memories(plan: Sections) -> list[str]:
    """A row for each memory that has weights, and what is read of it again."""
    shard, product, placement = plan.shard, plan.product, plan.placement
    warps = shard.num_blocks * shard.sweep_warps
    in_shared_memory = placement.shared_fragments + product.matrix_tiles * shard.slabs
    rows = [
        ("registers", placement.register_fragments),
        ("shared memory", in_shared_memory),
        ("tensor memory", product.tensor_tiles * shard.slabs),
        ("streamed from L2", placement.streamed_fragments),
    ]
    if not product.tcgen05_tiles:
        del rows[2]
    lines = [f"  {'where':<18}{'tiles/warp':>11}{'tiles':>8}{'MiB':>8}{'share':>8}"]
    for memory, count in rows:
        lines.append(
            f"  {memory:<18}{count / shard.slabs:>11.2f}{count * warps / shard.slabs:>8.0f}"
            f"{count * warps * FRAGMENT_BYTES / _MIB:>8.1f}{count / shard.warp_fragments:>8.1%}"
        )
    if placement.streamed_fragments:
        reads = placement.reads_of_w_per_step
        verdict = ": step-wise execution is faster" if placement.slower_than_stepwise else ""
        lines.append(f"  reads {reads:.2f} times the projection from L2 a step{verdict}")
    return lines


def _latents(plan: Sections) -> list[str]:
    """Matrices that latents are made with, beside the projection."""
    shape, recurrence, lines = plan.request.shape, plan.recurrence, []
    if shape.state:
        own, every = recurrence.sums * recurrence.block_neurons, recurrence.sums * shape.state
        lines.append(
            f"  state: {shape.state} numbers a request, {own} of {every} rows of its matrix in "
            f"each block ({2 * own * shape.state} bytes)"
        )
    if recurrence.projector_rows:
        lines.append(
            f"  projector: {recurrence.block_projections} of {recurrence.projector_rows} rows in "
            f"each block ({2 * recurrence.block_projections * shape.state} bytes)"
        )
    if shape.hidden:
        where = "by one matrix product before the walk"
        if recurrence.hidden_inside:
            where = (
                f"by the kernel, {recurrence.hidden_rows} of {recurrence.hidden_term} rows in each "
                f"block ({2 * recurrence.hidden_rows * shape.hidden} bytes)"
            )
        lines.append(f"  hidden states of {shape.hidden} numbers are multiplied {where}")
    return lines


def _held(plan: Sections, shared_bytes: int) -> list[str]:
    """Bytes of shared memory, and of the GPU's."""
    request, exchange = plan.request, plan.exchange
    total = plan.shard.padded_vocab * request.row_bytes
    table = request.table_rows * request.table_row_bytes
    fetched = "latent table" if request.kind.latents_are_rows else "input rows"
    workspace = exchange.workspace_words * exchange.word_bytes
    workspace += 8 * plan.recurrence.state_words + 8 * plan.selection.workspace_words
    return [
        f"  resident {plan.placement.resident_share:.1%} of {total / _MIB:.1f} MiB",
        f"  shared memory {shared_bytes} of {plan.gpu.shared_bytes_per_block} bytes per block; "
        f"base logits staged {plan.rounds.base_buffers - 1} rounds ahead",
        f"  in memory: projection {total / _MIB:.1f} MiB, {fetched} {table / _MIB:.1f} MiB, "
        f"workspace {workspace} bytes",
    ]


def _sweep(plan: Sections) -> list[str]:
    """How rows are multiplied."""
    product = plan.product
    lines = [
        f"  sweep by {product.instruction}: {product.groups} group(s) of {product.columns} "
        f"request(s), {product.tiles_per_accumulator} tile(s) share an accumulator, "
        f"{product.sweep_passes} phase(s), {plan.exchange.word_bytes}-byte words"
    ]
    if product.tcgen05_tiles:
        lines.append(
            f"  tcgen05 multiplies {product.tcgen05_tiles} of {plan.shard.warp_tiles} tiles of "
            f"every warp, {product.tensor_tiles} of them in tensor memory: "
            f"{plan.placement.tmem_columns} of {COLUMNS} columns with their sums"
        )
    return lines
