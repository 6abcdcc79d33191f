"""A head that proposes a fixed random draw, for SGLang: what is left of a round without a walk.

It is an SGLang plugin of its own, which `wts bench serving` puts on the path of one start. Base
logits are computed all the same, through SGLang's own helper: no head is spared them. So the time
of a round with this head is the least that any head can reach.

The tokens differ, as those of any head do: rows that are alike make the verification of large
batches cheaper, since their products draw less power, and the bound would be too high. They are
drawn once, not in a round.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["LOG_PREFIX", "install"]

LOG_PREFIX = "wts null head: "
"""What the line that proves this head begins with."""

_SEED = 0

_SAMPLER = "sglang.srt.kernel_plugins.nvidia.binding.megakernel_draft_sampler"
_ROLLOUT = "sglang.srt.speculative.domino_utils.domino_greedy_rollout"

_LOGGER = logging.getLogger(__name__)
_told: set[str] = set()
_blocks: dict[tuple[Any, ...], torch.Tensor] = {}


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


def _draw(shape: tuple[int, ...], vocab: int) -> torch.Tensor:
    """Legal tokens on the CPU, int64: the same ones on every rank and in every start."""
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(vocab, shape, generator=generator, device="cpu")


def _sampler_factory(
    original: Callable[..., Any], draft_model: Any, *rest: Any, **named: Any
) -> Callable[..., Any]:
    """Around the lookup of a draft sampler: a factory of ours, whatever was there."""
    del original, rest, named

    def factory(*, gamma: int, draft_tokens: torch.Tensor, **unused: Any) -> Callable[..., Any]:
        del unused  # step logits stay the zeros they are, the noise counter does not advance
        draft_tokens.copy_(_draw(tuple(draft_tokens.shape), _vocab_of(draft_model)))
        _tell("dspark", f"DSpark blocks of {gamma} are a fixed random draw")

        def step(
            hidden: torch.Tensor, anchor: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            del anchor
            _, features = draft_model.compute_base_logits(hidden)
            return draft_tokens[: hidden.shape[0]].view(-1, gamma), features

        return lambda bs: step

    return factory


def _vocab_of(draft_model: Any) -> int:
    """V: an lm_head may have more rows, which are padding, or a rank's share of them."""
    lm_head = draft_model.lm_head
    vocab = getattr(lm_head, "org_vocab_size", None)
    return int(lm_head.weight.shape[0] if vocab is None else vocab)


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
    """Around a Domino rollout: its base logits, in its order, then a copy of a fixed draw."""
    del original, unused
    import torch

    batch, block, size = draft_hidden.shape
    start = 0 if shift_label else 1
    hidden = draft_hidden[:, start : start + block - 1].to(lm_head_weight.dtype)
    lines = hidden.transpose(0, 1).contiguous().view(-1, size)
    torch.nn.functional.linear(lines, lm_head_weight[:vocab_size])
    tokens = _block((batch, block - 1), vocab_size, bonus_tokens)
    _tell("domino", f"Domino blocks of {block} are a fixed random draw")
    return tokens.clone()  # the caller may write into it


def _block(shape: tuple[int, int], vocab: int, like: torch.Tensor) -> torch.Tensor:
    """The draw of that shape [B, block - 1], made in the warm-up before a batch is captured.

    Raises:
        RuntimeError: there is none yet, and a graph is being captured.
    """
    import torch

    key = (shape, vocab, like.dtype, like.device)
    if key not in _blocks:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{LOG_PREFIX}no draw of {shape[0]} x {shape[1]} tokens before its graph is "
                "captured: SGLang did not warm up this batch"
            )
        _blocks[key] = _draw(shape, vocab).to(like)
    return _blocks[key]
