"""Walker on the CPU: one call for all backends, and each bad input refused by name."""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wts.kernels.launch
import wts.walk.backends
import wts.walk.walker
from strategies import anchors, base_logits, heads, hopper, silent_head, successor_head
from wts.dtypes import NUMBER_TYPES, NumberType
from wts.errors import CompileError, DeviceError, HeadError, InputError, PlanError, WalkError
from wts.hardware.gpu import gpu_spec
from wts.heads.kinds import Shape
from wts.heads.markov import MarkovHead
from wts.kernels.launch import LoadedKernel
from wts.kernels.planner import plan_residency
from wts.kernels.resident.args import STATUS
from wts.kernels.workspace import FIRST_SEQUENCE
from wts.numerics.gumbel import Noise
from wts.walk.backends import BackendName, DeviceBackend, WalkReport
from wts.walk.walker import Walker

BF16 = torch.bfloat16
NAN = math.nan
CPU_BACKENDS: tuple[BackendName, ...] = ("emulator", "reference")

each_backend = pytest.mark.parametrize("backend", CPU_BACKENDS)


def walker(
    head: MarkovHead,
    backend: BackendName,
    *,
    base_type: NumberType = "bf16",
    sampled: bool = False,
    steps: int = 16,
) -> Walker:
    plan = plan_residency(
        head, hopper(3), base_type=base_type, batch=4, steps=steps, sampled=sampled
    )
    return Walker(head, plan, backend=backend)


def new_noise(offset: int = 0) -> Noise:
    return Noise(key=1, offset=torch.tensor([offset]))


class TestCall:
    @given(heads(tied=False), st.sampled_from(NUMBER_TYPES), st.integers(1, 4), st.integers(1, 8))
    def test_backends_take_the_same_call_and_agree_on_clear_winners(
        self, head: MarkovHead, base_type: NumberType, batch: int, steps: int
    ) -> None:
        base = base_logits(head, batch=batch, steps=steps, seed=batch, base_type=base_type)
        # One token of each step is far above the others: no quantisation can tell.
        winners = base.float().argmin(2, keepdim=True)
        base = base.scatter(2, winners, 100.0)
        wanted = winners[:, :, 0]
        if head.draft_to_target is not None:
            wanted = head.draft_to_target[wanted]
        anchor = anchors(head, batch, steps)
        for backend in CPU_BACKENDS:
            tokens = walker(head, backend, base_type=base_type)(base, anchor)
            assert tokens.dtype == torch.int64
            assert torch.equal(tokens, wanted)

    @each_backend
    def test_follows_the_head(self, backend: BackendName) -> None:
        walk = walker(successor_head([3, 0, 4, 2, 1], dtype=BF16), backend)
        tokens = walk(torch.zeros(2, 5, 5, dtype=BF16), torch.tensor([2, 0]))
        assert tokens.tolist() == [[4, 1, 0, 3, 2], [3, 2, 4, 1, 0]]

    @each_backend
    def test_out_receives_the_tokens(self, backend: BackendName) -> None:
        walk = walker(successor_head([1, 2, 0], dtype=BF16), backend)
        base, anchor = torch.zeros(2, 3, 3, dtype=BF16), torch.tensor([0, 1])
        out = torch.full((2, 3), -7)
        assert walk(base, anchor, out=out) is out
        assert torch.equal(out, walk(base, anchor))

    @each_backend
    def test_calls_do_not_depend_on_each_other(self, backend: BackendName) -> None:
        walk = walker(successor_head([1, 2, 0], dtype=BF16), backend)
        base = torch.zeros(4, 6, 3, dtype=BF16)
        first = walk(base, torch.tensor([0, 1, 2, 0]))
        walk(base[:2, :3] + 50, torch.tensor([1, 1]))
        assert torch.equal(walk(base, torch.tensor([0, 1, 2, 0])), first)

    @each_backend
    def test_inputs_are_not_written(self, backend: BackendName) -> None:
        head = MarkovHead.random(vocab=40, rank=64, seed=1)
        base, anchor = base_logits(head, batch=2, steps=3, seed=1), torch.tensor([-1, 99])
        copies = base.clone(), anchor.clone()
        walker(head, backend)(base, anchor)
        assert torch.equal(base, copies[0])
        assert torch.equal(anchor, copies[1])

    @each_backend
    @pytest.mark.parametrize("row_stride", [45, 48, 64])
    def test_a_crop_of_a_wider_matrix_is_read_in_place(
        self, backend: BackendName, row_stride: int
    ) -> None:
        head = MarkovHead.random(vocab=41, rank=64, seed=1)
        crop = base_logits(head, batch=3, steps=4, seed=2, row_stride=row_stride)
        assert crop.stride(1) == row_stride
        anchor = anchors(head, 3, 1)
        walk = walker(head, backend)
        assert torch.equal(walk(crop, anchor), walk(crop.contiguous(), anchor))

    @each_backend
    def test_a_vocabulary_of_one_may_have_any_stride(self, backend: BackendName) -> None:
        base = torch.zeros(2, 3, 8, dtype=BF16)[:, :, ::8]
        assert base.shape == (2, 3, 1)
        tokens = walker(silent_head(1), backend)(base, torch.tensor([0, 0]))
        assert tokens.tolist() == [[0] * 3] * 2

    @each_backend
    def test_wider_logits_than_the_vocabulary_are_cut(self, backend: BackendName) -> None:
        base = torch.full((1, 2, 12), 99.0, dtype=BF16)
        base[:, :, :9] = 0.0
        assert walker(silent_head(9), backend)(base, torch.tensor([3])).tolist() == [[0, 0]]

    @each_backend
    def test_strided_and_expanded_inputs(self, backend: BackendName) -> None:
        head = MarkovHead.random(vocab=41, rank=64, seed=1)
        walk = walker(head, backend)
        base = base_logits(head, batch=1, steps=4, seed=2)
        every_third = torch.arange(12)[2::3]
        assert every_third.stride() == (3,)
        expanded = walk(base.expand(4, -1, -1), every_third)
        wanted = [walk(base, every_third[i : i + 1]) for i in range(4)]
        assert torch.equal(expanded, torch.cat(wanted))
        steps_first = base_logits(head, batch=3, steps=4, seed=3).transpose(0, 1)
        assert torch.equal(
            walk(steps_first[:3], torch.tensor([1, 2, 3])),
            walk(steps_first[:3].contiguous(), torch.tensor([1, 2, 3])),
        )
        same = torch.tensor([5]).expand(2)
        assert torch.equal(*walk(base.expand(2, -1, -1), same))

    @each_backend
    def test_inputs_that_require_grad_are_only_read(self, backend: BackendName) -> None:
        base = torch.zeros(1, 2, 9, dtype=BF16, requires_grad=True)
        tokens = walker(silent_head(9), backend)(base, torch.tensor([0]))
        assert not tokens.requires_grad
        assert tokens.tolist() == [[0, 0]]

    @each_backend
    def test_clamped_anchors_are_counted(self, backend: BackendName) -> None:
        walk = walker(silent_head(9, table_rows=11), backend)
        base = torch.zeros(4, 2, 9, dtype=BF16)
        assert walk.report().clamped_anchors == 0
        walk(base, torch.tensor([0, 10, 11, -1]))
        walk(base[:1], torch.tensor([2**62]))
        assert walk.report().clamped_anchors == 3

    def test_a_device_s_counters_have_no_sign(self) -> None:
        """Torch reads 32 bits as a signed number; rows may be counted up to 2^31 within minutes."""

        class Kernel:
            def read_status(self) -> dict[str, int]:
                data = torch.tensor([2, 0, 0, 0, 3, 1 << 30, -(1 << 31) + 5], dtype=torch.int32)
                return {name: int(n) for name, n in STATUS.unpack(data.numpy().tobytes()).items()}

        backend = DeviceBackend(cast(LoadedKernel, Kernel()))
        assert backend.report() == WalkReport(
            clamped_anchors=3, rescored_steps=1 << 30, rescored_rows=(1 << 31) + 5
        )

    @each_backend
    def test_check_has_nothing_to_say(self, backend: BackendName) -> None:
        walk = walker(silent_head(9), backend)
        walk(torch.zeros(1, 1, 9, dtype=BF16), torch.tensor([0]))
        walk.check()

    def test_says_what_it_is_and_holds(self) -> None:
        head = MarkovHead.random(vocab=90, rank=64, seed=1, draft_vocab=70)
        emulator = walker(head, "emulator")
        assert (emulator.backend, emulator.head, emulator.plan.request.shape.vocab) == (
            "emulator",
            head,
            70,
        )
        rows = emulator.plan.shard.padded_vocab
        assert emulator.memory_bytes == rows * (64 + 4) + 90 * (2 * 64 + 32) + 70 * 4
        assert walker(head, "reference").memory_bytes == (90 + 70) * 64 * 2 + 70 * 8


class TestSampledCall:
    """Under a plan with sampled=True; what is drawn is tested beside the emulator and the cases."""

    @each_backend
    def test_logits_out_is_written_for_sampled_rows_only_and_up_to_the_vocabulary(
        self, backend: BackendName
    ) -> None:
        head = MarkovHead.random(vocab=41, rank=64, seed=1)
        base = base_logits(head, batch=3, steps=4, seed=1)
        walk = walker(head, backend, sampled=True)
        wide = torch.full((3, 4, 48), 7.0, dtype=BF16)
        temperatures = torch.tensor([0.0, 1.0, 0.0])
        walk(
            base, anchors(head, 3, 1), temperatures=temperatures, noise=new_noise(), logits_out=wide
        )
        assert bool((wide[[0, 2]] == 7.0).all())
        assert bool((wide[1, :, 41:] == 7.0).all())
        assert not (wide[1, :, :41] == 7.0).any()

    @each_backend
    def test_logits_out_may_be_a_crop_and_may_be_left_out(self, backend: BackendName) -> None:
        head = MarkovHead.random(vocab=41, rank=64, seed=1)
        base, anchor = base_logits(head, batch=2, steps=4, seed=1), anchors(head, 2, 1)
        walk = walker(head, backend, sampled=True)
        hot = torch.tensor([3.0, 5.0])
        whole = torch.zeros(2, 4, 41, dtype=BF16)
        first = walk(base, anchor, temperatures=hot, noise=new_noise(), logits_out=whole)
        crop = torch.zeros(2, 4, 50, dtype=BF16)[:, :, 3:44]
        second = walk(base, anchor, temperatures=hot, noise=new_noise(), logits_out=crop)
        third = walk(base, anchor, temperatures=hot, noise=new_noise())
        assert torch.equal(crop, whole)
        assert torch.equal(first, second)
        assert torch.equal(first, third)

    @each_backend
    def test_the_offset_is_advanced_by_one_whatever_the_rows_are(
        self, backend: BackendName
    ) -> None:
        head = silent_head(9)
        walk = walker(head, backend, sampled=True)
        noise = new_noise((1 << 40) + 5)
        for temperatures in ([0.0, 0.0], [1.0, 0.0], [1.0, 1.0]):
            walk(
                torch.zeros(2, 3, 9, dtype=BF16),
                torch.tensor([1, 2]),
                temperatures=torch.tensor(temperatures),
                noise=noise,
            )
        assert noise.offset.tolist() == [(1 << 40) + 8]

    @each_backend
    def test_what_the_call_reads_is_not_written(self, backend: BackendName) -> None:
        head = MarkovHead.random(vocab=41, rank=64, seed=1)
        base, temperatures = base_logits(head, batch=2, steps=2, seed=1), torch.tensor([1e-9, NAN])
        copies = base.clone(), temperatures.clone()
        walker(head, backend, sampled=True)(
            base, torch.tensor([1, 2]), temperatures=temperatures, noise=new_noise()
        )
        assert torch.equal(base, copies[0])
        assert torch.equal(temperatures.view(torch.int32), copies[1].view(torch.int32))


class TestRefresh:
    @each_backend
    def test_serves_the_new_weights(self, backend: BackendName) -> None:
        walk = walker(successor_head([1, 2, 0], dtype=BF16), backend)
        base, anchor = torch.zeros(1, 3, 3, dtype=BF16), torch.tensor([0])
        assert walk(base, anchor).tolist() == [[1, 2, 0]]
        changed = successor_head([2, 0, 1], dtype=BF16)
        walk.refresh(changed)
        assert walk(base, anchor).tolist() == [[2, 1, 0]]
        assert walk.head is changed

    @each_backend
    def test_weights_changed_in_place_are_served_from_the_refresh_on(
        self, backend: BackendName
    ) -> None:
        first, second = successor_head([1, 2, 0], dtype=BF16), successor_head([2, 0, 1], dtype=BF16)
        table, projection, ids = first.table, first.projection, torch.tensor([0, 1, 2])
        head = MarkovHead(table=table, projection=projection, draft_to_target=ids)
        walk = walker(head, backend)
        base, anchor = torch.zeros(1, 3, 3, dtype=BF16), torch.tensor([0])
        projection.copy_(second.projection)
        assert walk(base, anchor).tolist() == [[1, 2, 0]]
        walk.refresh(head)
        assert walk(base, anchor).tolist() == [[2, 1, 0]]
        table.copy_(table.roll(1, 0))
        ids.copy_(ids.roll(1))
        assert walk(base, anchor).tolist() == [[2, 1, 0]]
        walk.refresh(head)
        assert walk(base, anchor).tolist() != [[2, 1, 0]]

    @each_backend
    @pytest.mark.parametrize("other", [5, None, Shape(vocab=3, rank=64)])
    def test_refuses_what_is_no_head_and_serves_on(self, backend: BackendName, other: Any) -> None:
        walk = walker(successor_head([1, 2, 0], dtype=BF16), backend)
        with pytest.raises(
            HeadError, match=r"^head: wanted a MarkovHead, .* or DominoHead, found .*; "
        ):
            walk.refresh(other)
        base, anchor = torch.zeros(1, 3, 3, dtype=BF16), torch.tensor([0])
        assert walk(base, anchor).tolist() == [[1, 2, 0]]

    @each_backend
    def test_serves_a_new_map(self, backend: BackendName) -> None:
        def mapped(ids: list[int]) -> MarkovHead:
            return MarkovHead(
                table=torch.zeros(9, 64, dtype=BF16),
                projection=torch.zeros(3, 64, dtype=BF16),
                draft_to_target=torch.tensor(ids),
            )

        walk = walker(mapped([7, 8, 2]), backend)
        base, anchor = torch.zeros(1, 1, 3, dtype=BF16), torch.tensor([0])
        assert walk(base, anchor).tolist() == [[7]]
        walk.refresh(mapped([5, 8, 2]))
        assert walk(base, anchor).tolist() == [[5]]

    @each_backend
    @pytest.mark.parametrize(
        "other",
        [
            MarkovHead.random(vocab=41, rank=64, seed=1),
            MarkovHead.random(vocab=40, rank=128, seed=1),
            MarkovHead.random(vocab=40, rank=64, seed=1, table_rows=41),
            MarkovHead.random(vocab=40, rank=64, seed=1, dtype=torch.float16),
            MarkovHead.random(vocab=40, rank=64, seed=1, draft_vocab=40),
        ],
        ids=["vocab", "rank", "table_rows", "table_type", "map"],
    )
    def test_refuses_another_shape_and_serves_on(self, backend: BackendName, other: Any) -> None:
        head = MarkovHead.random(vocab=40, rank=64, seed=1)
        walk = walker(head, backend)
        base, anchor = base_logits(head, batch=1, steps=4, seed=1), torch.tensor([0])
        before = walk(base, anchor)
        with pytest.raises(PlanError, match=r"^plan: wanted one for .*found .*plan_residency"):
            walk.refresh(other)
        assert walk.head is head
        assert torch.equal(walk(base, anchor), before)


BASE = torch.zeros(2, 3, 50, dtype=BF16)
ANCHOR = torch.zeros(2, dtype=torch.int64)
BAD_INPUTS: list[tuple[str, dict[str, Any], str]] = [
    ("base_logits", {"base_logits": [[1.0]]}, "torch tensor"),
    ("base_logits", {"base_logits": BASE.to("meta")}, "meta"),
    ("base_logits", {"base_logits": BASE.float()}, "wanted torch.bfloat16"),
    ("base_logits", {"base_logits": BASE.to(torch.float16)}, "wanted torch.bfloat16"),
    ("base_logits", {"base_logits": BASE.long()}, "wanted torch.bfloat16"),
    ("base_logits", {"base_logits": BASE[0]}, "at least 50"),
    ("base_logits", {"base_logits": BASE[None]}, "at least 50"),
    ("base_logits", {"base_logits": BASE[:, :, :49]}, "at least 50"),
    ("base_logits", {"base_logits": BASE[:0], "anchor": ANCHOR[:0]}, r"\[1..4"),
    ("base_logits", {"base_logits": BASE.repeat(3, 1, 1)}, r"\[1..4"),
    ("base_logits", {"base_logits": BASE[:, :0]}, "1..8"),
    ("base_logits", {"base_logits": BASE.repeat(1, 3, 1)}, "1..8"),
    ("base_logits", {"base_logits": BASE.mT.contiguous().mT}, "stride 1"),
    ("base_logits", {"base_logits": BASE.repeat(1, 1, 2)[:, :, ::2]}, "stride 1"),
    ("base_logits", {"base_logits": BASE[:, :, :1].expand(-1, -1, 50)}, "stride 1"),
    ("anchor", {"anchor": 0}, "torch tensor"),
    ("anchor", {"anchor": ANCHOR.to("meta")}, "meta"),
    ("anchor", {"anchor": ANCHOR.int()}, r"int64\[2\].*found int32\[2\]"),
    ("anchor", {"anchor": ANCHOR.float()}, r"int64\[2\]"),
    ("anchor", {"anchor": ANCHOR[:1]}, r"int64\[2\].*found int64\[1\]"),
    ("anchor", {"anchor": ANCHOR[:, None]}, r"int64\[2\].*found int64\[2, 1\]"),
    ("anchor", {"anchor": torch.tensor(0)}, r"int64\[2\]"),
    ("hidden", {"hidden": torch.zeros(2, 3, 8, dtype=BF16)}, "reads no hidden"),
    ("temperatures", {"temperatures": torch.ones(2)}, "greedy plan"),
    ("noise", {"noise": new_noise()}, "greedy plan"),
    ("logits_out", {"logits_out": BASE.clone()}, "greedy plan"),
    ("out", {"out": [[0, 0, 0], [0, 0, 0]]}, "torch tensor"),
    ("out", {"out": torch.zeros(2, 3, dtype=torch.int32)}, r"int64\[2, 3\].*found int32"),
    ("out", {"out": torch.zeros(2, 4, dtype=torch.int64)}, r"int64\[2, 3\].*\[2, 4\]"),
    ("out", {"out": torch.zeros(3, 2, dtype=torch.int64).T}, "contiguous"),
]


SAMPLED = {"temperatures": torch.ones(2), "noise": new_noise(), "logits_out": None}
BAD_SAMPLED: list[tuple[str, dict[str, Any], str]] = [
    ("temperatures", {"temperatures": None}, "sampled=True"),
    ("temperatures", {"temperatures": [1.0, 1.0]}, "tensor"),
    ("temperatures", {"temperatures": torch.ones(2).double()}, r"float32\[2\].*found float64"),
    ("temperatures", {"temperatures": torch.ones(2, dtype=BF16)}, r"float32\[2\].*found bfloat16"),
    ("temperatures", {"temperatures": torch.ones(3)}, r"float32\[2\].*found float32\[3\]"),
    ("temperatures", {"temperatures": torch.tensor(1.0)}, r"float32\[2\]"),
    ("temperatures", {"temperatures": torch.ones(4)[::2]}, "contiguous"),
    ("temperatures", {"temperatures": torch.ones(2, device="meta")}, "meta"),
    ("noise", {"noise": None}, "sampled=True"),
    ("noise", {"noise": 7}, "Noise"),
    ("logits_out", {"logits_out": [[[0.0]]]}, "tensor"),
    ("logits_out", {"logits_out": torch.zeros(2, 3, 50)}, "bfloat16.*found float32"),
    ("logits_out", {"logits_out": BASE[:, :, :49].clone()}, "at least 50"),
    ("logits_out", {"logits_out": BASE[:1].clone()}, r"\[2, 3"),
    ("logits_out", {"logits_out": BASE[:, :2].clone()}, r"\[2, 3"),
    ("logits_out", {"logits_out": BASE[0].clone()}, r"\[2, 3"),
    ("logits_out", {"logits_out": BASE.mT.contiguous().mT}, "stride 1"),
    ("logits_out", {"logits_out": BASE.to("meta")}, "meta"),
    ("logits_out", {"logits_out": BASE[:1].clone().expand(2, -1, -1)}, "no two rows"),
    ("logits_out", {"logits_out": BASE[:, :1].clone().expand(-1, 3, -1)}, "no two rows"),
]


class TestBadInput:
    @each_backend
    @pytest.mark.parametrize(
        ("argument", "changes", "words"),
        BAD_SAMPLED,
        ids=[f"{name}-{number}" for number, (name, *_) in enumerate(BAD_SAMPLED)],
    )
    def test_of_a_sampled_walk_is_refused_by_name(
        self, backend: BackendName, argument: str, changes: dict[str, Any], words: str
    ) -> None:
        head = MarkovHead.random(vocab=50, rank=64, seed=1)
        walk = walker(head, backend, sampled=True)
        with pytest.raises(InputError, match=words) as caught:
            walk(BASE, ANCHOR, **(SAMPLED | changes))
        message = str(caught.value)
        assert message.startswith(f"{argument}: wanted ")
        assert "found " in message
        assert "; " in message, "says what to do"

    @each_backend
    @pytest.mark.parametrize(
        ("argument", "changes", "words"),
        BAD_INPUTS,
        ids=[f"{name}-{number}" for number, (name, *_) in enumerate(BAD_INPUTS)],
    )
    def test_is_refused_by_name(
        self, backend: BackendName, argument: str, changes: dict[str, Any], words: str
    ) -> None:
        walk = walker(MarkovHead.random(vocab=50, rank=64, seed=1), backend, steps=8)
        arguments = {"base_logits": BASE, "anchor": ANCHOR} | changes
        with pytest.raises(InputError, match=words) as caught:
            walk(**arguments)
        message = str(caught.value)
        assert message.startswith(f"{argument}: wanted ")
        assert "found " in message
        assert "; " in message, "says what to do"

    @pytest.mark.parametrize("base_type", NUMBER_TYPES)
    def test_base_logits_of_each_type_under_its_plan(self, base_type: NumberType) -> None:
        head = MarkovHead.random(vocab=50, rank=64, seed=1)
        for backend in CPU_BACKENDS:
            walk = walker(head, backend, base_type=base_type)
            for other in NUMBER_TYPES:
                base = base_logits(head, batch=1, steps=1, seed=1, base_type=other)
                if other == base_type:
                    assert walk(base, ANCHOR[:1]).shape == (1, 1)
                else:
                    with pytest.raises(InputError, match=r"^base_logits: .*base_type"):
                        walk(base, ANCHOR[:1])

    @pytest.mark.parametrize("found", ["cuda", "", None, 3])
    def test_an_unknown_backend(self, found: Any) -> None:
        head = silent_head(5)
        with pytest.raises(InputError, match=rf"^backend: wanted .*found {found!r}"):
            Walker(head, plan_residency(head, "h200"), backend=found)

    @pytest.mark.parametrize("found", [0, -1, 600_001, 1.5, "9", True])
    def test_a_limit_out_of_range(self, found: Any) -> None:
        head = silent_head(5)
        with pytest.raises(InputError, match=rf"^timeout_ms: wanted .*found {found!r}"):
            Walker(head, plan_residency(head, "h200"), backend="emulator", timeout_ms=found)

    @pytest.mark.parametrize("backend", ["auto", "device", *CPU_BACKENDS])
    @pytest.mark.parametrize("found", [5, None, "drafter/", torch.zeros(2, 2)])
    def test_what_is_no_head_or_no_plan(self, backend: BackendName, found: Any) -> None:
        head = silent_head(5)
        plan = plan_residency(head, "h200")
        kind = type(found).__name__
        with pytest.raises(HeadError, match=rf"^head: wanted a MarkovHead, .*, found {kind}; "):
            Walker(found, plan, backend=backend)
        with pytest.raises(
            PlanError, match=rf"^plan: wanted a ResidentPlan, found {kind}; .*plan_residency"
        ):
            Walker(head, found, backend=backend)
        with pytest.raises(HeadError, match=r"found ResidentPlan; "):
            Walker(plan, head, backend=backend)  # type: ignore[arg-type]

    @pytest.mark.parametrize("backend", ["auto", "device", *CPU_BACKENDS])
    @pytest.mark.parametrize(
        "changes",
        [
            {"vocab": 41},
            {"rank": 128},
            {"table_rows": 43},
            {"draft_vocab": 42},
            {"dtype": torch.float16},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_a_plan_for_another_head(self, backend: BackendName, changes: dict[str, Any]) -> None:
        head = MarkovHead.random(vocab=42, rank=64, seed=1)
        other = MarkovHead.random(**({"vocab": 42, "rank": 64, "seed": 1} | changes))
        with pytest.raises(PlanError, match=r"^plan: wanted one for .*found .*plan_residency"):
            Walker(head, plan_residency(other, "h200"), backend=backend)


class TestWithoutAGpu:
    @pytest.fixture(autouse=True)
    def _no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_is_an_error_that_says_what_to_do(self, backend: Any) -> None:
        head = silent_head(5)
        with pytest.raises(DeviceError, match=r"^device: wanted .*found none.*backend='emulator'"):
            Walker(head, plan_residency(head, "h200"), backend=backend)

    def test_auto_falls_back_when_asked_to_and_says_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        head = successor_head([1, 2, 0], dtype=BF16)
        with caplog.at_level(logging.WARNING, logger="wts"):
            walk = Walker(head, plan_residency(head, "h200"), fallback=True)
        assert walk.backend == "emulator"
        (record,) = caplog.records
        assert "emulator, not on a GPU" in record.getMessage()
        assert "found none that torch can use" in record.getMessage()
        assert walk(torch.zeros(1, 2, 3, dtype=BF16), torch.tensor([0])).tolist() == [[1, 2]]

    @pytest.mark.parametrize("error", [CompileError("no NVRTC"), DeviceError("too few blocks")])
    def test_auto_falls_back_from_whatever_keeps_the_device_away(
        self, error: WalkError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def no_device(*arguments: object, **named: object) -> None:
            raise error

        monkeypatch.setattr(wts.walk.walker, "cuda_device", lambda device: torch.device("cpu"))
        monkeypatch.setattr(wts.walk.backends, "LoadedKernel", no_device)
        head = silent_head(5)
        plan = plan_residency(head, "h200")
        assert Walker(head, plan, fallback=True).backend == "emulator"
        assert str(error) in caplog.text
        for arguments in ({}, {"backend": "device", "fallback": True}):
            with pytest.raises(type(error), match=str(error)):
                Walker(head, plan, **arguments)

    def test_device_never_falls_back(self) -> None:
        head = silent_head(5)
        with pytest.raises(DeviceError):
            Walker(head, plan_residency(head, "h200"), backend="device", fallback=True)

    @each_backend
    def test_cpu_backends_warn_of_nothing(
        self, backend: BackendName, caplog: pytest.LogCaptureFixture
    ) -> None:
        walker(silent_head(5), backend)
        assert caplog.records == []


class TestOnAnotherGpu:
    """The checks before anything is compiled, with a stand-in for the driver."""

    @pytest.fixture(autouse=True)
    def _stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    @pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (10, 1), (12, 0)])
    def test_that_the_plan_is_not_for(
        self, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        head = silent_head(5)
        with pytest.raises(DeviceError, match=r"wanted a Hopper GPU .*emulator'") as caught:
            Walker(head, plan_residency(head, "h200"))
        assert f"{capability[0]}.{capability[1]}" in str(caught.value)

    @pytest.mark.parametrize(
        ("capability", "gpu", "arch"),
        [
            ((9, 0), "b200", "sm_100a"),
            ((9, 0), "b300", "sm_103a"),
            ((10, 0), "b300", "sm_103a"),
            ((10, 3), "b200", "sm_100a"),
        ],
    )
    def test_with_a_plan_for_another_one(
        self, capability: tuple[int, int], gpu: str, arch: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        head = silent_head(5)
        with pytest.raises(DeviceError, match=f"a plan for {arch}"):
            Walker(head, plan_residency(head, gpu))

    @pytest.mark.parametrize(("gpu", "cautions"), [("h200", 0), ("b200", 1), ("b300", 1)])
    def test_that_the_kernel_was_never_run_on_is_warned_of(
        self,
        gpu: str,
        cautions: int,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def compiled(*_: object, **__: object) -> None:
            raise DeviceError("far enough")

        spec = gpu_spec(gpu)
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device: spec.compute_capability
        )
        monkeypatch.setattr(wts.kernels.launch, "compile_fitting", compiled)
        head = silent_head(5)
        with pytest.raises(DeviceError, match="far enough"):
            Walker(head, plan_residency(head, spec))
        assert sum("not yet run" in record.message for record in caplog.records) == cautions

    def test_on_a_device_that_is_no_gpu(self) -> None:
        head = silent_head(5)
        with pytest.raises(DeviceError, match=r"^device: wanted a CUDA device, found cpu"):
            Walker(head, plan_residency(head, "h200"), device="cpu")


def test_every_refusal_is_a_walk_error() -> None:
    for error in (HeadError, InputError, PlanError, DeviceError):
        assert issubclass(error, WalkError)


def test_the_first_sequence_is_nobodys_word() -> None:
    """A cleared slot has tag 0; the first exchanges of each parity must have other tags."""
    first = FIRST_SEQUENCE
    assert all(((first + step) >> 1) & 0xF != 0 for step in (0, 1))
