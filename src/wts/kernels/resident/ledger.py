"""What a plan prints: how many bytes are kept where, and what a step has to read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wts.hardware.tensor_memory import COLUMNS
from wts.kernels.resident.units import FRAGMENT_BYTES

if TYPE_CHECKING:
    from wts.kernels.resident.plan import ResidencyPlan

__all__ = ["ledger"]


def ledger(plan: ResidencyPlan) -> str:
    """The byte ledger as a table."""
    warps = plan.num_blocks * plan.sweep_warps
    total = plan.padded_vocab * plan.row_bytes
    rows = [
        ("registers", plan.register_fragments),
        ("shared memory", plan.shared_fragments),
        ("streamed from L2", plan.streamed_fragments),
    ]
    if plan.async_tiles:
        rows[1] = ("shared memory", plan.shared_fragments + plan.matrix_tiles * plan.slabs)
        rows.insert(2, ("tensor memory", plan.tensor_tiles * plan.slabs))
    lines = [
        f"plan {plan.hash}: {plan.kind}, V = {plan.vocab}, r = {plan.rank}, "
        f"{plan.weights}, batch {plan.batch}, "
        f"{plan.steps} steps, {'sampled' if plan.sampled else 'greedy'}, "
        f"{'exact, ' if plan.exact else ''}"
        f"on {plan.gpu} ({plan.arch})",
        f"  {plan.num_blocks} blocks of {plan.threads} threads, {plan.rows} rows each "
        f"({plan.max_blocks} can be co-resident)",
        f"  {'where':<18}{'tiles/warp':>11}{'tiles':>8}{'MiB':>8}{'share':>8}",
    ]
    for name, count in rows:
        lines.append(
            f"  {name:<18}{count / plan.slabs:>11.2f}{count * warps / plan.slabs:>8.0f}"
            f"{count * warps * FRAGMENT_BYTES / 2**20:>8.1f}"
            f"{count / (plan.warp_tiles * plan.slabs):>8.1%}"
        )
    if plan.streamed_fragments:
        verdict = ": step-wise execution is faster" if plan.loses else ""
        lines.append(f"  reads {plan.readings:.2f} times the projection from L2 a step{verdict}")
    table = plan.table_rows * plan.table_row_bytes
    name = "latent table" if plan.kind == "markov" else "input rows"
    workspace = plan.workspace_words * plan.word_bytes + 8 * plan.state_words + 8 * plan.exact_words
    if plan.state:
        own, every = plan.unit_rows * plan.block_units, plan.unit_rows * plan.state
        lines.append(
            f"  state: {plan.state} numbers a request, {own} of {every} rows of its matrix in each "
            f"block ({2 * own * plan.state} bytes)"
        )
    if plan.projector_rows:
        lines.append(
            f"  projector: {plan.block_projections} of {plan.projector_rows} rows in each block "
            f"({2 * plan.block_projections * plan.state} bytes)"
        )
    if plan.hidden:
        where = "by one matrix product before the walk"
        if plan.hidden_inside:
            where = (
                f"by the kernel, {plan.hidden_rows} of {plan.part} rows in each block "
                f"({2 * plan.hidden_rows * plan.hidden} bytes)"
            )
        lines.append(f"  hidden states of {plan.hidden} numbers are multiplied {where}")
    lines += [
        f"  resident {plan.resident_share:.1%} of {total / 2**20:.1f} MiB",
        f"  shared memory {plan.shared_bytes} of {plan.shared_limit} bytes per block; base logits "
        f"staged {plan.base_slots - 1} rounds ahead",
        f"  in memory: projection {total / 2**20:.1f} MiB, {name} {table / 2**20:.1f} MiB, "
        f"workspace {workspace} bytes",
        f"  sweep by {plan.instruction}: {plan.groups} group(s) of {plan.columns} request(s), "
        f"{plan.tiles_per_accumulator} tile(s) share an accumulator, {plan.phases} phase(s), "
        f"{plan.word_bytes}-byte words",
    ]
    if plan.async_tiles:
        lines.append(
            f"  tcgen05 multiplies {plan.async_tiles} of {plan.warp_tiles} tiles of every warp, "
            f"{plan.tensor_tiles} of them in tensor memory: {plan.tensor_columns} of {COLUMNS} "
            "columns with their sums"
        )
    return "\n".join(lines)
