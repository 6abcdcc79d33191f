"""The null head proposes a fixed draw behind real base logits."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wts.bench.serving import null_head

VOCAB = 10
"""That of the null head's tests, so small that 120 tokens of a draw hold all of it."""


class TestNullHead:
    def test_it_is_hooked_around_both_kinds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hooked: dict[str, Any] = {}

        def register(target: str, hook: Any, kind: str) -> None:
            assert kind == "around"
            hooked[target.rpartition(".")[2]] = hook

        registry = SimpleNamespace(
            HookRegistry=SimpleNamespace(register=register),
            HookType=SimpleNamespace(AROUND="around"),
        )
        monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
        null_head.install()
        assert set(hooked) == {"megakernel_draft_sampler", "domino_greedy_rollout"}

    @pytest.mark.parametrize("padding", [0, 3])
    def test_dspark_blocks_are_a_fixed_draw_behind_real_base_logits(
        self, padding: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(null_head, "_told", set())
        asked: list[torch.Tensor] = []

        def compute_base_logits(hidden: torch.Tensor) -> tuple[torch.Tensor, str]:
            asked.append(hidden)
            return hidden, "features"

        lm_head = SimpleNamespace(weight=torch.zeros(VOCAB + padding, 8))
        if padding:
            lm_head.org_vocab_size = VOCAB
        model = SimpleNamespace(compute_base_logits=compute_base_logits, lm_head=lm_head)

        def steps_into(drafted: torch.Tensor) -> Any:
            factory = null_head._sampler_factory(lambda model: None, model)
            return factory(gamma=3, max_bs=40, draft_tokens=drafted, step_logits=None, noise=None)

        drafted, again = torch.full((2, 40 * 3), -1)
        with caplog.at_level(logging.INFO, logger=null_head.__name__):
            steps = steps_into(drafted)
        drawn = drafted.clone()
        assert_draw(drawn.view(40, 3))
        hidden = torch.zeros(2 * 3, 8)
        for _ in range(2):
            tokens, features = steps(2)(hidden, torch.zeros(2, dtype=torch.int64))
            assert torch.equal(tokens, drawn[:6].view(2, 3))
            assert tokens.data_ptr() == drafted.data_ptr()
            assert features == "features"
        assert len(asked) == 2
        assert all(given is hidden for given in asked)
        steps_into(again)
        assert torch.equal(again, drawn)
        line = f"{null_head.LOG_PREFIX}DSpark blocks of 3 are a fixed random draw"
        assert caplog.messages == [line]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_domino_blocks_are_a_fixed_draw_behind_real_base_logits(
        self,
        dtype: torch.dtype,
        rollout: Callable[..., torch.Tensor],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        products = []
        linear = torch.nn.functional.linear

        def counted(*operands: torch.Tensor) -> torch.Tensor:
            products.append([tuple(operand.shape) for operand in operands])
            return linear(*operands)

        monkeypatch.setattr(torch.nn.functional, "linear", counted)
        with caplog.at_level(logging.INFO, logger=null_head.__name__):
            tokens = rollout(40, dtype=dtype)
        drawn = tokens.clone()
        assert tokens.dtype == dtype
        assert_draw(drawn)
        tokens.fill_(-1)  # the caller's own
        assert torch.equal(rollout(40, dtype=dtype), drawn)
        null_head._blocks.clear()
        assert torch.equal(rollout(40, dtype=dtype), drawn)
        assert products == [[(120, 8), (VOCAB, 8)]] * 3
        line = f"{null_head.LOG_PREFIX}Domino blocks of 4 are a fixed random draw"
        assert caplog.messages == [line]

    def test_domino_draws_before_a_capture_only(
        self, rollout: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn = rollout(2)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert torch.equal(rollout(2), drawn)
        with pytest.raises(RuntimeError, match="no draw of 3 x 3 tokens before its graph"):
            rollout(3)
        assert len(null_head._blocks) == 1

    @pytest.fixture
    def rollout(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.Tensor]:
        """Roll out a batch in blocks of 4, its lm_head padded; nothing has been drawn before."""
        monkeypatch.setattr(null_head, "_told", set())
        monkeypatch.setattr(null_head, "_blocks", {})

        def run(batch: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return null_head._rollout(
                lambda **_: None,
                draft_hidden=torch.zeros(batch, 4, 8),
                bonus_tokens=torch.zeros(batch, dtype=dtype),
                lm_head_weight=torch.zeros(VOCAB + 2, 8),
                vocab_size=VOCAB,
                shift_label=False,
                in_cuda_graph=True,
            )

        return run


def assert_draw(tokens: torch.Tensor) -> None:
    """Check 40 blocks of 3: every token of the vocabulary and no other, and few blocks alike."""
    assert tokens.shape == (40, 3)
    assert set(tokens.flatten().tolist()) == set(range(VOCAB))
    assert len(tokens.unique(dim=0)) > 30
