"""Common code names no engine: it speaks, and decides, by what it is given of one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import wts
from strategies import hopper
from wts.engines.common import report
from wts.engines.common.buckets import Walks, build_walks
from wts.engines.common.engine import Draft, Engine
from wts.engines.common.reasons import Reason, why_not_memory, why_switched_off
from wts.engines.common.upkeep import CHECK_EVERY_S, Upkeep
from wts.errors import HeadError, WalkTimeout
from wts.heads.markov import MarkovHead

OTHER = Engine(
    name="Other",
    logger=logging.getLogger("wts.other"),
    switch="WTS_OTHER",
    verbose="WTS_OTHER_VERBOSE",
    update_end="finish_update",
    memory_fix="buy memory",
    reserve_bytes=7 << 20,
)
GREEDY = Draft(engine=OTHER, name="Other's draft", heads=("markov",), sampled=False)


def walks_of(draft: Draft, *, sampled: bool = False) -> Walks | Reason:
    return build_walks(
        MarkovHead.random(vocab=517, rank=64, seed=1),
        hopper(4),
        draft=draft,
        most_requests=2,
        steps=5,
        base_type="bf16",
        sampled=sampled,
        backend="emulator",
    )


def test_no_common_module_names_an_engine() -> None:
    files = sorted((Path(wts.__file__).parent / "engines" / "common").glob("*.py"))
    assert len(files) > 5
    for file in files:
        text = file.read_text(encoding="utf-8").lower()
        assert [name for name in ("sglang", "vllm", "tensorrt") if name in text] == [], file.name


def test_another_engine_has_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    walks = walks_of(GREEDY)
    assert isinstance(walks, Walks)
    reason = Reason(kind="memory", text="none left")
    with caplog.at_level("INFO", logger="wts.other"):
        report.will_walk(walks)
        report.stays_off(GREEDY, reason)
        report.engine_off(OTHER, reason)
    on, off, engine = caplog.messages
    assert on.startswith("wts: on for Other's draft: markov head, V 517, r 64, K 5; batch 1 to 2: ")
    assert "batch 3 and above: Other's own steps; " in on
    assert off == "wts: off for Other's draft: none left"
    assert engine == "wts: off for Other: none left"
    assert {record.name for record in caplog.records} == {"wts.other"}


@pytest.mark.parametrize("heads", [("gated",), ()])
def test_a_head_that_is_not_served_is_a_reason(heads: tuple[str, ...]) -> None:
    found = walks_of(Draft(engine=OTHER, name="Other's draft", heads=heads, sampled=True))
    assert isinstance(found, Reason)
    assert "markov head" in found.text


def test_a_draft_of_greedy_rows_builds_no_sampled_walks() -> None:
    found = walks_of(GREEDY, sampled=True)
    assert isinstance(found, Reason)
    assert "sampled" in found.text


def test_its_reserve_and_its_switch_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_memory(OTHER, needed_bytes=1, free_bytes=1 + (7 << 20)) is None
    reason = why_not_memory(OTHER, needed_bytes=1, free_bytes=7 << 20)
    assert reason is not None
    assert reason.text.endswith("7 MiB have to stay free, found 7 MiB; buy memory")
    monkeypatch.setenv("WTS_SGLANG", "0")
    assert why_switched_off(OTHER) is None
    monkeypatch.setenv("WTS_OTHER", "0")
    assert why_switched_off(OTHER) == Reason(kind="switch", text="WTS_OTHER=0")


@pytest.mark.parametrize("value", ["1", "0"])
def test_its_log_is_as_loud_as_its_user_wants(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OTHER.logger, "level", logging.NOTSET)
    monkeypatch.setenv("WTS_OTHER_VERBOSE", value)
    report.set_level(OTHER)
    assert (OTHER.logger.level == logging.DEBUG) == (value == "1")


class GivenUp:
    def check(self) -> None:
        raise WalkTimeout("block 3")

    def refresh(self, head: Any) -> None:
        raise torch.OutOfMemoryError("full")

    def for_batch(self, batch: int) -> Any:
        raise torch.OutOfMemoryError("full")


def test_its_upkeep_says_what_its_users_know(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    kept = Upkeep(
        engine=OTHER,
        walkers=GivenUp(),  # type: ignore[arg-type]
        adopt=lambda: MarkovHead.random(vocab=17, rank=64, seed=1),
        ranks=1,
        clock=lambda: now[0],
    )
    kept.mark()
    now[0] += CHECK_EVERY_S
    kept.look()
    update, given_up = caplog.messages
    assert update.endswith("until finish_update")
    assert given_up.endswith("WTS_OTHER=0 turns walks off")
    with pytest.raises(HeadError, match="buy memory and restart the server"):
        kept.refresh()
