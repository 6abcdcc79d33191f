"""Kernels compiled without a GPU: no spills, the planned instructions, the cache."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

import wts.kernels.compile
from strategies import hopper, plans
from wts.dtypes import NumberType, WeightType
from wts.errors import CompileError
from wts.hardware.gpu import GPUS
from wts.heads.kinds import Shape
from wts.kernels.cache import cache_folder
from wts.kernels.compile import CompiledWalk, compile_fitting, compile_walk
from wts.kernels.cubin import Resources, instruction_counts
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan


def compiler_missing() -> str:
    """Why nothing can be compiled here, or ""."""
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:
        return f"needs cuda.core and NVRTC: {error}"
    return ""


MISSING = compiler_missing()
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING)


# Each example is a compilation, so a failure is not shrunk; the same plans are drawn in every run.
some_plans = settings(
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.fixture(scope="module", autouse=True)
def _cache_of_these_tests(cache: Path) -> Iterator[None]:
    """What is compiled without naming a cache does not go into the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wts.kernels.compile, "cache_folder", lambda: cache)
        yield


def plan_of(
    vocab: int = 40,
    rank: int = 64,
    batch: int = 1,
    base_type: NumberType = "bf16",
    *,
    blocks: int = 132,
    gpu: str | None = None,
    sampled: bool = False,
    weights: WeightType = "int8",
    exact: bool = False,
    tensor_memory: bool | None = None,
    **shape: Any,
) -> ResidentPlan:
    shape |= {"vocab": vocab, "rank": rank}
    spec = hopper(blocks) if gpu is None else GPUS[gpu]
    return plan_residency(
        Shape(**shape),
        spec,
        batch=batch,
        base_type=base_type,
        sampled=sampled,
        weights=weights,
        exact=exact,
        tensor_memory=tensor_memory,
    )


def check_kernel(plan: ResidentPlan, cache: Path) -> None:
    compiled = compile_walk(plan, cache=cache)
    used = compiled.used
    assert compiled.plan is plan
    assert compiled.cubin[:4] == b"\x7fELF"
    assert (used.spill_bytes, used.local_accesses) == (0, 0)
    assert (
        used.matrix_instructions
        == plan.product.matrix_instructions * plan.selection.sweeps_written
        > 0
    )
    assert 0 < used.registers * plan.roles.threads <= 65_536, "a block's registers fit an SM"
    instruction = {"mma": "IMMA" if plan.request.quantised else "HMMA", "wgmma": "IGMMA"}[
        plan.product.instruction
    ]
    counts = instruction_counts(compiled.cubin)
    assert counts[instruction] == used.matrix_instructions
    # Of tcgen05: products, a commit and a load of sums for each accumulator, stores of the weights.
    assert (
        counts["UTCMMA"]
        == plan.product.tensor_instructions
        == plan.product.tcgen05_tiles * plan.shard.slabs
    )
    assert counts["UTCBAR"] == counts["LDTM"] == plan.product.tcgen05_accumulators
    assert (counts["STTM"] > 0) == (plan.product.tensor_tiles > 0)


@needs_compiler
class TestKernel:
    @pytest.mark.parametrize("batch", [1, 2, 3, 4])
    @pytest.mark.parametrize("vocab", [32_000, 129_280, 151_936, 154_880, 163_840])
    def test_of_published_heads(self, vocab: int, batch: int, cache: Path) -> None:
        check_kernel(plan_of(vocab, 256, batch), cache)

    @pytest.mark.parametrize("batch", [5, 8, 16, 64])
    def test_of_larger_batches(self, batch: int, cache: Path) -> None:
        check_kernel(plan_of(151_936, 256, batch), cache)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 64])
    @pytest.mark.parametrize("vocab", [32_000, 151_936, 248_320])
    def test_of_exact_walks(self, vocab: int, batch: int, cache: Path) -> None:
        check_kernel(plan_of(vocab, 256, batch, exact=True), cache)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("vocab", [33, 32_000, 151_936])
    def test_of_sampled_walks(self, vocab: int, batch: int, cache: Path) -> None:
        check_kernel(plan_of(vocab, 256, batch, sampled=True), cache)

    @pytest.mark.parametrize("base_type", ["fp16", "fp32"])
    def test_of_sampled_walks_of_other_types(self, base_type: Any, cache: Path) -> None:
        for batch in (1, 4):
            check_kernel(plan_of(151_936, 256, batch, base_type, sampled=True), cache)

    @pytest.mark.parametrize("rank", [64, 128, 256, 512])
    @pytest.mark.parametrize("vocab", [1, 100, 5000])
    def test_of_small_vocabularies(self, vocab: int, rank: int, cache: Path) -> None:
        for batch in (1, 3):
            check_kernel(plan_of(vocab, rank, batch), cache)

    @pytest.mark.parametrize("rank", [64, 128, 512])
    def test_of_other_ranks(self, rank: int, cache: Path) -> None:
        check_kernel(plan_of(32_000, rank, 2), cache)
        check_kernel(plan_of(60_000, rank, 4), cache)

    @pytest.mark.parametrize("base_type", ["bf16", "fp16", "fp32"])
    @pytest.mark.parametrize("table_type", ["bf16", "fp16", "fp32"])
    def test_of_number_types(self, base_type: Any, table_type: Any, cache: Path) -> None:
        check_kernel(plan_of(5000, 256, 1, base_type, table_type=table_type), cache)
        check_kernel(plan_of(151_936, 256, 2, base_type, table_type=table_type), cache)

    def test_with_a_map_and_a_longer_table(self, cache: Path) -> None:
        check_kernel(plan_of(32_000, 256, 4, mapped=True, table_rows=151_936), cache)

    @pytest.mark.parametrize("blocks", [36, 78, 100, 114])
    def test_of_fewer_blocks(self, blocks: int, cache: Path) -> None:
        check_kernel(plan_of(36 * 1000, 256, 1, blocks=blocks), cache)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("sampled", [False, True])
    def test_of_a_head_that_streams_a_part(self, batch: int, sampled: bool, cache: Path) -> None:
        plan = plan_of(248_320, 256, batch, sampled=sampled)
        assert plan.placement.streamed_fragments > 0
        check_kernel(plan, cache)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize(("kind", "state"), [("gated", 0), ("rnn", 256), ("domino", 1024)])
    def test_of_heads_that_read_hidden_states(
        self, kind: Any, state: int, batch: int, cache: Path
    ) -> None:
        for sampled in (False, True):
            plan = plan_of(
                151_936, 256, batch, sampled=sampled, kind=kind, state=state, hidden=2560
            )
            check_kernel(plan, cache)

    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("vocab", [33, 32_000, 151_936, 248_320])
    def test_of_bf16_weights(self, vocab: int, batch: int, sampled: bool, cache: Path) -> None:
        check_kernel(plan_of(vocab, 256, batch, sampled=sampled, weights="bf16"), cache)

    @pytest.mark.parametrize(("kind", "state"), [("gated", 0), ("rnn", 256), ("domino", 1024)])
    def test_of_bf16_weights_of_heads_that_read_hidden_states(
        self, kind: Any, state: int, cache: Path
    ) -> None:
        for sampled in (False, True):
            plan = plan_of(
                151_936, 256, sampled=sampled, kind=kind, state=state, hidden=2560, weights="bf16"
            )
            check_kernel(plan, cache)

    @pytest.mark.parametrize("rank", [64, 128, 512])
    def test_of_bf16_weights_of_other_ranks(self, rank: int) -> None:
        for batch in (1, 8):
            compile_fitting(plan_of(60_000, rank, batch, weights="bf16"))

    @given(plans(hopper_only=True))
    @settings(some_plans, max_examples=7)
    def test_of_drawn_plans_with_as_many_registers_as_fit(self, plan: ResidentPlan) -> None:
        compiled = compile_fitting(plan)
        fitting = compiled.plan
        wanted = fitting.product.matrix_instructions * fitting.selection.sweeps_written
        assert compiled.used.matrix_instructions == wanted
        assert (compiled.used.spill_bytes, compiled.used.local_accesses) == (0, 0)

    def test_of_wide_base_logits_of_many_requests(self) -> None:
        """Eight at once spill with them; the plan that takes over does not."""
        compile_fitting(plan_of(151_936, 256, 8, "fp32"))

    def test_of_a_large_head_on_few_blocks(self) -> None:
        compile_fitting(plan_of(248_320, 256, 8, blocks=78))

    @pytest.mark.parametrize("gpu", ["b200", "b300"])
    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("vocab", [151_936, 248_320])
    def test_of_blackwell(
        self, vocab: int, batch: int, sampled: bool, gpu: str, cache: Path
    ) -> None:
        """Hopper's kernel as it is, whose warps then multiply alone for any batch."""
        plan = compile_fitting(plan_of(vocab, 256, batch, gpu=gpu, sampled=sampled)).plan
        assert plan.gpu.arch == GPUS[gpu].arch
        assert plan.product.instruction == "mma"
        check_kernel(plan, cache)

    @pytest.mark.parametrize("gpu", ["b200", "b300"])
    @pytest.mark.parametrize(("kind", "state"), [("gated", 0), ("rnn", 256), ("domino", 1024)])
    def test_of_blackwell_and_heads_that_read_hidden_states(
        self, kind: Any, state: int, gpu: str, cache: Path
    ) -> None:
        for batch, sampled in ((1, False), (2, True), (4, False)):
            plan = plan_of(
                151_936, 256, batch, gpu=gpu, sampled=sampled, kind=kind, state=state, hidden=2560
            )
            check_kernel(compile_fitting(plan).plan, cache)

    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("batch", [1, 2, 4, 8])
    @pytest.mark.parametrize("vocab", [32_000, 151_936, 248_320])
    def test_with_tensor_memory(self, vocab: int, batch: int, sampled: bool, cache: Path) -> None:
        planned = plan_of(vocab, 256, batch, gpu="b200", sampled=sampled, tensor_memory=True)
        plan = compile_fitting(planned).plan
        assert (plan.product.tensor_tiles > 0) == (vocab > 32_000), "registers hold what they can"
        assert plan.placement.streamed_fragments == 0
        check_kernel(plan, cache)

    @pytest.mark.parametrize("gpu", ["b200", "b300"])
    @pytest.mark.parametrize("sampled", [False, True])
    @pytest.mark.parametrize("batch", [1, 4, 8])
    @pytest.mark.parametrize("vocab", [151_936, 248_320])
    def test_of_bf16_weights_in_tensor_memory(
        self, vocab: int, batch: int, sampled: bool, gpu: str, cache: Path
    ) -> None:
        planned = plan_of(vocab, 256, batch, gpu=gpu, sampled=sampled, weights="bf16")
        plan = compile_fitting(planned).plan
        assert plan.gpu.arch == GPUS[gpu].arch
        assert plan.product.tensor_tiles > 0
        check_kernel(plan, cache)

    @pytest.mark.parametrize(("kind", "state"), [("gated", 0), ("rnn", 256), ("domino", 1024)])
    def test_with_tensor_memory_and_hidden_states(self, kind: Any, state: int, cache: Path) -> None:
        shape: dict[str, Any] = {"kind": kind, "state": state, "hidden": 2560}
        for batch, sampled in ((1, False), (2, True), (4, False)):
            plan = plan_of(
                151_936, 256, batch, gpu="b200", sampled=sampled, tensor_memory=True, **shape
            )
            assert plan.product.tensor_tiles > 0
            check_kernel(compile_fitting(plan).plan, cache)

    def test_that_is_traced_compiles_too(self, cache: Path) -> None:
        traced = compile_walk(plan_of(), trace=True, cache=cache)
        assert traced.cubin != compile_walk(plan_of(), cache=cache).cubin


ORDER_CHECK = """
namespace wts {
constexpr int planned_order[] = {%s};
__device__ constexpr bool order_is_planned() {
  for (int phase = 0; phase < plan::PHASES; ++phase)
    for (int slab = 0; slab < SLABS; ++slab)
      for (int variant = 0; variant < SHARING; ++variant)
        for (int live = 0; live < LIVE; ++live) {
          const int tile = (phase * LIVE + live) * SHARING + variant;
          if (tile >= plan::WARP_TILES) continue;
          const int position = fragment_position(phase, slab, variant, live);
          if (planned_order[position] != tile * SLABS + slab) return false;
        }
  return true;
}
static_assert(order_is_planned(), "the sweep is not in the planned order");
}
"""


@needs_compiler
class TestSweepOrder:
    """The kernel works out where a fragment comes in the sweep; the planner said where."""

    @staticmethod
    def compile_with_check(plan: ResidentPlan, order: list[tuple[int, int]], cache: Path) -> None:
        words = ", ".join(str(tile * plan.shard.slabs + slab) for tile, slab in order)
        sources = wts.kernels.compile.read_sources()
        sources["resident.cu"] += ORDER_CHECK % words
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wts.kernels.compile, "read_sources", lambda: sources)
            compile_walk(plan, cache=cache)

    @pytest.mark.parametrize("batch", [1, 2])
    @pytest.mark.parametrize("warp_tiles", [1, 2, 3, 5, 6, 7, 9, 10, 13, 14, 18])
    def test_is_the_planned_one_however_full_the_last_accumulator_is(
        self, warp_tiles: int, batch: int, cache: Path
    ) -> None:
        plan = plan_of(2 * 128 * warp_tiles, 64, batch, blocks=2)
        assert plan.shard.warp_tiles == warp_tiles
        self.compile_with_check(plan, plan.placement.sweep_order(), cache)

    @given(plans(hopper_only=True))
    @settings(some_plans, max_examples=4)
    def test_is_the_planned_one(self, cache: Path, plan: ResidentPlan) -> None:
        assume(not plan.product.warpgroups)  # they take tile after tile, as `places` has them
        fitting = compile_fitting(plan).plan
        self.compile_with_check(fitting, fitting.placement.sweep_order(), cache)

    def test_another_one_is_seen(self, cache: Path) -> None:
        plan = plan_of(5000, 64, 4, blocks=7)
        order = plan.placement.sweep_order()
        order[0], order[-1] = order[-1], order[0]
        with pytest.raises(CompileError, match="the sweep is not in the planned order"):
            self.compile_with_check(plan, order, cache)


class TestFitting:
    """A plan gives way to one with fewer registers where the compiler would spill."""

    @staticmethod
    def spill_above(limit: int, monkeypatch: pytest.MonkeyPatch) -> list[ResidentPlan]:
        """Let kernels of more register fragments than `limit` spill; gives the plans tried."""
        tried = []

        def stand_in(plan: ResidentPlan, *, trace: bool = False) -> CompiledWalk:
            tried.append(plan)
            if plan.placement.register_fragments > limit:
                raise wts.kernels.compile._Spilled("wanted a kernel without spills")
            used = Resources(
                registers=168,
                spill_bytes=0,
                matrix_instructions=plan.product.matrix_instructions,
                tensor_instructions=0,
                local_accesses=0,
            )
            return CompiledWalk(plan=plan, cubin=b"", used=used, cached=False)

        monkeypatch.setattr(wts.kernels.compile, "compile_walk", stand_in)
        return tried

    def test_takes_the_plan_itself_where_it_can(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.spill_above(1000, monkeypatch)
        plan = plan_of(151_936, 256)
        assert compile_fitting(plan).plan is plan
        assert tried == [plan]

    def test_gives_way_step_by_step_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        plan = plan_of(151_936, 256)
        tried = self.spill_above(plan.placement.register_fragments - 6, monkeypatch)
        with caplog.at_level(logging.INFO, logger="wts"):
            found = compile_fitting(plan).plan
        assert found == tried[-1]
        assert [p.placement.register_fragments for p in tried] == sorted(
            (p.placement.register_fragments for p in tried), reverse=True
        )
        assert plan.placement.register_fragments - 10 <= found.placement.register_fragments
        assert found.placement.register_fragments <= plan.placement.register_fragments - 6
        assert plan.hash in caplog.text
        assert found.hash in caplog.text

    def test_gives_up_where_nothing_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.spill_above(0, monkeypatch)
        with pytest.raises(CompileError, match="without spills"):
            compile_fitting(plan_of(151_936, 256))
        assert len(tried) == wts.kernels.compile._MOST_ATTEMPTS + 1

    def test_other_faults_are_not_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = []

        def broken(plan: ResidentPlan, *, trace: bool = False) -> CompiledWalk:
            tried.append(plan)
            raise CompileError("does not compile")

        monkeypatch.setattr(wts.kernels.compile, "compile_walk", broken)
        with pytest.raises(CompileError, match="does not compile"):
            compile_fitting(plan_of(151_936, 256))
        assert len(tried) == 1


@needs_compiler
class TestCache:
    def test_a_second_call_is_served_from_it(self, tmp_path: Path) -> None:
        first = compile_walk(plan_of(), cache=tmp_path)
        second = compile_walk(plan_of(), cache=tmp_path)
        assert (first.cached, second.cached) == (False, True)
        assert (first.cubin, first.used) == (second.cubin, second.used)

    def test_is_made_and_holds_no_half_written_file(self, tmp_path: Path) -> None:
        compile_walk(plan_of(), cache=tmp_path / "a" / "b")
        assert sorted(file.suffix for file in (tmp_path / "a" / "b").iterdir()) == [
            ".cubin",
            ".log",
        ]

    def test_another_plan_is_another_kernel(self, tmp_path: Path) -> None:
        for plan in (plan_of(), plan_of(41), plan_of(mapped=True), plan_of(base_type="fp16")):
            assert not compile_walk(plan, cache=tmp_path).cached

    def test_changed_sources_are_compiled_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compile_walk(plan_of(), cache=tmp_path)
        sources = wts.kernels.compile.read_sources()
        sources["ptx/base.cuh"] += "\n// changed\n"
        monkeypatch.setattr(wts.kernels.compile, "read_sources", lambda: sources)
        assert not compile_walk(plan_of(), cache=tmp_path).cached

    def test_another_compiler_compiles_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compile_walk(plan_of(), cache=tmp_path)
        monkeypatch.setattr(wts.kernels.compile, "_nvrtc_version", lambda: "99.9")
        assert not compile_walk(plan_of(), cache=tmp_path).cached

    def test_that_cannot_be_written_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        for _ in range(2):
            assert not compile_walk(plan_of(), cache=tmp_path / "file").cached

    @pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"garbage" * 100])
    def test_a_damaged_file_is_compiled_anew(self, tmp_path: Path, damage: bytes) -> None:
        whole = compile_walk(plan_of(), cache=tmp_path)
        (cubin,) = tmp_path.glob("*.cubin")
        cubin.write_bytes(damage)
        again = compile_walk(plan_of(), cache=tmp_path)
        assert again.cubin == whole.cubin
        assert not again.cached
        assert compile_walk(plan_of(), cache=tmp_path).cached


def test_the_cache_is_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "wts"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "wts"


class TestRefusals:
    @needs_compiler
    def test_a_source_that_does_not_compile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sources = wts.kernels.compile.read_sources()
        sources["select/key.cuh"] += "\nint broken = this_is_not_declared;\n"
        monkeypatch.setattr(wts.kernels.compile, "read_sources", lambda: sources)
        with pytest.raises(CompileError, match=r"(?s)for sm_90a.*this_is_not_declared"):
            compile_walk(plan_of(), cache=tmp_path)
        assert list(tmp_path.iterdir()) == [], "a failure is not cached"

    @needs_compiler
    def test_an_architecture_that_there_is_not(self, tmp_path: Path) -> None:
        plan = plan_of()
        gpu = replace(plan.gpu, compute_capability=(11, 1))
        with pytest.raises(CompileError, match="sm_111a"):
            compile_walk(plan.replaced(gpu=gpu), cache=tmp_path)

    @needs_compiler
    def test_a_plan_that_the_layout_contradicts(self, tmp_path: Path) -> None:
        plan = plan_of()
        gpu = replace(plan.gpu, shared_bytes_per_block=plan.shared_bytes - 128)
        with pytest.raises(CompileError, match="the shard does not fit in a block"):
            compile_walk(plan.replaced(gpu=gpu), cache=tmp_path)

    @needs_compiler
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"spill_bytes": 8}, "without spills, found 8 spilled bytes"),
            ({"local_accesses": 3}, "found 0 spilled bytes and 3 local accesses"),
            ({"matrix_instructions": 5}, r"wanted 2 matrix instructions, found 5"),
            ({"tensor_instructions": 7}, r"wanted 0 products of tcgen05, found 7"),
            ({"registers": 160}, r"registers a thread at launch, found 160"),
        ],
    )
    def test_a_kernel_that_is_not_as_planned(
        self, changes: dict[str, int], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = plan_of(1, 64)
        fine = {"registers": 168, "spill_bytes": 0, "local_accesses": 0, "matrix_instructions": 2}
        fine["tensor_instructions"] = 0
        used = Resources(**(fine | changes))
        monkeypatch.setattr(wts.kernels.compile, "resources_of", lambda cubin, log: used)
        with pytest.raises(CompileError, match=words) as caught:
            compile_walk(plan, cache=tmp_path)
        assert plan.hash in str(caught.value)

        def compiled_again(*_: object) -> None:
            raise AssertionError

        # It is refused again without being compiled again.
        monkeypatch.setattr(wts.kernels.compile, "_compile", compiled_again)
        with pytest.raises(CompileError, match=words):
            compile_walk(plan, cache=tmp_path)

    @pytest.mark.parametrize("module", ["cuda.core", "cuda.bindings"])
    def test_no_compiler(
        self, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        if module == "cuda.core":
            monkeypatch.setattr(wts.kernels.compile, "_nvrtc_version", lambda: "13.0")
        with pytest.raises(CompileError, match=r"wanted .*found .*install the gpu extra; "):
            compile_walk(plan_of(), cache=tmp_path)


def test_instructions_are_counted_in_code_sections_only() -> None:
    """A hand-made ELF file: two sections of three instructions each, one of them data."""
    imma, load, store, other = (0x237, 0x983, 0x387, 0x123)

    def words(*opcodes: int) -> bytes:
        return b"".join((0xABC0_0000 | op).to_bytes(8, "little") + bytes(8) for op in opcodes)

    names = b"\0.text.walk\0.data\0.names\0"
    code, data = words(imma, load, imma), words(imma, store, other)
    header = 64
    at_data = header + len(code)
    at_names = at_data + len(data)
    at_table = -(-(at_names + len(names)) // 8) * 8

    def section(name: bytes, offset: int, size: int) -> bytes:
        fields = [(names.index(name), 4), (1, 4), (0, 8), (0, 8), (offset, 8), (size, 8)]
        return b"".join(v.to_bytes(n, "little") for v, n in fields).ljust(64, b"\0")

    elf = bytearray(header)
    elf[:4] = b"\x7fELF"
    elf[0x28:0x30] = at_table.to_bytes(8, "little")
    elf[0x3A:0x40] = b"".join(v.to_bytes(2, "little") for v in (64, 3, 2))
    elf += code + data + names
    elf = elf.ljust(at_table, b"\0")
    elf += section(b".text.walk", header, len(code))
    elf += section(b".data", at_data, len(data))
    elf += section(b".names", at_names, len(names))
    assert instruction_counts(bytes(elf)) == {"IMMA": 2, "LDL": 1}
