"""Plans: each fragment has one place, shards cover the vocabulary, and every size fits the chip."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from strategies import hopper, plans, shapes
from wts.dtypes import NUMBER_TYPES
from wts.errors import DeviceError, PlanError
from wts.hardware.gpu import GPUS
from wts.heads.kinds import RANKS, Shape
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.arrange import with_fewer_registers, with_single_warps
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.shard import FRAGMENT_BYTES, TILE_ROWS
from wts.kernels.resident.shared import shared_layout
from wts.kernels.resident.variants import streaming_plan, with_register_fragments
from wts.numerics.limits import SLAB_BYTES

QWEN = Shape(vocab=151_936, rank=256)


def sweep_warps(plan: ResidentPlan) -> int:
    """Warps that share a block's rows, a whole number of tiles each."""
    warps, rest = divmod(plan.shard.rows, plan.shard.warp_tiles * TILE_ROWS)
    assert rest == 0
    return warps


def plan_of(**changes: Any) -> ResidentPlan:
    """A plan of a published head on an H200, or of one that differs in what is named."""
    fields: dict[str, Any] = {"vocab": 151_936, "rank": 256, "gpu": hopper()} | changes
    names = {"vocab", "rank", "table_rows", "table_type", "mapped", "kind", "state", "hidden"}
    keys = names & fields.keys()
    shape = Shape(**{key: fields.pop(key) for key in keys})
    return plan_residency(shape, fields.pop("gpu"), **fields)


def check_places(plan: ResidentPlan) -> None:
    """Each fragment of the sweep is in one place, and each place is filled without gaps."""
    places = plan.placement.memories()
    assert len(places) == len(plan.placement.sweep_order())
    planned = {
        "register": plan.placement.register_fragments,
        "shared": plan.placement.shared_fragments,
        "streamed": plan.placement.streamed_fragments,
    }
    assert Counter(place for place, _ in places) == Counter(planned)
    for kind, count in planned.items():
        assert sorted(index for place, index in places if place == kind) == list(range(count))


class TestEveryPlan:
    @given(plans())
    def test_shards_cover_the_vocabulary_and_none_is_empty(self, plan: ResidentPlan) -> None:
        assert sweep_warps(plan) >= 1
        assert plan.shard.padded_vocab == plan.shard.num_blocks * plan.shard.rows
        assert (
            (plan.shard.num_blocks - 1) * plan.shard.rows
            < plan.request.shape.vocab
            <= plan.shard.num_blocks * plan.shard.rows
        )

    @given(plans())
    def test_needs_no_more_blocks_than_can_be_co_resident(self, plan: ResidentPlan) -> None:
        assert 1 <= plan.shard.num_blocks <= plan.gpu.max_blocks

    @given(plans())
    def test_the_batch_has_room_in_the_groups(self, plan: ResidentPlan) -> None:
        assert (
            (plan.product.groups - 1) * plan.product.columns
            < plan.request.batch
            <= plan.product.groups * plan.product.columns
        )

    @given(plans())
    def test_sweep_order_is_every_slab_of_every_tile_once(self, plan: ResidentPlan) -> None:
        wanted = {
            (tile, slab)
            for tile in range(plan.product.own_tiles)
            for slab in range(plan.shard.slabs)
        }
        order = plan.placement.sweep_order()
        assert len(order) == len(wanted) == plan.product.matrix_instructions
        assert set(order) == wanted

    @given(plans())
    def test_a_tile_adds_its_slabs_in_one_phase(self, plan: ResidentPlan) -> None:
        """An accumulator does not outlive its phase, so a tile begins and ends in one."""
        live = plan.product.accumulators_at_once
        tiles_of_a_phase = live * plan.product.tiles_per_accumulator
        phases = [tile // tiles_of_a_phase for tile, _ in plan.placement.sweep_order()]
        assert phases == sorted(phases)
        assert set(phases) <= set(range(plan.product.sweep_passes))

    @pytest.mark.parametrize("streamed", [False, True])
    @given(st.data())
    def test_every_fragment_has_exactly_one_place(
        self, streamed: bool, data: st.DataObject
    ) -> None:
        check_places(data.draw(plans(streamed=streamed)))

    @given(plans())
    def test_nothing_streams_while_shared_memory_has_room(self, plan: ResidentPlan) -> None:
        """Room for some fragments may be left: what is streamed is a multiple of something."""
        least = (
            plan.placement.ring_slots
            * plan.placement.chunk_fragments
            * (1 if plan.product.warpgroups else 2)
        )
        if plan.placement.streamed_fragments > least:
            some = 8 * sweep_warps(plan) * FRAGMENT_BYTES
            assert plan.shared_bytes + some > plan.gpu.shared_bytes_per_block

    @given(plans())
    def test_fewer_registers_are_a_plan_of_the_same_rows(self, plan: ResidentPlan) -> None:
        while True:
            try:
                fewer = with_fewer_registers(plan)
            except PlanError as error:
                assert plan.hash in str(error)  # noqa: PT017
                break
            assert fewer.placement.register_fragments < plan.placement.register_fragments
            assert fewer.shared_bytes <= fewer.gpu.shared_bytes_per_block
            check_places(fewer)
            assert (fewer.request, fewer.shard) == (plan.request, plan.shard)
            assert fewer.product.columns == plan.product.columns
            assert fewer.product.groups == plan.product.groups
            assert fewer.selection.long_words == plan.selection.long_words
            assert fewer.hash != plan.hash
            plan = fewer

    @given(plans())
    def test_counts_are_those_of_the_shard(self, plan: ResidentPlan) -> None:
        counts = (
            plan.placement.register_fragments,
            plan.placement.shared_fragments,
            plan.placement.streamed_fragments,
        )
        assert min(counts) >= 0
        assert sum(counts) == plan.product.own_tiles * plan.request.row_bytes // SLAB_BYTES

    @given(plans())
    def test_shared_memory_is_within_the_limit(self, plan: ResidentPlan) -> None:
        assert (
            plan.shared_bytes
            <= plan.gpu.shared_bytes_per_block
            <= GPUS["h200"].shared_bytes_per_block
        )

    @given(plans())
    def test_shared_memory_holds_the_fragments_and_ends_with_its_size(
        self, plan: ResidentPlan
    ) -> None:
        layout = dict(shared_layout(plan))
        offsets = list(layout.values())
        assert offsets == sorted(set(offsets)), "members are in order and none is empty"
        assert list(layout)[-1] == "end"
        assert layout["end"] == plan.shared_bytes
        assert layout["end"] % 128 == 0
        room = layout["row_scale"] - layout["fragments"]
        assert room >= sweep_warps(plan) * plan.placement.shared_fragments * FRAGMENT_BYTES
        assert layout["base"] - layout["row_scale"] >= 4 * plan.shard.row_scale_words

    @given(plans())
    def test_staged_base_logits_fit_their_line_from_any_element(self, plan: ResidentPlan) -> None:
        """A copy is of whole 16-byte pieces and begins at or before the first logit."""
        size = {"bf16": 2, "fp16": 2, "fp32": 4}[plan.request.base_type]
        for misaligned in range(0, 16, size):
            assert (
                -(-(misaligned + plan.shard.rows * size) // 16) * 16 <= plan.rounds.base_line_bytes
            )
        assert plan.rounds.base_line_bytes % 16 == 0
        assert plan.rounds.base_buffers >= (
            1 if plan.product.warpgroups and plan.product.groups == 1 else 2
        )

    @given(plans())
    def test_resident_share_is_that_of_the_fragments_on_chip(self, plan: ResidentPlan) -> None:
        total = plan.shard.warp_tiles * plan.shard.slabs
        assert plan.placement.resident_share == pytest.approx(
            1 - plan.placement.streamed_fragments / total
        )
        assert (plan.placement.resident_share == 1) == (plan.placement.streamed_fragments == 0)

    @given(plans())
    def test_a_candidate_can_name_every_row_of_its_shard(self, plan: ResidentPlan) -> None:
        assert plan.exchange.word_bytes == (8 if plan.selection.long_words else 4)
        assert plan.shard.rows <= (1 << 16 if plan.selection.long_words else 1 << 12)
        if plan.request.step_type != "bf16":
            assert plan.selection.long_words, "a score of more than 16 bits needs the wide word"

    def test_a_candidate_is_one_short_word_only_where_its_row_fits_in(self) -> None:
        """Twelve bits name 4096 rows: the largest compact shard, and the next one."""
        largest, next_one = (
            plan_of(vocab=8 * 4096, gpu=hopper(8)),
            plan_of(vocab=8 * 4096 + 1, gpu=hopper(8)),
        )
        assert (largest.shard.rows, largest.selection.long_words) == (4096, False)
        assert next_one.shard.rows > 4096
        assert next_one.selection.long_words

    @given(plans())
    def test_the_workspace_has_a_slot_for_each_request_block_and_parity(
        self, plan: ResidentPlan
    ) -> None:
        assert plan.exchange.slot_line_words >= plan.shard.num_blocks
        assert plan.exchange.slot_line_words * plan.exchange.word_bytes % 128 == 0
        assert (
            plan.exchange.workspace_words
            == 2 * plan.product.groups * plan.product.columns * plan.exchange.slot_line_words
        )

    @given(plans())
    def test_the_header_holds_the_plan(self, plan: ResidentPlan) -> None:
        found = {
            name: int(value)
            for name, value in re.findall(r"constexpr int (\w+) = (-?\d+);", plan.render_header())
        }
        wanted = {
            "VOCAB": plan.request.shape.vocab,
            "RANK": plan.request.shape.rank,
            "TABLE_ROWS": plan.request.table_rows,
            "NUM_BLOCKS": plan.shard.num_blocks,
            "ROWS": plan.shard.rows,
            "WARP_TILES": plan.shard.warp_tiles,
            "COLUMNS": plan.product.columns,
            "GROUPS": plan.product.groups,
            "REGISTER_FRAGMENTS": max(1, plan.placement.register_fragments),
            "SHARED_BYTES": plan.shared_bytes,
            "SLOT_LINE_WORDS": plan.exchange.slot_line_words,
        }
        assert {name: found[name] for name in wanted} == wanted

    @given(plans())
    def test_the_header_tells_apart_what_is_in_registers_streamed_and_shared(
        self, plan: ResidentPlan
    ) -> None:
        """Registers count from 0 up, what is away from -1 down, in the order of the sweep."""
        header = plan.render_header()
        numbers, away, sources = (
            [int(word) for word in re.findall(r"-?\d+", listed[1])]
            for name in ("FRAGMENT_PLACE", "AWAY_PLACE", "AWAY_SOURCE")
            if (listed := re.search(rf"#define WTS_{name} (.*)", header))
        )
        count = plan.placement.streamed_fragments + plan.placement.shared_fragments
        assert [number for number in numbers if number < 0] == list(range(-1, -count - 1, -1))
        first = {"streamed": 0, "shared": plan.placement.streamed_fragments}
        for number, (place, index) in zip(numbers, plan.placement.memories(), strict=True):
            found = number if place == "register" else away[-1 - number]
            assert found == first.get(place, 0) + index
        if count == 0:
            return
        assert sorted(away) == list(range(count))
        listed = re.search(r"#define WTS_FRAGMENT_SOURCE (.*)", header)
        assert listed is not None
        by_position = [int(word) for word in listed[1].split(",")]
        for number, source in zip(numbers, by_position, strict=True):
            if number < 0:
                assert sources[away[-1 - number]] == source

    @given(plans(max_vocab=300_000))
    def test_what_is_streamed_has_a_ring_and_a_place_in_every_sweep(
        self, plan: ResidentPlan
    ) -> None:
        assert (plan.placement.ring_slots > 0) == (plan.placement.streamed_fragments > 0)
        units, rest = divmod(plan.placement.streamed_fragments, plan.placement.chunk_fragments)
        assert units >= plan.placement.ring_slots
        in_bulk = plan.placement.copied_together > 1  # some of whose copies are shorter
        assert rest == 0 or in_bulk
        if plan.placement.ring_slots and in_bulk:
            assert plan.placement.ring_slots >= 3
        elif plan.placement.ring_slots and not plan.product.warpgroups:
            assert units % plan.placement.ring_slots == 0
            assert plan.placement.ring_slots >= plan.product.queue_depth
        streamed = [
            i for i, (place, _) in enumerate(plan.placement.memories()) if place == "streamed"
        ]
        if plan.product.warpgroups:  # whole half tiles
            for first in streamed[:: plan.placement.chunk_fragments]:
                assert first % plan.placement.chunk_fragments == 0
                assert first + plan.placement.chunk_fragments - 1 in streamed

    @given(plans())
    def test_what_a_warp_streams_lies_together_in_the_order_of_its_use(
        self, plan: ResidentPlan
    ) -> None:
        stored = plan.placement.stored_order()
        assert sorted(stored) == list(range(plan.shard.warp_tiles * plan.shard.slabs))
        if plan.product.warpgroups or not plan.placement.streamed_fragments:
            return
        order = zip(plan.placement.sweep_order(), plan.placement.memories(), strict=True)
        used = [
            stored[t * plan.shard.slabs + s] for (t, s), (place, _) in order if place == "streamed"
        ]
        assert used == list(range(plan.placement.streamed_fragments))

    @given(plans(max_vocab=20_000))
    def test_the_header_lists_each_packed_fragment_of_a_warp_once(self, plan: ResidentPlan) -> None:
        listed = re.search(r"#define WTS_FRAGMENT_SOURCE (.*)", plan.render_header())
        assert listed is not None
        offsets = [int(word) for word in listed[1].split(",")]
        size = FRAGMENT_BYTES * plan.product.operand_warps
        fragments = plan.product.fragments
        assert sorted(offsets) == list(range(0, fragments * size, size))
        stored = plan.placement.stored_order()
        assert offsets == [
            stored[t * plan.shard.slabs + s] * size for t, s in plan.placement.sweep_order()
        ]

    @pytest.mark.parametrize(("blocks", "base_type"), [(1, "bf16"), (2, "fp32")])
    def test_what_does_not_fit_is_refused_by_name(self, blocks: int, base_type: Any) -> None:
        with pytest.raises(PlanError) as caught:
            plan_of(vocab=300_000, gpu=hopper(blocks), batch=64, base_type=base_type)
        message = str(caught.value)
        assert re.search(r"^batch 64 .*wanted at most 232448 bytes .*found \d+; ", message)

    def test_more_than_is_written_out_is_refused_by_name(self) -> None:
        with pytest.raises(
            PlanError, match=r"^vocab 248320 of rank 512 in 37 .* 800 .* found 848;"
        ):
            plan_of(vocab=248_320, rank=512, gpu=hopper(37))

    @pytest.mark.parametrize("flag", ["sampled", "exact", "tensor_memory"])
    @pytest.mark.parametrize("value", [1, 0, "no", 0.5])
    def test_what_is_neither_true_nor_false_is_refused(self, flag: str, value: Any) -> None:
        with pytest.raises(PlanError, match=f"^{flag}: wanted True or False, found {value!r};"):
            plan_residency(Shape(vocab=300, rank=64), hopper(3), **{flag: value})

    @given(shapes(), st.integers(1, 64), st.sampled_from(NUMBER_TYPES))
    def test_a_whole_hopper_gpu_plans_every_shape_up_to_300_000_rows(
        self, shape: Shape, batch: int, base_type: Any
    ) -> None:
        if shape.state:  # and the matrix of states, which as many blocks hold as the rows fill
            batch = min(batch, 16)
            assume(shape.vocab >= 20_000)
        assert (
            plan_residency(shape, hopper(), batch=batch, base_type=base_type).request.batch == batch
        )

    @given(shapes(), st.integers(1, 64), st.booleans(), st.sampled_from(["b200", "b300"]))
    def test_blackwell_has_no_warpgroups_instruction(
        self, shape: Shape, batch: int, sampled: bool, gpu: str
    ) -> None:
        try:
            plan = plan_residency(shape, gpu, batch=batch, sampled=sampled)
        except PlanError:
            assume(False)
        assert not plan.product.warpgroups
        assert plan.product.columns <= 4
        assert plan.gpu.arch == GPUS[gpu].arch


class TestArguments:
    def test_a_state_too_large_for_the_blocks_of_a_small_vocabulary_is_refused(self) -> None:
        with pytest.raises(
            PlanError, match=r"^vocab 40, state 256: .*in each of 1 blocks, found 3"
        ):
            plan_residency(Shape(vocab=40, rank=256, kind="rnn", state=256, hidden=1024), hopper())

    def test_the_step_type_is_torchs_promotion(self) -> None:
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        for base in NUMBER_TYPES:
            for table in NUMBER_TYPES:
                plan = plan_of(vocab=40, base_type=base, table_type=table)
                wanted = torch.promote_types(dtypes[base], dtypes[table])
                assert dtypes[plan.request.step_type] == wanted

    def test_a_head_and_its_shape_give_one_plan(self) -> None:
        head = MarkovHead.random(
            vocab=90, rank=64, seed=1, dtype=torch.float16, draft_vocab=70, table_rows=95
        )
        shape = Shape(vocab=70, rank=64, table_rows=95, table_type="fp16", mapped=True)
        assert plan_residency(head, "h200", batch=2) == plan_residency(shape, "h200", batch=2)

    def test_padding_rows_of_a_head_are_not_planned(self) -> None:
        head = MarkovHead(
            table=torch.zeros(40, 64), projection=torch.zeros(48, 64), logical_vocab=40
        )
        assert plan_residency(head, "h200").request.shape.vocab == 40

    def test_a_gpu_by_name_and_by_description(self) -> None:
        assert plan_residency(QWEN, "H20") == plan_residency(QWEN, GPUS["h20"])
        with pytest.raises(DeviceError, match="h300"):
            plan_residency(QWEN, "h300")

    @pytest.mark.parametrize(
        ("argument", "value", "wanted"),
        [
            ("vocab", 0, "from 1 to"),
            ("vocab", -5, "from 1 to"),
            ("vocab", (1 << 20) + 1, "from 1 to 1048576"),
            ("vocab", 1000.0, "an integer"),
            ("vocab", True, "an integer"),
            ("table_rows", 0, "from 1 to"),
            ("table_rows", -3, "from 1 to"),
            ("table_rows", 1 << 31, "from 1 to 2147483647"),
            ("batch", 0, "from 1 to 64"),
            ("batch", 65, "from 1 to 64"),
            ("batch", "4", "an integer"),
            ("steps", 0, "from 1 to 32"),
            ("steps", 33, "from 1 to 32"),
            ("rank", 0, "one of 64, 128, 256, 512"),
            ("rank", 200, "one of 64, 128, 256, 512"),
            ("rank", 1024, "one of 64, 128, 256, 512"),
            ("base_type", "int8", "bf16, fp16, fp32"),
            ("table_type", "fp8", "bf16, fp16, fp32"),
        ],
    )
    def test_refused_by_name(self, argument: str, value: object, wanted: str) -> None:
        with pytest.raises(PlanError) as caught:
            plan_of(**{argument: value})
        message = str(caught.value)
        assert message.startswith(f"{argument}: wanted ")
        assert wanted in message
        assert f"found {value!r}" in message


class TestOwnedUnits:
    """States of more than two requests: blocks exchange them, and no sums of all units wait."""

    @pytest.mark.parametrize(("kind", "state"), [("rnn", 256), ("domino", 1024)])
    @pytest.mark.parametrize("batch", [1, 2, 3, 8, 16])
    def test_are_those_of_more_than_two_requests(self, kind: Any, state: int, batch: int) -> None:
        plan = plan_of(kind=kind, state=state, hidden=2560, batch=batch)
        assert plan.recurrence.sharded_state == (batch > 2)
        sums = 3 * state if kind == "rnn" else state
        states = state if kind == "rnn" else 128 * 3  # eight units of 128 blocks, three a word
        assert plan.recurrence.sum_words == (states if batch > 2 else sums)
        names = [name for name, _ in shared_layout(plan)]
        assert ("own_sum" in names) == (batch > 2)
        assert plan.recurrence.deferred_tokens == 1

    @pytest.mark.parametrize("kind", ["markov", "gated"])
    def test_no_other_head_has_them(self, kind: Any) -> None:
        hidden = 2560 if kind == "gated" else 0
        assert not any(
            plan_of(kind=kind, hidden=hidden, batch=b).recurrence.sharded_state
            for b in (1, 4, 16, 64)
        )

    def test_four_requests_of_a_domino_head_are_wholly_resident(self) -> None:
        """Sums of all units, 32 KB of a block, would have left no room."""
        plan = plan_of(kind="domino", state=1024, hidden=2560, batch=4)
        assert plan.placement.resident_share == 1


class TestPublishedHeads:
    @pytest.mark.parametrize("batch", [1, 2, 3, 4])
    @pytest.mark.parametrize("vocab", [32_000, 129_280, 151_936, 154_880, 163_840])
    def test_is_wholly_resident_on_132_blocks(self, vocab: int, batch: int) -> None:
        plan = plan_of(vocab=vocab, batch=batch)
        assert plan.placement.resident_share == 1

    @pytest.mark.parametrize("blocks", [36, 78, 100, 114])
    @pytest.mark.parametrize("vocab", [32_000, 151_936, 248_320, 262_144])
    def test_fewer_blocks_are_planned_not_refused(self, vocab: int, blocks: int) -> None:
        plan = plan_of(vocab=vocab, gpu=hopper(blocks))
        assert plan.shard.num_blocks <= blocks
        assert plan.placement.resident_share <= plan_of(vocab=vocab).placement.resident_share

    @pytest.mark.parametrize("rank", RANKS)
    def test_what_is_resident_fits_the_registers_and_shared_memory(self, rank: int) -> None:
        plan = plan_of(rank=rank)
        gpu = hopper()
        registers = sweep_warps(plan) * plan.placement.register_fragments * FRAGMENT_BYTES
        assert registers <= 0.75 * gpu.register_bytes_per_sm
        on_chip = plan.shard.num_blocks * sweep_warps(plan) * FRAGMENT_BYTES
        on_chip *= plan.placement.register_fragments + plan.placement.shared_fragments
        assert plan.placement.resident_share == pytest.approx(
            on_chip / (plan.shard.padded_vocab * rank)
        )


class TestPrinted:
    @given(plans())
    def test_shares_and_bytes_add_up(self, plan: ResidentPlan) -> None:
        text = str(plan)
        rows = re.findall(
            r"^  (registers|shared memory|tensor memory|streamed from L2)"
            r" +[\d.]+ +\d+ +([\d.]+) +([\d.]+)%$",
            text,
            re.MULTILINE,
        )
        places = ["registers", "shared memory", "streamed from L2"]
        if plan.product.tcgen05_tiles:
            places.insert(2, "tensor memory")
        assert [name for name, _, _ in rows] == places
        assert sum(float(share) for _, _, share in rows) == pytest.approx(100, abs=0.2)
        whole = plan.shard.padded_vocab * plan.request.row_bytes / 2**20
        assert sum(float(mebibytes) for _, mebibytes, _ in rows) == pytest.approx(whole, abs=0.2)
        assert f"resident {plan.placement.resident_share:.1%} of" in text

    def test_says_for_what_and_where(self) -> None:
        text = str(plan_of(batch=4, steps=7, gpu=hopper(100)))
        for word in ("151936", "r = 256", "batch 4", "7 steps", "h200", "sm_90a", "100 can be"):
            assert word in text

    def test_says_that_a_part_streams(self) -> None:
        plan = plan_of(vocab=262_144, gpu=hopper(36))
        share = plan.placement.streamed_fragments / (plan.shard.warp_tiles * plan.shard.slabs)
        assert share > 0
        assert re.search(rf"streamed from L2 .* {100 * share:.1f}%", str(plan))


class TestHash:
    @given(plans())
    def test_is_twelve_digits_and_equal_for_equal_plans(self, plan: ResidentPlan) -> None:
        assert re.fullmatch(r"[0-9a-f]{12}", plan.hash)
        assert replace(plan).hash == plan.hash
        assert plan.hash in str(plan)

    def test_is_the_same_in_another_process(self) -> None:
        code = (
            "from wts.heads.kinds import Shape;"
            "from wts.kernels.planner import plan_residency as p;"
            "print(p(Shape(vocab=151_936, rank=256), 'h200').hash)"
        )
        paths = ":".join(sys.path)
        for seed in ("1", "2"):
            environment = {"PYTHONPATH": paths, "PYTHONHASHSEED": seed}
            command = [sys.executable, "-c", code]
            out = subprocess.run(command, env=environment, check=True, capture_output=True)
            assert out.stdout.decode().strip() == plan_of().hash

    def test_differs_for_what_the_kernel_differs_in(self) -> None:
        several = [
            plan_of(),
            plan_of(vocab=151_935),
            plan_of(rank=128),
            plan_of(table_rows=151_937),
            plan_of(mapped=True),
            plan_of(batch=2),
            plan_of(batch=3),
            plan_of(batch=5),
            plan_of(sampled=True),
            plan_of(base_type="fp16"),
            plan_of(base_type="fp32"),
            plan_of(table_type="fp32"),
            plan_of(gpu=hopper(131)),
        ]
        assert len({plan.hash for plan in several}) == len(several)


def test_planning_needs_no_torch(run_python: Callable[[str], int]) -> None:
    use = "import sys; from wts.heads.kinds import Shape; "
    use += "from wts.kernels.planner import plan_residency as p; "
    use += "str(p(Shape(vocab=1000, rank=64), 'h200')); "
    assert run_python(use + "sys.exit('torch' in sys.modules)") == 0


@pytest.mark.parametrize(
    ("vocab", "batch", "sampled", "loses"),
    [
        (151_936, 64, True, False),
        (248_320, 1, False, False),
        (248_320, 8, True, False),
        (248_320, 16, True, False),
        (248_320, 64, True, True),
        (248_320, 64, False, False),
    ],
)
def test_a_plan_that_step_wise_execution_beats_says_so(
    vocab: int, batch: int, sampled: bool, loses: bool
) -> None:
    """As measured on an H200: benchmarks/results/h200/head.jsonl."""
    plan = plan_residency(Shape(vocab=vocab, rank=256), "h200", batch=batch, sampled=sampled)
    assert plan.placement.slower_than_stepwise == loses
    assert ("step-wise execution is faster" in str(plan)) == loses
    assert ("times the projection from L2" in str(plan)) == (plan.placement.streamed_fragments > 0)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_warpgroups_plan_can_become_one_of_lone_warps(sampled: bool) -> None:
    """A compiler that spills must not end a head that fits: fp32 base logits of eight requests."""
    plan = plan_residency(
        Shape(vocab=100_000, rank=256), "h200", batch=8, sampled=sampled, base_type="fp32"
    )
    assert plan.product.warpgroups
    last = with_single_warps(plan)
    assert last.product.instruction == "mma"
    assert last.fits
    assert (last.request, last.shard) == (plan.request, plan.shard)
    assert last.product.groups * last.product.columns >= plan.request.batch


@pytest.mark.parametrize(("sampled", "places"), [(False, 2), (True, 1)])
def test_hidden_states_have_a_second_place_where_that_displaces_nothing(
    sampled: bool, places: int
) -> None:
    """An RNN head of one request; a sampled plan's noise takes the room of another place."""
    shape = Shape(vocab=151_936, rank=256, kind="rnn", state=256, hidden=2560)
    plan = plan_residency(shape, hopper(), batch=1, sampled=sampled)
    assert plan.recurrence.hidden_inside
    assert (plan.recurrence.hidden_buffers, plan.rounds.base_buffers) == (places, 4)
    one = replace(plan.recurrence, hidden_buffers=1)
    assert dict(shared_layout(plan.replaced(recurrence=one)))["own_part"] == (
        dict(shared_layout(plan))["own_part"] - 2 * 2560 * (places - 1)
    )


class TestForBenchmarks:
    """Plans that nobody would choose, made to be measured."""

    @pytest.mark.parametrize("batch", [1, 4, 8, 64])
    @pytest.mark.parametrize("sampled", [False, True])
    def test_streaming_keeps_nothing(self, batch: int, sampled: bool) -> None:
        plan = plan_residency(Shape(vocab=151_936, rank=256), "h200", batch=batch, sampled=sampled)
        streaming = streaming_plan(plan)
        assert streaming.placement.resident_share == 0
        assert streaming.placement.streamed_fragments == 9 * 8
        assert streaming.shared_bytes <= streaming.gpu.shared_bytes_per_block
        assert {place for place, _ in streaming.placement.memories()} == {"streamed"}
        if streaming.product.warpgroups:  # a ring without a place left over stands still
            assert streaming.placement.ring_slots > 2 * streaming.product.tiles_in_flight
        else:
            assert streaming.placement.streamed_fragments % streaming.placement.ring_slots == 0

    def test_what_cannot_stream_is_an_error(self) -> None:
        few = plan_residency(Shape(vocab=300, rank=64), "h200")
        with pytest.raises(PlanError, match="whole rings"):
            streaming_plan(few)
        gated = plan_residency(Shape(vocab=9000, rank=256, kind="gated", hidden=64), "h200")
        with pytest.raises(PlanError, match="markov"):
            streaming_plan(gated)

    def test_placements_keep_all_fragments(self) -> None:
        plan = plan_residency(Shape(vocab=151_936, rank=256), "h200")
        assert with_register_fragments(plan, plan.placement.register_fragments) == plan
        for fragments in (24, 32, 48):
            other = with_register_fragments(plan, fragments)
            assert (other.placement.register_fragments, other.placement.shared_fragments) == (
                fragments,
                72 - fragments - other.placement.streamed_fragments,
            )
        for fragments in (0, 73):
            with pytest.raises(PlanError, match="fragments"):
                with_register_fragments(plan, fragments)
