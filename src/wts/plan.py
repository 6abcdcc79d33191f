"""Which rows of the vocabulary projection live where on the chip, and every size that follows.

The plan is the only author of sizes: it renders the constants that the kernel is compiled with
(`ResidencyPlan.render_header`), tells packing how rows become tiles, and tells the emulator which
rows a block owns. How one is made is in `planner`. Pure integers; no torch.

Rows come in tiles of 16, tiles in pairs of 32 consecutive tokens. A block owns a shard: a run of
`rows` consecutive tokens; each of its sweeping warps owns `warp_tiles` tiles of it. On Blackwell
the last of them may be multiplied by tcgen05, one of every warp together, from tensor memory or
from shared memory, while warps multiply their others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from wts.numbers import (
    HEAD_KINDS,
    NUMBER_BYTES,
    NUMBER_TYPES,
    WEIGHT_BYTES,
    HeadKind,
    NumberType,
    WeightType,
)
from wts.tensor_memory import (
    CHUNK_BYTES,
    COLUMNS,
    CORE_BYTES,
    LANES,
    OPERAND_COLUMNS,
    instruction_descriptor,
    matrix_descriptor,
)

__all__ = ["ResidencyPlan", "shared_layout"]

# "mma": each warp multiplies for up to four requests, latents in registers (mma.sync). "wgmma":
# four warps together multiply for eight requests, latents in shared memory (wgmma.mma_async).
Instruction = Literal["mma", "wgmma"]

TILE_ROWS = 16
PAIR_ROWS = 32
SLAB_BYTES = 32  # of a row in one matrix instruction: 32 int8 weights, or 16 in bf16
FRAGMENT_BYTES = 512  # one slab of one tile
SERVICE_WARPS = 4
# Of a warp of a warpgroup: more, each drawing its own noise, do not fit in the instruction cache.
MOST_DRAWING_TILES = 10
TILES_JUDGED = 2  # of such a warp, at once: a pair, whose noise comes together
WARPGROUP = 4  # warps that issue a warpgroup's matrix instruction together
# After publishing; sampled blocks are further apart, so that some wait anyway (docs/measured.md).
FIRST_POLL_CYCLES, FIRST_SAMPLED_POLL_CYCLES = 200, 100
LEAST_TEMPERATURE = 1e-5  # of a sampled row; the contract's clamp
COMPACT_ROWS = 4096  # rows a one-word candidate can name
EXACT_ROWS = 2048  # in an exact walk, whose words say a margin too
SCALE_LIMITS = 7  # margins that they can say
SUMS_JUDGED = 2  # accumulators of tcgen05 that a warp reads and judges at once


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
    """

    gpu: str
    arch: str
    kind: HeadKind
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
        weights the latent itself. Of others their input rows (`wts.cells.input_rows`).
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
        """What sweeping warps offer for a request: a row each, two where sampled or exact."""
        return self.sweep_warps * (2 if self.sampled or self.exact else 1)

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

    def sweep_order(self) -> list[tuple[int, int]]:
        """(tile, slab) in the order in which a warp multiplies its own."""
        if self.warpgroups:  # tile after tile: one is judged while the next is multiplied
            return [(tile, slab) for tile in range(self.warp_tiles) for slab in range(self.slabs)]
        live = self.live_accumulators
        order = []
        for phase in range(self.phases):
            for slab in range(self.slabs):
                for variant in range(self.tiles_per_accumulator):
                    for i in range(live):
                        tile = (phase * live + i) * self.tiles_per_accumulator + variant
                        if tile < self.lone_tiles:
                            order.append((tile, slab))
        return order

    def places(self) -> list[tuple[Literal["register", "shared", "streamed"], int]]:
        """Place of each fragment in the order of `sweep_order`, and its index in that place.

        What is streamed is spread evenly over the sweep, so that L2 is asked all the time. Where
        warps multiply alone, every slab has its share of fragments from elsewhere, at its end:
        each has the slab's register fragments in front of it to hide behind.
        """
        if self.warpgroups:
            return self._warpgroup_places()
        order = self.sweep_order()
        total, shared = len(order), self.shared_fragments + self.streamed_fragments
        starts = [i for i in range(total) if i == 0 or order[i][1] != order[i - 1][1]]
        kinds: list[bool] = []
        for start, end in zip(starts, [*starts[1:], total], strict=True):
            count = end * shared // total - start * shared // total
            kinds += [False] * (end - start - count) + [True] * count
        result: list[tuple[Literal["register", "shared", "streamed"], int]] = []
        counts = [0, 0]
        for away in kinds:
            index = counts[away]
            counts[away] += 1
            if not away:
                result.append(("register", index))
                continue
            before = index * self.streamed_fragments // shared
            streamed = (index + 1) * self.streamed_fragments // shared > before
            result.append(("streamed", before) if streamed else ("shared", index - before))
        return result

    def stored_order(self) -> list[int]:
        """Place among a warp's packed fragments of each (tile, slab), tile after tile.

        What a warp streams lies together, in the order of its use: copies ask for one address after
        the other.
        """
        fragments = self.warp_tiles * self.slabs
        if self.warpgroups or not self.streamed_fragments:
            return list(range(fragments))
        order = [tile * self.slabs + slab for tile, slab in self.sweep_order()]
        places = zip(order, self.places(), strict=True)
        streamed = [fragment for fragment, (place, _) in places if place == "streamed"]
        resident = sorted(set(range(fragments)) - set(streamed))
        stored = [0] * fragments
        for place, fragment in enumerate(streamed + resident):
            stored[fragment] = place
        return stored

    @property
    def storage(self) -> tuple[object, ...]:
        """Equal for plans whose packed projections have the same bytes: one serves both."""
        shape = (self.vocab, self.rank, self.num_blocks, self.sweep_warps, self.warp_tiles)
        return (self.weights, self.warpgroups, *shape, *self.stored_order())

    def _warpgroup_places(self) -> list[tuple[Literal["register", "shared", "streamed"], int]]:
        """Streamed half tiles spread evenly over the sweep, resident fragments over the rest."""
        units = self.warp_tiles * self.slabs // self.unit_fragments
        streamed = self.streamed_fragments // self.unit_fragments
        resident = self.register_fragments + self.shared_fragments
        result: list[tuple[Literal["register", "shared", "streamed"], int]] = []
        counts = {"register": 0, "shared": 0, "streamed": 0}

        def put(place: Literal["register", "shared", "streamed"]) -> None:
            result.append((place, counts[place]))
            counts[place] += 1

        for unit in range(units):
            passing = (unit + 1) * streamed // units > unit * streamed // units
            for _ in range(self.unit_fragments):
                at = counts["register"] + counts["shared"]
                if passing:
                    put("streamed")
                elif (at + 1) * self.shared_fragments // resident > counts["shared"]:
                    put("shared")
                else:
                    put("register")
        return result

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
    def exact_apart(self) -> bool:
        """Whether sampled rows that are too close are judged again by code of its own.

        So much code is slow to fetch, where warpgroups judge eight requests. Lone warps of few
        requests have no registers to spare for it.
        """
        return self.sampled and self.warpgroups

    @property
    def sweeps_written(self) -> int:
        """Sweeps in the kernel's code."""
        return 1 + self.exact_apart

    def render_header(self) -> str:
        """The constants the kernel is compiled with; plain C++, no CUDA."""
        # Registers count from 0 up, what is away from -1 down, in the order of the sweep.
        found = self.places()
        first = {"streamed": 0, "shared": self.streamed_fragments}
        away = [first[place] + index for place, index in found if place != "register"]
        numbers = iter(range(len(away)))
        places = [index if place == "register" else -1 - next(numbers) for place, index in found]
        stored = self.stored_order()
        sources = [
            stored[tile * self.slabs + slab] * FRAGMENT_BYTES * self.operand_warps
            for tile, slab in self.sweep_order()
        ]
        constants = {
            "HEAD": HEAD_KINDS.index(self.kind),
            "PART": self.part,
            "STATE": max(1, self.state),
            "STATES": self.states,
            "HIDDEN": max(1, self.hidden),
            "HIDDEN_ROWS": self.hidden_rows,
            "HIDDEN_PLACES": self.hidden_places,
            "HIDDEN_STORAGE": self.hidden if self.hidden_inside else 1,
            "UNITS": self.units,
            "UNIT_ROWS": self.unit_rows,
            "UNIT_BYTES": self.unit_bytes,
            "EARLY_SLOTS": self.early_slots,
            "PART_SLOTS": self.part_slots,
            "BLOCK_UNITS": self.block_units,
            "PROJECTOR_ROWS": self.projector_rows,
            "BLOCK_PROJECTIONS": self.block_projections,
            "JOINT_STORAGE": self.joint_numbers,
            "EARLY_COLUMNS": self.columns if self.units else 1,
            "EARLY_WORDS": self.early_words,
            "WORD_UNITS": self.word_units,
            "BLOCK_WORDS": self.block_words,
            "UNIT_STORAGE": self.early_storage,
            "PROJECTOR_STORAGE": max(1, self.projector_rows),
            "VOCAB": self.vocab,
            "RANK": self.rank,
            "SLABS": self.slabs,
            "OPERAND_SLABS": self.operand_slabs,
            "ROW_SCALE_WORDS": self.row_scale_words,
            "TABLE_ROWS": self.table_rows,
            "TABLE_ROW_BYTES": self.table_row_bytes,
            "NUM_BLOCKS": self.num_blocks,
            "SWEEP_WARPS": self.sweep_warps,
            "SERVICE_WARPS": SERVICE_WARPS,
            "THREADS": self.threads,
            "SWEEP_REGISTERS": self.sweep_registers,
            "SERVICE_REGISTERS": self.service_registers,
            "ROWS": self.rows,
            "TILE_BYTES": self.tile_bytes,
            "WARP_TILES": self.warp_tiles,
            "FRAGMENT_BYTES": FRAGMENT_BYTES,
            "REGISTER_FRAGMENTS": max(1, self.register_fragments),
            "SHARED_FRAGMENTS": self.shared_fragments,
            "STREAMED_FRAGMENTS": self.streamed_fragments,
            "PHASES_APART": int(self.streamed_fragments > 0 or self.groups > 1),
            "FRAGMENT_STORAGE": _fragment_storage(self),
            "RING_LENGTH": max(1, self.ring_units),
            "COPIED_TOGETHER": self.copied_together,
            "RING_PLACES": _ring_places(self),
            "RING_UNIT_BYTES": self.ring_unit_bytes if self.ring_units else 1,
            "RINGS": _ring_barriers(self) // max(1, self.ring_units),
            "LATENT_LINE_BYTES": self.latent_line_bytes,
            "LATENT_SLOT_BYTES": self.latent_slot_bytes,
            "TENSOR_TILES": self.tensor_tiles,
            "MATRIX_TILES": self.matrix_tiles,
            "MATRIX_BYTES": self.matrix_bytes,
            "TENSOR_COLUMNS": COLUMNS,
            "TILE_COLUMNS": self.tile_columns,
            "SUM_COLUMN": self.sum_column,
            "SUM_COLUMNS": OPERAND_COLUMNS,
            "SUMS_JUDGED": SUMS_JUDGED,
            "ASYNC_ACCUMULATORS": self.async_accumulators,
            "REQUEST_COLUMNS": self.request_columns,
            "OPERAND_LEAD": self.operand_lead,
            "OPERAND_ROWS": self.operand_rows,
            "INSTRUCTION_DESCRIPTOR": instruction_descriptor(self.weights),
            "COLUMNS": self.columns,
            "COLUMN_BLOCKS": self.column_blocks,
            "OPERAND_WARPS": self.operand_warps,
            "GROUPS": self.groups,
            "LATENT_SLOTS": self.latent_slots,
            "LATER_TOKENS": self.later_tokens,
            "TILES_PER_ACCUMULATOR": self.tiles_per_accumulator,
            "PHASES": self.phases,
            "TILES_IN_FLIGHT": self.tiles_in_flight,
            "QUEUE_DEPTH": self.queue_depth,
            "BASE_SLOTS": self.base_slots,
            "BASE_LINE_BYTES": self.base_line_bytes,
            "BASE_TYPE": NUMBER_TYPES.index(self.base_type),
            "STEP_TYPE": NUMBER_TYPES.index(self.step_type),
            "SERVED_TOGETHER": self.served_together,
            "RACE_WORDS": self.race_words,
            "RACES": self.races,
            "CANDIDATES": self.candidates,
            "CANDIDATE_SLOTS": self.candidate_slots,
            "SCALE_LIMITS": SCALE_LIMITS,
            "EXACT_LATENT": self.exact_latent,
            "EXACT_LATENT_SLOTS": self.exact_latent_slots,
            "PARKED_NOISE": self.parked_noise,
            "TILES_JUDGED": TILES_JUDGED,
            "PARKED_LOGITS": self.parked_logits,
            "PARKING_THREADS": self.parking_threads,
            "EXCHANGE_LAG": self.exchange_lag,
            "FIRST_POLL_CYCLES": self.first_poll_cycles,
            "SLOT_LINE_WORDS": self.slot_line_words,
            "SHARED_BYTES": self.shared_bytes,
            "SHARED_BYTES_LIMIT": self.shared_limit,
        }
        flags = {
            "QUANTISED": self.quantised,
            "WARPGROUPS": self.warpgroups,
            "HIDDEN_INSIDE": self.hidden_inside,
            "NOISE_AHEAD": self.noise_ahead,
            "EXACT_APART": int(self.exact_apart),
            "SCORED": self.scored,
            "WIDE": self.wide,
            "SAMPLED": self.sampled,
            "EXACT": self.exact,
            "MAPPED": self.mapped,
        }
        lines = [
            "// Rendered by the planner; every size of the kernel comes from here.",
            "#pragma once",
        ]
        lines.append(f"#define WTS_WIDE {int(self.wide)}")
        lines.append(f"#define WTS_WARPGROUPS {int(self.warpgroups)}")
        lines.append(f"#define WTS_EXACT {int(self.exact)}")
        lines.append(f"#define WTS_TENSOR {int(self.async_tiles > 0)}")
        lines.append(f"#define WTS_OWNED {int(self.owned)}")
        lines.append(f"#define WTS_QUANTISED {int(self.quantised)}")
        lines.append("#define WTS_FRAGMENT_PLACE " + ", ".join(map(str, places)))
        lines.append("#define WTS_FRAGMENT_SOURCE " + ", ".join(map(str, sources)))
        gone = [source for source, place in zip(sources, places, strict=True) if place < 0]
        by_place = [source for _, source in sorted(zip(away, gone, strict=True))]
        lines.append("#define WTS_AWAY_PLACE " + ", ".join(map(str, away or [0])))
        lines.append("#define WTS_AWAY_SOURCE " + ", ".join(map(str, by_place or [0])))
        lines.append("#ifndef WTS_TRACE\n#define WTS_TRACE 0\n#endif")
        lines.append("namespace wts {\nnamespace plan {")
        lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
        for name, descriptor in _matrix_descriptors(self).items():
            lines.append(f"constexpr unsigned long long {name} = {descriptor:#x}ull;")
        lines += [f"constexpr bool {n} = {'true' if v else 'false'};" for n, v in flags.items()]
        lines.append(f"constexpr float LEAST_TEMPERATURE = {LEAST_TEMPERATURE!r}f;")
        lines.append("constexpr bool TRACE = WTS_TRACE;")
        lines.append("}  // namespace plan\n}  // namespace wts\n")
        return "\n".join(lines)

    def __str__(self) -> str:
        return _ledger(self)


# ---- shared memory -----------------------------------------------------------------------------


def shared_layout(plan: ResidencyPlan) -> list[tuple[str, int]]:
    """Offset of each member of the kernel's shared-memory struct, in bytes; the last is its size.

    Mirrors `struct Shared` of csrc/layout.cuh, which asserts the same total.
    """
    groups, columns, slots = plan.groups, plan.columns, plan.base_slots
    places, early = _ring_places(plan), columns if plan.units else 1
    kept = plan.candidate_slots
    hidden = plan.hidden if plan.hidden_inside else 1
    members = [
        ("fragments", _fragment_storage(plan) * FRAGMENT_BYTES, 128),
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
        ("ring_landed", 8 * _ring_barriers(plan), 8),
        ("ring_readers", 4 * _ring_barriers(plan), 4),
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
            ("exact_weight", 8, 16),
            ("exact_table", 8, 8),
            ("scale_limit", 4 * SCALE_LIMITS, 4),
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


def _fragment_storage(plan: ResidencyPlan) -> int:
    """Resident fragments in a block's shared memory: warps' own ones, then tcgen05's tiles."""
    return max(1, plan.sweep_warps * (plan.shared_fragments + plan.matrix_tiles * plan.slabs))


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


def _ring_places(plan: ResidencyPlan) -> int:
    """Places of all rings of a block; the kernel's struct has one where there is none."""
    return max(1, plan.ring_units * plan.sweep_warps // plan.operand_warps)


def _ring_barriers(plan: ResidencyPlan) -> int:
    """Places that have a barrier; a ring of lanes' copies needs none, one stands for all."""
    bulk = plan.warpgroups or plan.copied_together > 1
    return _ring_places(plan) if bulk else max(1, plan.ring_units)


# ---- the ledger --------------------------------------------------------------------------------


def _ledger(plan: ResidencyPlan) -> str:
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
