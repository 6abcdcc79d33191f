"""The constants that the kernel is compiled with, rendered from a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wts.dtypes import NUMBER_TYPES
from wts.hardware.tensor_memory import (
    CHUNK_BYTES,
    COLUMNS,
    CORE_BYTES,
    LANES,
    OPERAND_COLUMNS,
    instruction_descriptor,
    matrix_descriptor,
)
from wts.heads.kinds import HEAD_KINDS
from wts.kernels.resident.shared import fragment_storage, ring_barriers, ring_places
from wts.kernels.resident.units import FRAGMENT_BYTES, SERVICE_WARPS, SUMS_JUDGED, TILES_JUDGED
from wts.numerics.limits import (
    LARGEST_EXACT_PRODUCT,
    LEAST_EXACT_PRODUCT,
    LEAST_TEMPERATURE,
)

if TYPE_CHECKING:
    from wts.kernels.resident.plan import ResidencyPlan

__all__ = ["render_header"]


def render_header(plan: ResidencyPlan) -> str:
    """The constants the kernel is compiled with; plain C++, no CUDA."""
    # Registers count from 0 up, what is away from -1 down, in the order of the sweep.
    found = plan.places()
    first = {"streamed": 0, "shared": plan.streamed_fragments}
    away = [first[place] + index for place, index in found if place != "register"]
    numbers = iter(range(len(away)))
    places = [index if place == "register" else -1 - next(numbers) for place, index in found]
    stored = plan.stored_order()
    sources = [
        stored[tile * plan.slabs + slab] * FRAGMENT_BYTES * plan.operand_warps
        for tile, slab in plan.sweep_order()
    ]
    constants = {
        "HEAD": HEAD_KINDS.index(plan.kind),
        "PART": plan.part,
        "STATE": max(1, plan.state),
        "STATES": plan.states,
        "HIDDEN": max(1, plan.hidden),
        "HIDDEN_ROWS": plan.hidden_rows,
        "HIDDEN_PLACES": plan.hidden_places,
        "HIDDEN_STORAGE": plan.hidden if plan.hidden_inside else 1,
        "UNITS": plan.units,
        "UNIT_ROWS": plan.unit_rows,
        "UNIT_BYTES": plan.unit_bytes,
        "EARLY_SLOTS": plan.early_slots,
        "PART_SLOTS": plan.part_slots,
        "BLOCK_UNITS": plan.block_units,
        "PROJECTOR_ROWS": plan.projector_rows,
        "BLOCK_PROJECTIONS": plan.block_projections,
        "JOINT_STORAGE": plan.joint_numbers,
        "EARLY_COLUMNS": plan.columns if plan.units else 1,
        "EARLY_WORDS": plan.early_words,
        "WORD_UNITS": plan.word_units,
        "BLOCK_WORDS": plan.block_words,
        "UNIT_STORAGE": plan.early_storage,
        "PROJECTOR_STORAGE": max(1, plan.projector_rows),
        "VOCAB": plan.vocab,
        "RANK": plan.rank,
        "SLABS": plan.slabs,
        "OPERAND_SLABS": plan.operand_slabs,
        "ROW_SCALE_WORDS": plan.row_scale_words,
        "TABLE_ROWS": plan.table_rows,
        "TABLE_ROW_BYTES": plan.table_row_bytes,
        "NUM_BLOCKS": plan.num_blocks,
        "SWEEP_WARPS": plan.sweep_warps,
        "SERVICE_WARPS": SERVICE_WARPS,
        "THREADS": plan.threads,
        "SWEEP_REGISTERS": plan.sweep_registers,
        "SERVICE_REGISTERS": plan.service_registers,
        "ROWS": plan.rows,
        "TILE_BYTES": plan.tile_bytes,
        "WARP_TILES": plan.warp_tiles,
        "FRAGMENT_BYTES": FRAGMENT_BYTES,
        "REGISTER_FRAGMENTS": max(1, plan.register_fragments),
        "SHARED_FRAGMENTS": plan.shared_fragments,
        "STREAMED_FRAGMENTS": plan.streamed_fragments,
        "PHASES_APART": int(plan.streamed_fragments > 0 or plan.groups > 1),
        "FRAGMENT_STORAGE": fragment_storage(plan),
        "RING_LENGTH": max(1, plan.ring_units),
        "COPIED_TOGETHER": plan.copied_together,
        "RING_PLACES": ring_places(plan),
        "RING_UNIT_BYTES": plan.ring_unit_bytes if plan.ring_units else 1,
        "RINGS": ring_barriers(plan) // max(1, plan.ring_units),
        "LATENT_LINE_BYTES": plan.latent_line_bytes,
        "LATENT_SLOT_BYTES": plan.latent_slot_bytes,
        "TENSOR_TILES": plan.tensor_tiles,
        "MATRIX_TILES": plan.matrix_tiles,
        "MATRIX_BYTES": plan.matrix_bytes,
        "TENSOR_COLUMNS": COLUMNS,
        "TILE_COLUMNS": plan.tile_columns,
        "SUM_COLUMN": plan.sum_column,
        "SUM_COLUMNS": OPERAND_COLUMNS,
        "SUMS_JUDGED": SUMS_JUDGED,
        "ASYNC_ACCUMULATORS": plan.async_accumulators,
        "REQUEST_COLUMNS": plan.request_columns,
        "OPERAND_LEAD": plan.operand_lead,
        "OPERAND_ROWS": plan.operand_rows,
        "INSTRUCTION_DESCRIPTOR": instruction_descriptor(plan.weights),
        "COLUMNS": plan.columns,
        "COLUMN_BLOCKS": plan.column_blocks,
        "OPERAND_WARPS": plan.operand_warps,
        "GROUPS": plan.groups,
        "LATENT_SLOTS": plan.latent_slots,
        "LATER_TOKENS": plan.later_tokens,
        "TILES_PER_ACCUMULATOR": plan.tiles_per_accumulator,
        "PHASES": plan.phases,
        "TILES_IN_FLIGHT": plan.tiles_in_flight,
        "QUEUE_DEPTH": plan.queue_depth,
        "BASE_SLOTS": plan.base_slots,
        "BASE_LINE_BYTES": plan.base_line_bytes,
        "BASE_TYPE": NUMBER_TYPES.index(plan.base_type),
        "STEP_TYPE": NUMBER_TYPES.index(plan.step_type),
        "SERVED_TOGETHER": plan.served_together,
        "RACE_WORDS": plan.race_words,
        "RACES": plan.races,
        "CANDIDATES": plan.candidates,
        "CANDIDATE_SLOTS": plan.candidate_slots,
        "EXACT_LATENT": plan.exact_latent,
        "EXACT_LATENT_SLOTS": plan.exact_latent_slots,
        "LANE_SLOTS": plan.lane_slots,
        "PARKED_NOISE": plan.parked_noise,
        "TILES_JUDGED": TILES_JUDGED,
        "PARKED_LOGITS": plan.parked_logits,
        "PARKING_THREADS": plan.parking_threads,
        "EXCHANGE_LAG": plan.exchange_lag,
        "FIRST_POLL_CYCLES": plan.first_poll_cycles,
        "SLOT_LINE_WORDS": plan.slot_line_words,
        "SHARED_BYTES": plan.shared_bytes,
        "SHARED_BYTES_LIMIT": plan.shared_limit,
    }
    flags = {
        "QUANTISED": plan.quantised,
        "WARPGROUPS": plan.warpgroups,
        "HIDDEN_INSIDE": plan.hidden_inside,
        "NOISE_AHEAD": plan.noise_ahead,
        "PRECISE_APART": int(plan.precise_apart),
        "SCORED": plan.scored,
        "WIDE": plan.wide,
        "SAMPLED": plan.sampled,
        "EXACT": plan.exact,
        "MAPPED": plan.mapped,
    }
    lines = [
        "// Rendered by the planner; every size of the kernel comes from here.",
        "#pragma once",
    ]
    lines.append(f"#define WTS_WIDE {int(plan.wide)}")
    lines.append(f"#define WTS_WARPGROUPS {int(plan.warpgroups)}")
    lines.append(f"#define WTS_EXACT {int(plan.exact)}")
    lines.append(f"#define WTS_OWNED {int(plan.owned)}")
    lines.append(f"#define WTS_TENSOR {int(plan.async_tiles > 0)}")
    lines.append(f"#define WTS_QUANTISED {int(plan.quantised)}")
    lines.append("#define WTS_FRAGMENT_PLACE " + ", ".join(map(str, places)))
    lines.append("#define WTS_FRAGMENT_SOURCE " + ", ".join(map(str, sources)))
    gone = [source for source, place in zip(sources, places, strict=True) if place < 0]
    by_place = [source for _, source in sorted(zip(away, gone, strict=True))]
    lines.append("#define WTS_AWAY_PLACE " + ", ".join(map(str, away or [0])))
    lines.append("#define WTS_AWAY_SOURCE " + ", ".join(map(str, by_place or [0])))
    lines.append("#ifndef WTS_TRACE\n#define WTS_TRACE 0\n#endif")
    lines.append("namespace wts {\nnamespace plan {")
    lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
    for name, descriptor in _matrix_descriptors(plan).items():
        lines.append(f"constexpr unsigned long long {name} = {descriptor:#x}ull;")
    lines += [f"constexpr bool {n} = {'true' if v else 'false'};" for n, v in flags.items()]
    fractions = {
        "LEAST_TEMPERATURE": LEAST_TEMPERATURE,
        "LEAST_EXACT_PRODUCT": LEAST_EXACT_PRODUCT,
        "LARGEST_EXACT_PRODUCT": LARGEST_EXACT_PRODUCT,
    }
    lines += [f"constexpr float {name} = {value!r}f;" for name, value in fractions.items()]
    lines.append("constexpr bool TRACE = WTS_TRACE;")
    lines.append("}  // namespace plan\n}  // namespace wts\n")
    return "\n".join(lines)


def _matrix_descriptors(plan: ResidencyPlan) -> dict[str, int]:
    """Descriptors of tcgen05's operands in shared memory, all but where they start.

    Weights: core matrices of all 128 rows, then those of the next 16 bytes. Latents: the rows of 16
    bytes of `operand_rows`, of which any 16 that follow each other are two core matrices.
    """
    return {
        "MATRIX_DESCRIPTOR": matrix_descriptor(
            0, along_k=LANES * CHUNK_BYTES, along_rows=CORE_BYTES
        ),
        "LATENT_DESCRIPTOR": matrix_descriptor(
            0, along_k=plan.operand_rows * CHUNK_BYTES, along_rows=CORE_BYTES
        ),
    }
