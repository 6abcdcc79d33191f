"""Where there is no flashinfer SGLang's own switch is set."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from wts.bench.serving import greedy_only


class TestGreedy:
    def test_sglangs_own_switch_is_set_and_said_once(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hooked: dict[str, Any] = {}

        def register(target: str, hook: Any, kind: str) -> None:
            hooked[f"{kind} {target.rpartition('.')[2]}"] = hook

        registry = SimpleNamespace(
            HookRegistry=SimpleNamespace(register=register),
            HookType=SimpleNamespace(REPLACE="replace"),
        )
        monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
        greedy_only._unavailable.cache_clear()
        greedy_only.install()
        (switch,) = hooked.values()
        assert set(hooked) == {"replace is_dflash_sampling_verify_available"}
        with caplog.at_level(logging.INFO, logger=greedy_only.__name__):
            assert [switch(), switch()] == [False, False]
        assert caplog.messages == [greedy_only.LOG_LINE]

    def test_only_dominos_worker_wants_flashinfer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(greedy_only, "_has_flashinfer", lambda: False)
        assert greedy_only.is_needed("domino")
        assert not greedy_only.is_needed("dspark")
        monkeypatch.setattr(greedy_only, "_has_flashinfer", lambda: True)
        assert not greedy_only.is_needed("domino")
