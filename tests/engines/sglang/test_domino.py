"""A Domino rollout walks under the arguments of SGLang's function, or that function runs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional

from sglang_draft import domino_arguments, parameter
from strategies import anchors, hopper, recurrent_head
from walks import walker_of
from wts.engines.common.reasons import Reason
from wts.engines.common.upkeep import Upkeep
from wts.engines.sglang import domino, events
from wts.engines.sglang.domino import Rollout, prepare
from wts.engines.sglang.hooks import Hooks
from wts.engines.sglang.version import RELEASES
from wts.heads.domino import DominoHead

STEPS, MOST, HIDDEN = 4, 3, 40


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> list[Upkeep]:
    """There is no SGLang to hang an upkeep on; those that were hung."""
    hung: list[Upkeep] = []
    monkeypatch.setattr(events, "attach", lambda kept, release: hung.append(kept))
    return hung


def head_of(*, shift_label: bool = False, seed: int = 7) -> DominoHead:
    head = recurrent_head(DominoHead, shift_label=shift_label, seed=seed)
    assert isinstance(head, DominoHead)
    return head


def block_hidden(batch: int, steps: int = STEPS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, steps + 1, HIDDEN, generator=generator).bfloat16()


def arguments_of(head: DominoHead, batch: int = MOST, **more: Any) -> dict[str, Any]:
    made = domino_arguments(
        head, block_hidden=block_hidden(batch), anchor=anchors(head, batch, seed=4)
    )
    return made | more


def prepared(arguments: dict[str, Any]) -> Rollout | Reason:
    return prepare(
        arguments, hopper(4), release=RELEASES[-1], most_requests=MOST, backend="emulator"
    )


def rollout_of(arguments: dict[str, Any]) -> Rollout:
    found = prepared(arguments)
    assert isinstance(found, Rollout)
    return found


@pytest.mark.parametrize("shift_label", [False, True])
@pytest.mark.parametrize("batch", [1, MOST])
def test_a_rollout_is_a_walk(shift_label: bool, batch: int) -> None:
    head = head_of(shift_label=shift_label)
    arguments = arguments_of(head)
    rollout = rollout_of(arguments)
    call = arguments | {
        "draft_hidden": block_hidden(batch),
        "bonus_tokens": anchors(head, batch, seed=5),
    }
    assert rollout.takes(call)
    tokens = rollout(call)
    hidden = head.drafting_hidden(block_hidden(batch))
    base = functional.linear(hidden, arguments["lm_head_weight"][: head.vocab])
    walker = walker_of("emulator", head, batch=MOST, blocks=4)
    assert torch.equal(tokens, walker(base, anchors(head, batch, seed=5), hidden=hidden))


def test_captured_tokens_stay_in_one_place_and_eager_ones_do_not() -> None:
    head = head_of()
    arguments = arguments_of(head)
    rollout = rollout_of(arguments)
    places = [rollout(arguments).data_ptr() for _ in range(2)]
    assert places[0] == places[1] == rollout.tokens.data_ptr()
    eager = arguments | {"in_cuda_graph": False}
    kept = rollout(eager)
    assert kept.data_ptr() != rollout.tokens.data_ptr()
    other = arguments_of(head)["draft_hidden"].flip(0)
    before = kept.clone()
    rollout(eager | {"draft_hidden": other})
    assert torch.equal(kept, before)


def test_shorter_blocks_walk_too() -> None:
    head = head_of()
    arguments = arguments_of(head)
    rollout = rollout_of(arguments)
    short = arguments | {"draft_hidden": block_hidden(MOST, steps=2)}
    assert rollout.takes(short)
    assert rollout(short).shape == (MOST, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"candidate_pool_size": 5},
        {"shift_label": True},
        {"vocab_size": 516},
        {"draft_hidden": block_hidden(MOST).float()},
        {"draft_hidden": block_hidden(MOST, steps=STEPS + 1)},
        {"draft_hidden": block_hidden(MOST + 1)},
        {"embed_proj": torch.nn.Sequential()},
        {"bonus_tokens": torch.zeros(MOST, dtype=torch.int32)},
        {"lm_head_weight": torch.zeros(520, HIDDEN)},
    ],
)
def test_a_call_that_was_not_built_for_is_sglangs(change: dict[str, Any]) -> None:
    arguments = arguments_of(head_of())
    rollout = rollout_of(arguments)
    assert rollout.takes(arguments)
    assert not rollout.takes(arguments | change)


class Ranks:
    world_size = 2


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        ({"tp_group": Ranks()}, "tensor parallelism", "ranks"),
        ({"candidate_pool_size": 100}, "candidates", "pool-size 0"),
        ({"lm_head_weight": torch.zeros(520, HIDDEN)}, "head", "bfloat16"),
        ({"vocab_size": 400}, "head", "400"),
        ({"draft_hidden": block_hidden(1, steps=33)}, "plan", "33"),
    ],
)
def test_what_cannot_walk_says_why(
    change: dict[str, Any], kind: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="wts.sglang"):
        found = prepared(arguments_of(head_of()) | change)
    assert isinstance(found, Reason)
    assert found.kind == kind
    assert word in found.text
    assert caplog.messages == [f"wts: off for SGLang's Domino rollout: {found.text}"]


def test_an_embedding_that_scales_is_sglangs() -> None:
    class Scaled(torch.nn.Embedding):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens) * 2

    arguments = arguments_of(head_of())
    arguments["target_embedding"].__class__ = Scaled
    found = prepared(arguments)
    assert isinstance(found, Reason)
    assert "look-up" in found.text


def test_a_pool_of_all_tokens_is_the_whole_vocabulary() -> None:
    assert rollout_of(arguments_of(head_of(), candidate_pool_size=517))


def test_an_update_of_the_targets_embedding_reaches_the_walks(
    no_engine: list[Upkeep],
) -> None:
    head, new = head_of(), head_of(seed=8)
    arguments = arguments_of(head)
    rollout = rollout_of(arguments)
    (kept,) = no_engine
    arguments["target_embedding"].weight = parameter(new.table)
    before = rollout(arguments).clone()
    kept.refresh()
    after = rollout(arguments)
    assert not torch.equal(after, before)
    mixed = DominoHead(
        table=new.table,
        projection=head.projection,
        gru_input_weight=head.gru_input_weight,
        gru_state_weight=head.gru_state_weight,
        projector_weight=head.projector_weight,
        shift_label=False,
    )
    hidden = head.drafting_hidden(arguments["draft_hidden"])
    base = functional.linear(hidden, arguments["lm_head_weight"][: head.vocab])
    walker = walker_of("emulator", mixed, batch=MOST, blocks=4)
    assert torch.equal(after, walker(base, arguments["bonus_tokens"], hidden=hidden))


# ---- the hook ----------------------------------------------------------------------------------


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The largest batch of each build."""
    built: list[int] = []

    def watched(arguments: dict[str, Any], gpu: Any, *, most_requests: int, **more: Any) -> Any:
        built.append(most_requests)
        return prepare(arguments, gpu, most_requests=most_requests, **more)

    monkeypatch.setattr(domino, "prepare", watched)
    return built


@pytest.fixture
def hooks() -> Hooks:
    """The hooks of one process, which build on the emulator."""
    return hooks_of()


def hooks_of() -> Hooks:
    return Hooks(
        release=RELEASES[-1],
        backend="emulator",
        gpu=lambda: hopper(4),
        largest_batch=lambda: 1,
    )


OWN = torch.tensor([[-7]])


def original(*args: Any, **kwargs: Any) -> torch.Tensor:
    return OWN


def test_the_first_warm_up_builds_and_later_calls_walk(hooks: Hooks, builds: list[int]) -> None:
    arguments = arguments_of(head_of())
    eager = arguments | {"in_cuda_graph": False}
    assert hooks.around_rollout(original, **eager) is OWN, "no request waits for a build"
    assert builds == []
    first = hooks.around_rollout(original, **arguments).clone()
    assert first.shape == (MOST, STEPS)
    assert torch.equal(hooks.around_rollout(original, **eager), first)
    assert torch.equal(hooks.around_rollout(original, **arguments), first)
    assert builds == [MOST]
    assert hooks.around_rollout(original, **arguments, candidate_pool=1) is not OWN
    assert hooks.around_rollout(original, **(arguments | {"candidate_pool_size": 9})) is OWN
    assert hooks.around_rollout(original, "anything", **arguments) is OWN


def test_nothing_is_built_under_capture(
    hooks: Hooks, builds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert hooks.around_rollout(original, **arguments_of(head_of())) is OWN
    assert builds == []


def test_a_head_that_cannot_walk_is_tried_once(hooks: Hooks, builds: list[int]) -> None:
    arguments = arguments_of(head_of(), candidate_pool_size=9)
    for _ in range(3):
        assert hooks.around_rollout(original, **arguments) is OWN
    assert builds == [MOST]


@pytest.mark.parametrize("missing", ["embed_proj", "shift_label"])
def test_arguments_of_another_sglang_are_sglangs(
    missing: str,
    hooks: Hooks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    arguments = arguments_of(head_of())
    assert hooks.around_rollout(original, **arguments) is not OWN
    del arguments[missing]
    for _ in range(3):
        assert hooks.around_rollout(original, **arguments) is OWN
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "KeyError" in caplog.text


def test_nothing_is_hung_where_the_tokens_find_no_memory(
    no_engine: list[Upkeep], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**parts: Any) -> None:
        raise torch.OutOfMemoryError(list(parts))

    monkeypatch.setattr(domino, "Rollout", full)
    with pytest.raises(torch.OutOfMemoryError):
        prepared(arguments_of(head_of()))
    assert no_engine == []


def test_a_failure_is_a_line_in_the_log(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("anything")

    monkeypatch.setattr(domino, "prepare", fail)
    with caplog.at_level("INFO", logger="wts.sglang"):
        assert hooks.around_rollout(original, **arguments_of(head_of())) is OWN
    assert "off for SGLang's Domino rollout: RuntimeError: anything" in caplog.text


def test_a_drafter_that_is_gone_leaves_nothing_behind(
    hooks: Hooks, no_engine: list[Upkeep]
) -> None:
    arguments = arguments_of(head_of())
    assert hooks.around_rollout(original, **arguments) is not OWN
    kept, drafter = weakref.ref(no_engine.pop()), weakref.ref(arguments["embed_proj"])
    gc.collect()
    assert kept() is not None, "walks are served while the drafter lives"
    assert hooks.around_rollout(original, **arguments) is not OWN
    del arguments
    gc.collect()
    assert drafter() is None
    assert kept() is None


def test_a_reason_is_forgotten_with_its_drafter(hooks: Hooks, builds: list[int]) -> None:
    """Another drafter may lie where it lay."""
    arguments = arguments_of(head_of(), candidate_pool_size=9)
    assert hooks.around_rollout(original, **arguments) is OWN
    drafter = weakref.ref(arguments["embed_proj"])
    del arguments
    gc.collect()
    assert drafter() is None
    assert hooks.around_rollout(original, **arguments_of(head_of())) is not OWN
    assert builds == [MOST, MOST]


def test_two_servers_in_a_process_share_nothing(
    builds: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    servers = [hooks_of(), hooks_of()]
    arguments = arguments_of(head_of())
    for server in servers:
        assert server.around_rollout(original, **arguments) is not OWN
    assert builds == [MOST, MOST]
    del arguments["shift_label"]
    for server in servers * 2:
        assert server.around_rollout(original, **arguments) is OWN
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_modules_that_are_gone_cannot_be_adopted_again() -> None:
    arguments = arguments_of(head_of())
    modules = domino.Modules.of(arguments)
    assert modules.are_in(arguments)
    assert isinstance(modules.adopt(vocab_size=517, shift_label=False), DominoHead)
    del arguments["embed_proj"]
    gc.collect()
    found = modules.adopt(vocab_size=517, shift_label=False)
    assert isinstance(found, Reason)
    assert "gone" in found.text
