"""A block's shared memory: where each member of the kernel's struct lies, and how large it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wts.kernels.resident.units import FRAGMENT_BYTES, SERVICE_WARPS

if TYPE_CHECKING:
    from wts.kernels.resident.plan import ResidencyPlan

__all__ = ["fragment_storage", "ring_barriers", "ring_places", "shared_layout"]


def shared_layout(plan: ResidencyPlan) -> list[tuple[str, int]]:
    """Offset of each member of the kernel's shared-memory struct, in bytes; the last is its size.

    Mirrors `struct Shared` of csrc/shared.cuh, which asserts the same total.
    """
    groups, columns, slots = plan.groups, plan.columns, plan.base_slots
    places, early = ring_places(plan), columns if plan.units else 1
    kept = plan.candidate_slots
    hidden = plan.hidden if plan.hidden_inside else 1
    members = [
        ("fragments", fragment_storage(plan) * FRAGMENT_BYTES, 128),
        ("ring", places * (plan.ring_unit_bytes if plan.ring_units else 1), 128),
        ("row_scale", 4 * plan.row_scale_words, 16),
        ("base", slots * columns * plan.base_line_bytes, 16),
        ("noise", plan.parked_noise * plan.parking_threads * 4, 16),
        ("logits", plan.parked_logits * plan.parking_threads * 4, 16),
        ("temperature", (groups if plan.sampled else 1) * columns * 4, 16),
        ("inverse_temperature", (groups if plan.sampled else 1) * columns * 4, 16),
        ("latent", plan.latent_slots * plan.latent_slot_bytes, 128),
        ("latent_scale", (plan.latent_slots if plan.quantised else 1) * columns * 4, 16),
        ("token", plan.later_tokens * 4, 16),
        ("candidate_key", kept * columns * plan.candidates * 4, 16),
        ("candidate_row", kept * columns * plan.candidates * 4, 16),
        ("candidate_logit", kept * columns * (plan.candidates if plan.sampled else 1) * 4, 16),
        ("race", plan.races * plan.race_words * 4, 16),
        ("state_weight", 2 * plan.unit_rows * plan.block_units * max(1, plan.state), 16),
        ("projector_weight", 2 * plan.block_projections * max(1, plan.state), 16),
        ("hidden_weight", 2 * plan.hidden_rows * hidden, 16),
        ("hidden", 2 * hidden * plan.hidden_places * early, 16),
        ("own_part", plan.part_slots * 4 * plan.hidden_rows * early, 16),
        ("state", 2 * plan.states * max(1, plan.state), 16),
        ("early", plan.unit_bytes * plan.early_storage * early, 16),
        ("joint", 2 * plan.joint_numbers * early, 16),
        ("projections", 4 * max(1, plan.projector_rows) * early, 16),
        ("team_token", 4 * SERVICE_WARPS, 16),
        ("inner_token", 4 * early, 4),
        ("team_largest", 4 * SERVICE_WARPS, 4),
        ("weights_landed", 8, 8),
        ("latents_ready", 8 * plan.latent_slots, 8),
        ("candidates_ready", 8 * slots, 8),
        ("base_landed", 8 * slots, 8),
        ("base_copied", 8 * slots * columns, 8),
        ("ring_landed", 8 * ring_barriers(plan), 8),
        ("ring_readers", 4 * ring_barriers(plan), 4),
        ("state_landed", 8, 8),
        ("hidden_landed", 8 * plan.hidden_places * early, 8),
        ("token_known", 8, 8),
        ("sums_published", 8, 8),
        ("sums_gathered", 8, 8),
        ("deadline", 8 * (plan.threads // 32), 8),
        ("sequence", 4, 16),
        ("noise_offset", 4, 4),
        ("abandoned", 4, 4),
    ]
    if plan.exact:
        latents = plan.exact_latent_slots * columns * plan.exact_latent
        members += [
            ("latent_slack", plan.latent_slots * columns * 4, 16),
            ("margin", groups * columns * 4, 16),
            ("previous", groups * columns * 4, 16),
            ("exact_latent", latents * 2, 16),
            ("lane_candidate", max(1, plan.lane_slots * plan.sweep_warps * 32) * 8, 16),
            ("exact_weight", 8, 16),
            ("exact_table", 8, 8),
            ("largest_scale", 4, 4),
            ("spread", 4, 4),
            ("growth", 4, 4),
            ("smallest", 4, 4),
            ("longest", 4, 4),
            ("team_squares", 4 * SERVICE_WARPS, 4),
        ]
    if plan.async_tiles:
        members += [("sums_made", 8 * plan.async_accumulators, 8), ("tensor_memory", 4, 4)]
    if plan.owned:
        sums = plan.unit_rows * plan.block_units
        members += [
            ("own_sum", plan.states * sums * 4, 16),
            ("own_sums_made", 8 * groups, 8),
            ("states_sent", 8 * groups, 8),
            ("projections_sent", 8 * groups, 8),
        ]
    layout, offset = [], 0
    for name, size, alignment in members:
        offset = -(-offset // alignment) * alignment
        layout.append((name, offset))
        offset += size
    layout.append(("end", -(-offset // 128) * 128))
    return layout


def fragment_storage(plan: ResidencyPlan) -> int:
    """Resident fragments in a block's shared memory: warps' own ones, then tcgen05's tiles."""
    return max(1, plan.sweep_warps * (plan.shared_fragments + plan.matrix_tiles * plan.slabs))


def ring_places(plan: ResidencyPlan) -> int:
    """Places of all rings of a block; the kernel's struct has one where there is none."""
    return max(1, plan.ring_units * plan.sweep_warps // plan.operand_warps)


def ring_barriers(plan: ResidencyPlan) -> int:
    """Places that have a barrier; a ring of lanes' copies needs none, one stands for all."""
    bulk = plan.warpgroups or plan.copied_together > 1
    return ring_places(plan) if bulk else max(1, plan.ring_units)
