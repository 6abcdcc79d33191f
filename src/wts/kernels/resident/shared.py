"""A block's shared memory: where each member of the kernel's struct lies, and how large it is."""

from __future__ import annotations

from wts.kernels.resident.sections import Sections
from wts.kernels.resident.shard import FRAGMENT_BYTES

__all__ = ["shared_layout"]


def shared_layout(plan: Sections) -> list[tuple[str, int]]:
    """Offset of each member of the kernel's shared-memory struct, in bytes; the last is its size.

    Mirrors `struct Shared` of csrc/shared.cuh, which asserts the same total.
    """
    shard, product, placement = plan.shard, plan.product, plan.placement
    rounds, recurrence, selection = plan.rounds, plan.recurrence, plan.selection
    state, quantised = max(1, plan.request.shape.state), plan.request.quantised
    groups, columns, buffers = product.groups, product.columns, rounds.base_buffers
    early, service = recurrence.neuron_columns, plan.roles.service_warps
    kept, offered = selection.candidate_buffers * columns, selection.candidates
    parked = selection.parking_threads * 4
    hidden = plan.request.shape.hidden if recurrence.hidden_inside else 1
    members = [
        ("fragments", placement.fragment_storage * FRAGMENT_BYTES, 128),
        ("ring", placement.block_ring_slots * placement.chunk_bytes, 128),
        ("row_scale", 4 * shard.row_scale_words, 16),
        ("base", buffers * columns * rounds.base_line_bytes, 16),
        ("noise", selection.parked_noise * parked, 16),
        ("logits", selection.parked_logits * parked, 16),
        ("temperature", (groups if selection.draws else 1) * columns * 4, 16),
        ("inverse_temperature", (groups if selection.draws else 1) * columns * 4, 16),
        ("latent", rounds.latent_buffers * product.latent_buffer_bytes, 128),
        ("latent_scale", (rounds.latent_buffers if quantised else 1) * columns * 4, 16),
        ("token", recurrence.deferred_tokens * 4, 16),
        ("candidate_key", kept * offered * 4, 16),
        ("candidate_row", kept * offered * 4, 16),
        ("candidate_logit", kept * (offered if selection.draws else 1) * 4, 16),
        ("race", selection.contenders * selection.contender_words * 4, 16),
        ("state_weight", 2 * recurrence.sums * recurrence.block_neurons * state, 16),
        ("projector_weight", 2 * recurrence.block_projections * state, 16),
        ("hidden_weight", 2 * recurrence.hidden_rows * hidden, 16),
        ("hidden", 2 * hidden * recurrence.hidden_buffers * early, 16),
        ("own_part", recurrence.term_buffers * 4 * recurrence.hidden_rows * early, 16),
        ("state", 2 * recurrence.states * state, 16),
        ("early", plan.request.kind.sum_bytes * recurrence.sum_storage * early, 16),
        ("joint", 2 * recurrence.joint_numbers * early, 16),
        ("projections", 4 * max(1, recurrence.projector_rows) * early, 16),
        ("team_token", 4 * service, 16),
        ("inner_token", 4 * early, 4),
        ("team_largest", 4 * service, 4),
        ("weights_landed", 8, 8),
        ("latents_ready", 8 * rounds.latent_buffers, 8),
        ("candidates_ready", 8 * buffers, 8),
        ("base_landed", 8 * buffers, 8),
        ("base_copied", 8 * buffers * columns, 8),
        ("ring_landed", 8 * placement.ring_barriers, 8),
        ("ring_readers", 4 * placement.ring_barriers, 4),
        ("state_landed", 8, 8),
        ("hidden_landed", 8 * recurrence.hidden_buffers * early, 8),
        ("token_known", 8, 8),
        ("sums_published", 8, 8),
        ("sums_gathered", 8, 8),
        ("deadline", 8 * plan.roles.warps, 8),
        ("sequence", 4, 16),
        ("noise_offset", 4, 4),
        ("abandoned", 4, 4),
        *selection.members,
    ]
    if product.tcgen05_tiles:
        members += [("sums_made", 8 * product.tcgen05_accumulators, 8), ("tensor_memory", 4, 4)]
    if recurrence.sharded_state:
        sums = recurrence.sums * recurrence.block_neurons
        members += [
            ("own_sum", recurrence.states * sums * 4, 16),
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
