"""A head that proposes constants, for SGLang: what is left of a round when no head is walked.

It is an SGLang plugin of its own, which `wts bench serving` puts on the path of one start. Base
logits are computed all the same, through SGLang's own helper: no head is spared them. So the time
of a round with this head is the least that any head can reach.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["LOG_PREFIX", "TOKEN", "install"]

LOG_PREFIX = "wts null head: "
"""What the line that proves this head begins with."""

TOKEN = 100
"""What it proposes, a legal token of every vocabulary."""

_SAMPLER = "sglang.srt.kernel_plugins.nvidia.binding.megakernel_draft_sampler"
_ROLLOUT = "sglang.srt.speculative.domino_utils.domino_greedy_rollout"

_LOGGER = logging.getLogger(__name__)
_told: set[str] = set()


def install() -> None:
    """Hook both kinds of drafters; SGLang calls this in each of its processes.

    Source: sglang/srt/plugins/__init__.py (entry points), hook_registry.py (hooks).
    """
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    around = registry.HookType.AROUND
    registry.HookRegistry.register(_SAMPLER, _sampler_factory, around)
    registry.HookRegistry.register(_ROLLOUT, _rollout, around)


def _tell(kind: str, text: str) -> None:
    """One line per process and kind."""
    if kind not in _told:
        _told.add(kind)
        _LOGGER.info("%s%s", LOG_PREFIX, text)


def _sampler_factory(
    original: Callable[..., Any], draft_model: Any, *rest: Any, **named: Any
) -> Callable[..., Any]:
    """Around the lookup of a draft sampler: a factory of ours, whatever was there."""
    del original, rest, named

    def factory(*, gamma: int, draft_tokens: torch.Tensor, **unused: Any) -> Callable[..., Any]:
        del unused  # step logits stay the zeros they are, the noise counter does not advance
        draft_tokens.fill_(TOKEN)
        _tell("dspark", f"DSpark blocks of {gamma} are constants")

        def step(
            hidden: torch.Tensor, anchor: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            del anchor
            _, features = draft_model.compute_base_logits(hidden)
            return draft_tokens[: hidden.shape[0]].view(-1, gamma), features

        return lambda bs: step

    return factory


def _rollout(
    original: Callable[..., Any],
    *,
    draft_hidden: torch.Tensor,
    bonus_tokens: torch.Tensor,
    lm_head_weight: torch.Tensor,
    vocab_size: int,
    shift_label: bool,
    **unused: Any,
) -> torch.Tensor:
    """Around a Domino rollout: its base logits, in its order, then constants [B, block - 1]."""
    del original, unused
    import torch

    batch, block, size = draft_hidden.shape
    start = 0 if shift_label else 1
    hidden = draft_hidden[:, start : start + block - 1].to(lm_head_weight.dtype)
    lines = hidden.transpose(0, 1).contiguous().view(-1, size)
    torch.nn.functional.linear(lines, lm_head_weight[:vocab_size])
    _tell("domino", f"Domino blocks of {block} are constants")
    return bonus_tokens.new_full((batch, block - 1), TOKEN)
