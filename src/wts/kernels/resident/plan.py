"""The plan of one head on one GPU: what was decided, and the sizes that follow from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from wts.dtypes import NUMBER_BYTES, WEIGHT_BYTES, NumberType, WeightType
from wts.hardware.tensor_memory import OPERAND_COLUMNS
from wts.kernels.resident.args import render_args
from wts.kernels.resident.header import render_header
from wts.kernels.resident.ledger import ledger
from wts.kernels.resident.shared import shared_layout
from wts.kernels.resident.sweep_order import places, stored_order, sweep_order
from wts.kernels.resident.units import (
    COMPACT_ROWS,
    FIRST_EXACT_POLL_CYCLES,
    FIRST_POLL_CYCLES,
    FIRST_SAMPLED_POLL_CYCLES,
    FRAGMENT_BYTES,
    MOST_DRAWING_TILES,
    SERVICE_WARPS,
    SUMS_JUDGED,
    TILE_ROWS,
    TILES_JUDGED,
    WARPGROUP,
    Instruction,
    Place,
)
from wts.numerics.limits import SLAB_BYTES

__all__ = ["ResidencyPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPlan:
    """Where each row of one head lives on one GPU, for one largest batch.

    Made by `planner.plan_residency`; `print(plan)` shows the ledger. Equal plans have equal `hash`.
    `hidden_inside`: whether the kernel multiplies hidden states, each block with rows of its own.
    `hidden_places`: steps whose hidden states it then holds at once.
    `exact`: whether tokens are the unquantised head's (docs/exact.md).
    `tensor_limit`: columns of tensor memory that it may use; 0: none, tcgen05 multiplies nothing.
    `tensor_tiles`, `matrix_tiles`: of each sweeping warp's tiles, how many tcgen05 multiplies with
    the weights in tensor memory, and how many with them in shared memory; its last ones.
    `weights`: what rows of the projection are kept as; latents are quantised only for int8.
    `operand_slabs`: slabs of a latent that a lane of a lone warp holds at once.
    `copied_together`: most fragments that pass through a lone warp's ring by one bulk copy; 1: each
    lane copies its own bytes.
    `ring_units`: what such a ring, of what is streamed, has places for; 0: nothing is streamed.
    `columns`, `groups`: requests that are swept side by side, and how often all weights are swept
    for a step of all requests; a round is a step of one group.
    `tiles_per_accumulator`: tiles whose sums share registers, each in columns of its own.
    `phases`: parts of a lone warp's sweep, each with its own accumulators, so that fewer are alive.
    `queue_depth`: fragments that a lone warp loads ahead of their product.
    `tiles_in_flight`: tiles of a warpgroup whose products are under way at once.
    `served_together`: columns whose words a service warp waits for at once.
    `base_slots`: rounds whose base logits are staged in shared memory at once.
    `exchange_lag`: rounds between publishing a round's words and waiting for those of others.
    """

    gpu: str
    arch: str
    kind: str
    state: int
    hidden: int
    hidden_inside: bool
    hidden_places: int
    vocab: int
    rank: int
    table_rows: int
    mapped: bool
    weights: WeightType
    batch: int
    steps: int
    sampled: bool
    base_type: NumberType
    step_type: NumberType
    num_blocks: int
    instruction: Instruction
    sweep_warps: int
    sweep_registers: int
    service_registers: int
    warp_tiles: int
    register_fragments: int
    shared_fragments: int
    streamed_fragments: int
    ring_units: int
    copied_together: int
    columns: int
    groups: int
    tiles_per_accumulator: int
    phases: int
    operand_slabs: int
    queue_depth: int
    tiles_in_flight: int
    served_together: int
    base_slots: int
    exchange_lag: int
    shared_limit: int
    max_blocks: int
    exact: bool = False
    tensor_limit: int = 0
    tensor_tiles: int = 0
    matrix_tiles: int = 0

    # ---- derived sizes ---------------------------------------------------------------------

    @property
    def row_bytes(self) -> int:
        """Bytes of the weights of one row."""
        return self.rank * WEIGHT_BYTES[self.weights]

    @property
    def quantised(self) -> bool:
        """Whether weights and latents are levels with scales, whose dot product is exact."""
        return self.weights == "int8"

    @property
    def tile_bytes(self) -> int:
        """Bytes of one packed tile: 16 rows."""
        return TILE_ROWS * self.row_bytes

    @property
    def row_scale_words(self) -> int:
        """32-bit words of a block's row scales: one each.

        A row of bf16 weights has a bit: its scale is 1, or NaN where the row is not finite.
        """
        return self.rows if self.quantised else self.rows // 32

    @property
    def rows(self) -> int:
        """Tokens of one shard."""
        return self.sweep_warps * self.warp_tiles * TILE_ROWS

    @property
    def padded_vocab(self) -> int:
        """Rows of the packed projection."""
        return self.num_blocks * self.rows

    @property
    def slabs(self) -> int:
        """Matrix instructions per tile and sweep."""
        return self.row_bytes // SLAB_BYTES

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.sweep_warps + SERVICE_WARPS)

    @property
    def launch_registers(self) -> int:
        """Registers a thread must be launched with, for the roles to share them out anew."""
        shared_out = (
            self.sweep_warps * self.sweep_registers + SERVICE_WARPS * self.service_registers
        )
        return -(-shared_out // (self.sweep_warps + SERVICE_WARPS))

    @property
    def wide(self) -> bool:
        """Whether a candidate needs a 64-bit word: fp32 scores, or more rows than 12 bits name."""
        return self.sampled or self.step_type != "bf16" or self.rows > COMPACT_ROWS

    @property
    def scored(self) -> bool:
        """Whether a word holds an approximate score, and the step logit to decide a close race."""
        return self.sampled and self.step_type != "fp32" and self.rows <= COMPACT_ROWS

    @property
    def first_poll_cycles(self) -> int:
        """Cycles between publishing and asking for others' words; several groups have waited."""
        if self.groups > 1:
            return 0
        if self.exact:
            return FIRST_EXACT_POLL_CYCLES
        return FIRST_SAMPLED_POLL_CYCLES if self.sampled else FIRST_POLL_CYCLES

    @property
    def race_words(self) -> int:
        """Words a service warp looks at again where scores, or int8 logits, are too close."""
        return 32 * (-(-self.num_blocks // 32) + 1) if self.scored or self.exact else 4

    @property
    def races(self) -> int:
        """Service warps that have such words; the kernel's array has one where there are none."""
        return SERVICE_WARPS if self.scored or self.exact else 1

    @property
    def candidate_slots(self) -> int:
        """Rounds whose candidates are kept: in an exact walk until they are concluded.

        A round is swept once its base logits are staged, which follows the publishing of the round
        `base_slots` before it; that is concluded `exchange_lag` rounds later.
        """
        if not self.exact:
            return self.base_slots
        return min(max(self.base_slots, self.groups), self.base_slots + 2 * self.exchange_lag)

    @property
    def state_matrix_bytes(self) -> int:
        """Bytes of a block's rows of the state's matrix."""
        return 2 * self.unit_rows * self.block_units * self.state

    @property
    def state_fills_blocks(self) -> bool:
        """Whether these leave little room: of a small head, whose vocabulary fills few blocks."""
        return self.state_matrix_bytes > self.shared_limit // 2

    @property
    def lane_slots(self) -> int:
        """Rounds whose lanes' candidates are kept likewise, where warps multiply alone.

        None where the state leaves no room.
        """
        if not self.exact or self.warpgroups or self.async_tiles or self.state_fills_blocks:
            return 0
        return 1 if self.groups == 1 else self.candidate_slots

    @property
    def exact_latent_slots(self) -> int:
        """Rounds whose latents an exact walk keeps in bf16, likewise; Markov ones are in memory."""
        return 4 if self.exact and self.groups > 3 and self.kind != "markov" else self.latent_slots

    @property
    def exact_latent(self) -> int:
        """Numbers of such a latent; the kernel's array has one where there are none."""
        return self.rank if self.kind != "markov" else 1

    @property
    def exact_words(self) -> int:
        """64-bit words of the workspace in which undecided blocks say their best rows."""
        return self.groups * self.columns * self.num_blocks if self.exact else 0

    @property
    def word_bytes(self) -> int:
        """Bytes of one exchanged word."""
        return 8 if self.wide else 4

    @property
    def table_row_bytes(self) -> int:
        """Bytes that a token fetches.

        Of a Markov head a packed latent: two int8 planes, the scale, padding to a sector; with bf16
        weights the latent itself. Of others their input rows (`packed_rows` of a head).
        """
        return {
            "markov": 2 * self.rank + (32 if self.quantised else 0),
            "gated": 6 * self.rank,
            "rnn": 12 * self.rank,
            "domino": 6 * self.state,
        }[self.kind]

    @property
    def part(self) -> int:
        """Numbers that the hidden states add to a step of a request."""
        return {"markov": 0, "gated": 1, "rnn": 3, "domino": 1}[self.kind] * self.rank

    @property
    def unit_rows(self) -> int:
        """Inner sums of a unit that need no token: a state's three, or a gate's one."""
        return 3 if self.state else 1

    @property
    def units(self) -> int:
        """Units whose inner sums blocks share out and exchange a step ahead."""
        return self.state or (self.rank if self.hidden_inside else 0)

    @property
    def block_units(self) -> int:
        """Of these, a block's; the kernel's arrays have one where there is none."""
        return max(1, -(-self.units // self.num_blocks))

    @property
    def unit_words(self) -> int:
        """64-bit words of a unit: of one sum, or of Domino's three, which are bf16."""
        return self.unit_rows if self.kind != "domino" else 1

    @property
    def projector_rows(self) -> int:
        """Rows of a second matrix, with which a Domino head's latents are made of its state."""
        return self.rank if self.kind == "domino" else 0

    @property
    def block_projections(self) -> int:
        """Of these, a block's; the kernel's array has one where there is none."""
        return max(1, -(-self.projector_rows // self.num_blocks))

    @property
    def hidden_rows(self) -> int:
        """Rows of a block that the kernel multiplies with hidden states; one where it does not."""
        if not self.hidden_inside:
            return 1
        if self.kind == "domino":
            return self.block_projections
        return self.unit_rows * self.block_units

    @property
    def owned(self) -> bool:
        """Whether a block takes tokens in for its own units only, and blocks exchange new states.

        Few requests have the sums before exchanged instead, a step ahead, and every block takes in
        all of a token: an exchange less while a step waits, but work that grows with requests.
        """
        return self.state > 0 and (self.groups > 1 or self.columns > 2)

    @property
    def word_units(self) -> int:
        """Units of an exchanged word of new states: an RNN's has its latent element beside it."""
        return 3 if self.kind == "domino" else 1

    @property
    def block_words(self) -> int:
        """Words in which a block says the new states of its units."""
        return -(-self.block_units // self.word_units)

    @property
    def states(self) -> int:
        """Requests whose state is kept; the kernel's array has one where there is none."""
        return self.groups * self.columns if self.state else 1

    @property
    def early_words(self) -> int:
        """64-bit words of a request in which blocks exchange inner sums, or new states."""
        if self.owned:
            return -(-self.units // self.block_units) * self.block_words
        return self.units * self.unit_words

    @property
    def early_storage(self) -> int:
        """Units of a request whose sums wait in every block; one where there are none."""
        return 1 if self.owned else max(1, self.units)

    @property
    def unit_bytes(self) -> int:
        """Bytes of shared memory in which a unit's sums wait for its token."""
        return 8 if self.kind == "domino" else 4 * self.unit_rows

    @property
    def joint_numbers(self) -> int:
        """Sums of a request that an RNN's state is made of; one where there are none.

        Where units are owned: the latent on its way from the words to its quantisation.
        """
        return (1 if self.owned else 2) * self.rank if self.kind == "rnn" else 1

    @property
    def part_slots(self) -> int:
        """Steps of which a block holds what hidden states add: an RNN's are made three ahead."""
        return 4 if self.hidden_inside and self.kind == "rnn" else 2

    @property
    def early_slots(self) -> int:
        """Steps whose words have places of their own: a gated head's are made two steps ahead."""
        return 4 if self.kind == "gated" else 2

    @property
    def state_words(self) -> int:
        """64-bit words of the workspace for them, of every request."""
        words = self.early_words + self.projector_rows
        return self.early_slots * self.groups * self.columns * words

    @property
    def warpgroups(self) -> bool:
        """Whether whole warpgroups multiply together."""
        return self.instruction == "wgmma"

    @property
    def async_tiles(self) -> int:
        """Tiles of a warp that tcgen05 multiplies, with those of the block's other warps."""
        return self.tensor_tiles + self.matrix_tiles

    @property
    def lone_tiles(self) -> int:
        """Tiles that a warp multiplies itself, or its warpgroup: all others, its first ones."""
        return self.warp_tiles - self.async_tiles

    @property
    def fragments(self) -> int:
        """Fragments of these, of which places are in registers, shared memory or L2."""
        return self.lone_tiles * self.slabs

    @property
    def lone_accumulators(self) -> int:
        """Accumulators of a warp's own sweep."""
        return -(-self.lone_tiles // self.tiles_per_accumulator)

    @property
    def async_accumulators(self) -> int:
        """Accumulators that tcgen05 leaves in tensor memory."""
        return self.accumulators - self.lone_accumulators

    @property
    def request_columns(self) -> int:
        """Operand columns of one of up to four requests: its two planes; of bf16, its pair's."""
        return 2

    @property
    def operand_lead(self) -> int:
        """Rows of zeros before a latent's, where tcgen05 reads it.

        Tiles that share an accumulator see the latents in different columns, so each reads them
        from a start of its own, with zeros on both sides.
        """
        return self.request_columns * min(4, self.columns) * (self.tiles_per_accumulator - 1)

    @property
    def operand_rows(self) -> int:
        """Rows of 16 bytes in which tcgen05 finds the latents of a group, for 16 bytes of k."""
        return self.operand_lead + OPERAND_COLUMNS

    @property
    def tile_columns(self) -> int:
        """Columns of tensor memory that a tile takes."""
        return self.row_bytes // 4

    @property
    def sum_column(self) -> int:
        """Where the accumulators begin, behind the tiles."""
        return self.tensor_tiles * self.tile_columns

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory that are used."""
        return self.sum_column + self.async_accumulators * OPERAND_COLUMNS

    @property
    def matrix_bytes(self) -> int:
        """Bytes of shared memory in which tcgen05 finds weights."""
        return self.matrix_tiles * self.sweep_warps * self.tile_bytes

    @property
    def operand_warps(self) -> int:
        """Warps whose fragments of one (tile, slab) lie together in memory."""
        return WARPGROUP if self.warpgroups else 1

    @property
    def unit_fragments(self) -> int:
        """Fragments of a warp that are streamed at once: half a tile where warpgroups multiply."""
        return self.slabs // 2 if self.warpgroups else self.copied_together

    @property
    def ring_unit_bytes(self) -> int:
        """Bytes of a place of a ring."""
        return self.unit_fragments * self.operand_warps * FRAGMENT_BYTES

    @property
    def column_blocks(self) -> int:
        """Requests for which a lane has results, four of other requests each.

        An int8 latent has two operand columns, one for each plane, so that these are blocks of
        eight columns; with bf16 weights the second block has the odd columns of the same eight.
        """
        return -(-self.columns // 4)

    @property
    def latent_line_bytes(self) -> int:
        """Bytes between the latents of two requests in shared memory: half of the banks apart.

        For warpgroups the latents of a group lie together as their instruction wants them.
        """
        return 2 * self.rank + (0 if self.warpgroups else 64)

    @property
    def latent_slot_bytes(self) -> int:
        """Bytes of shared memory for the latents of a group."""
        if self.async_tiles:
            return self.slabs * SLAB_BYTES * self.operand_rows
        return self.columns * self.latent_line_bytes

    @property
    def base_line_bytes(self) -> int:
        """Bytes of a shard's staged base logits, wherever they start inside 16 bytes."""
        return self.rows * NUMBER_BYTES[self.base_type] + 32

    @property
    def candidates(self) -> int:
        """What sweeping warps offer for a request: a row each, two if sampled or in an exact walk.

        Three in an exact walk that does not keep what their lanes offer.
        """
        each = 3 if self.exact and not self.lane_slots else 2 if self.sampled or self.exact else 1
        return self.sweep_warps * each

    @property
    def latent_slots(self) -> int:
        """Rounds whose latents are in shared memory: where groups are many, not all groups'."""
        return min(self.groups, 3)

    @property
    def later_tokens(self) -> int:
        """Tokens kept for latents that are fetched later; one where each is fetched at once.

        Where units are owned a token is taken in at once, whenever its latent is made.
        """
        later = self.groups > self.latent_slots and not self.owned
        return self.groups * self.columns if later else 1

    @property
    def parked_noise(self) -> int:
        """Numbers of noise each sweeping thread parks: of all its rows, where it draws ahead."""
        return 2 * self.accumulators * self.column_blocks if self.noise_ahead else 1

    @property
    def noise_ahead(self) -> bool:
        """Whether noise is drawn while blocks exchange, not while rows are judged.

        Several groups of warpgroups leave no time for it, but their code is shorter without.
        """
        return self.sampled and (
            not self.warpgroups or self.groups == 1 or self.warp_tiles > MOST_DRAWING_TILES
        )

    @property
    def parked_logits(self) -> int:
        """Step logits it parks where they are judged again: those judged at once."""
        if not self.sampled:
            return 1
        at_once = TILES_JUDGED if self.warpgroups else self.live_accumulators
        if self.async_tiles:
            at_once = max(at_once, min(self.async_accumulators, SUMS_JUDGED))
        return 2 * self.column_blocks * at_once

    @property
    def parking_threads(self) -> int:
        """Threads that park numbers."""
        return 32 * self.sweep_warps if self.sampled else 1

    @property
    def slot_line_words(self) -> int:
        """Words between the exchange slots of two requests: whole 128-byte lines."""
        words = 128 // self.word_bytes
        return -(-self.num_blocks // words) * words

    @property
    def workspace_words(self) -> int:
        """Exchange words of a workspace: two parities, every request, every block."""
        return 2 * self.groups * self.columns * self.slot_line_words

    @property
    def resident_share(self) -> float:
        """Share of the projection that stay on chip for the whole walk."""
        fragments = self.warp_tiles * self.slabs
        return (fragments - self.streamed_fragments) / fragments

    @property
    def readings(self) -> float:
        """How often a step reads a projection's worth of its weights from L2."""
        return self.groups * self.streamed_fragments / (self.warp_tiles * self.slabs)

    @property
    def loses(self) -> bool:
        """Whether step-wise execution was measured faster: it reads W once a step, in bf16.

        Measured with int8 weights; the same bytes read are taken to cost bf16 weights the same.
        """
        return self.sampled and self.readings * WEIGHT_BYTES[self.weights] > 3.0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        return shared_layout(self)[-1][1]

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name this plan in records and in the cubin cache."""
        return hashlib.sha256(self.render_header().encode()).hexdigest()[:12]

    @property
    def accumulators(self) -> int:
        """Accumulators of a warp's tiles."""
        return -(-self.warp_tiles // self.tiles_per_accumulator)

    @property
    def live_accumulators(self) -> int:
        """Of a warp's own sweep, at once."""
        return -(-self.lone_accumulators // self.phases)

    @property
    def matrix_instructions(self) -> int:
        """Matrix instructions of lone warps or warpgroups in a sweep.

        Each (tile, slab) of a warp once.
        """
        return self.fragments

    @property
    def tensor_instructions(self) -> int:
        """Products of tcgen05 in the kernel's code: each slab of a tile of all warps once."""
        return self.async_tiles * self.slabs

    @property
    def precise_apart(self) -> bool:
        """Whether sampled rows that are too close have their precise scores by code of its own.

        So much code is slow to fetch, where warpgroups judge eight requests. Lone warps of few
        requests have no registers to spare for it.
        """
        return self.sampled and self.warpgroups

    @property
    def sweeps_written(self) -> int:
        """Sweeps in the kernel's code."""
        return 1 + self.precise_apart

    # ---- what is rendered for the kernel, packing and people -------------------------------

    def sweep_order(self) -> list[tuple[int, int]]:
        """(tile, slab) in the order in which a warp multiplies its own."""
        return sweep_order(self)

    def places(self) -> list[tuple[Place, int]]:
        """Place of each fragment in the order of `sweep_order`, and its index in that place."""
        return places(self)

    def stored_order(self) -> list[int]:
        """Place among a warp's packed fragments of each (tile, slab), tile after tile."""
        return stored_order(self)

    @property
    def storage(self) -> tuple[object, ...]:
        """Equal for plans whose packed projections have the same bytes: one serves both."""
        shape = (self.vocab, self.rank, self.num_blocks, self.sweep_warps, self.warp_tiles)
        return (self.weights, self.warpgroups, *shape, *self.stored_order())

    def render_header(self) -> str:
        """The constants the kernel is compiled with; plain C++, no CUDA."""
        return render_header(self)

    def rendered(self) -> dict[str, str]:
        """The kernel's files that are rendered for this plan, by their names in csrc."""
        return {"plan_constants.h": self.render_header(), "args.cuh": render_args()}

    def __str__(self) -> str:
        return ledger(self)
