"""What host and kernel tell each other: the kernel's one argument, and what it leaves behind."""

from __future__ import annotations

from enum import IntEnum

from wts.hardware.abi import Enumeration, Field, Record
from wts.selection.exact_source import EXACT_SOURCE

__all__ = ["ARGS", "EVENTS", "STATUS", "TRACED_ROUNDS", "Turn", "render_args"]


class Turn(IntEnum):
    """Which batches a launch walks; of others it leaves all as it is.

    By this a greedy and a sampled plan take turns in one captured graph, as temperatures say.
    """

    ALWAYS = 0
    ALL_GREEDY = 1
    ANY_SAMPLED = 2


STATUS = Record(
    "Status",
    (
        Field("sequence", "u32", note="Exchanges done since the workspace was cleared."),
        Field("error", "u32", note="0, or 1 + the block whose word did not come."),
        Field("error_block", "u32", note="Who waited,"),
        Field("error_step", "u32", note="at which step of the walk."),
        Field("clamped_anchors", "u32", note="Anchors outside the table, so far."),
        Field("rescored_steps", "u32", note="Steps of a request that exact logits decided."),
        Field("rescored_rows", "u32", note="Rows that they were computed of, each once."),
    ),
)
"""Counters that a walk leaves in global memory; the host reads them when asked."""

EVENTS = (
    "LATENT_SEEN",
    "SWEPT",
    "OFFERED",
    "GATHERED",
    "PUBLISHED",
    "DECODED",
    "LATENT_SENT",
)
"""What traced kernels stamp with the time of their block, in each round."""

TRACED_ROUNDS = 64
"""Rounds of a walk that they do it in."""

ARGS = Record(
    "WalkArgs",
    (
        Field("tiles", "const Byte*", note="Packed W, in the order of the plan's instruction."),
        Field("row_scale", "const RowScale*", note="[NUM_BLOCKS * ROW_SCALE_WORDS]"),
        Field("table", "const Byte*", note="What a token fetches: rows of TABLE_ROW_BYTES."),
        Field(
            "hidden_part",
            "float*",
            note="[B, K, PART] of hidden states, or room for it.",
        ),
        Field("hidden", "const Byte*", note="[B, K, HIDDEN] in bf16, strides in elements."),
        Field("hidden_request_stride", "long long"),
        Field("hidden_step_stride", "long long"),
        Field("hidden_weight", "const Byte*", note="[PART, HIDDEN] in bf16."),
        Field("hidden_bias", "const Byte*", note="[PART] in bf16, or null."),
        Field("draft_to_target", "const int*", note="[VOCAB], in a mapped plan."),
        Field("base", "const Byte*", note="[B, K, V], strides in elements."),
        Field("base_request_stride", "long long"),
        Field("base_step_stride", "long long"),
        Field("anchor", "const long long*", note="[B]"),
        Field("anchor_stride", "long long"),
        Field("tokens", "long long*", note="[B, K]"),
        Field("temperatures", "const float*", note="[B], in a sampled plan, or where `turn` asks."),
        Field("noise_offset", "long long*", note="[1], likewise."),
        Field("noise_key", "u64"),
        Field("logits_out", "Byte*", note="[B, K, V] in the step's type, or null."),
        Field("logits_request_stride", "long long"),
        Field("logits_step_stride", "long long"),
        Field("slots", "ExchangeWord*", note="Exchanged words, two parities."),
        Field("state_weight", "const Byte*", note="[3 STATE, STATE] in bf16, of a head's state."),
        Field("projector_weight", "const Byte*", note="[PROJECTOR_ROWS, STATE] in bf16 (Domino)."),
        Field(
            "state_slots",
            "u64*",
            note="[EARLY_SLOTS, GROUPS * COLUMNS, UNITS * UNIT_WORDS], then the projector's.",
        ),
        Field("status", "Status*"),
        Field("trace", "u64*", note="[NUM_BLOCKS, TRACED_ROUNDS, NUM_EVENTS], or null."),
        Field("num_requests", "int"),
        Field("num_steps", "int"),
        Field("timeout_us", "u32"),
        Field("turn", "Turn", stored_as="u32"),
        Field("exact", "const ExactSource*", note="Of an exact walk: the unquantised head."),
        Field("exact_slots", "u64*", note="[GROUPS * COLUMNS, NUM_BLOCKS], undecided ones."),
    ),
)
"""The kernel's one argument."""


def render_args() -> str:
    """The C++ of these tables: the file `args.cuh` of the kernel."""
    events = ", ".join((*EVENTS, "NUM_EVENTS"))
    return "\n".join(
        [
            "// Rendered from the tables of wts/kernels/resident/args.py.",
            "#pragma once",
            '#include "types.cuh"',
            "namespace wts {",
            Enumeration("Turn", tuple(Turn.__members__)).c_enum(),
            f"enum Event {{ {events} }};",
            f"constexpr int TRACED_ROUNDS = {TRACED_ROUNDS};",
            EXACT_SOURCE.c_struct(),
            STATUS.c_struct(),
            ARGS.c_struct(),
            "}  // namespace wts\n",
        ]
    )
