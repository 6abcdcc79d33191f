"""The two functions of SGLang that are hooked, and whether the hooks took.

Both live in light modules: SGLang imports what is hooked in each of its processes. What only the
drafting process needs is hooked there, later (`upkeep`).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from wts.engines.common.reasons import Reason, agreed

__all__ = ["FACTORY", "PROBE", "ROLLOUT", "around_factory", "around_rollout", "install", "taken"]

FACTORY = "sglang.srt.kernel_plugins.nvidia.binding.megakernel_draft_sampler"
"""Gives a draft model's sampler factory, or None for SGLang's own steps."""

ROLLOUT = "sglang.srt.speculative.domino_utils.domino_greedy_rollout"
"""Drafts a block of Domino."""

logger = logging.getLogger("wts.sglang")


class _Probe:
    """What a hook that took gives back, and no function of SGLang can know."""


PROBE = _Probe()

# Of this process, by the projector of the drafter: a Rollout, or why there is none.
_rollouts: dict[int, Any] = {}

_warned: set[type[Exception]] = set()


def install() -> None:
    """Register both hooks, and look whether they took as soon as SGLang has applied them.

    SGLang logs a hook that it cannot apply and goes on, so that nothing here would notice.

    Source:
        SGLang 0.5.23, sglang/srt/plugins/hook_registry.py.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FACTORY, around_factory, HookType.AROUND)
    HookRegistry.register(ROLLOUT, around_rollout, HookType.AROUND)
    _verify_after(HookRegistry)


def _verify_after(registry: Any) -> None:
    """Look at the hooks after the registry applied them, once."""
    declared = registry.__dict__["apply_hooks"]
    apply = registry.apply_hooks

    def apply_and_look() -> None:
        registry.apply_hooks = declared
        apply()
        for target, asked in ((FACTORY, _ask_factory), (ROLLOUT, _ask_rollout)):
            if taken(target, asked):
                logger.debug("wts: hooked %s", target)
            else:
                logger.warning("wts: off: the hook on %s did not take", target)

    registry.apply_hooks = staticmethod(apply_and_look)


def taken(target: str, ask: Callable[[Any], Any]) -> bool:
    """Ask a hooked function for the probe: only a hook that is called gives it back.

    Args:
        target: dotted path of the function.
        ask: calls it with the probe.
    """
    module, _, name = target.rpartition(".")
    try:
        return ask(getattr(importlib.import_module(module), name)) is PROBE
    except Exception:  # the function itself was asked, and cannot know the probe
        return False


def _ask_factory(function: Any) -> Any:
    return function(PROBE)


def _ask_rollout(function: Any) -> Any:
    return function(draft_hidden=PROBE)


def around_factory(original: Callable[[Any], Any], draft_model: Any) -> Any:
    """Give our factory where SGLang has none.

    Args:
        original: SGLang's function, or the next hook.
        draft_model: the draft model, its weights loaded and its lm_head attached.
    """
    if draft_model is PROBE:
        return PROBE
    theirs = original(draft_model)
    from wts.engines.common import report

    if theirs is not None:
        report.stays_off(
            "dspark", Reason(kind="plugin", text="another plugin has a sampler for this draft")
        )
        return theirs
    try:
        found = _factory(draft_model)
    except Exception as error:  # whatever it is, SGLang can serve without walks
        logger.warning("wts: adopting the draft's head failed", exc_info=True)
        found = Reason(kind="build", text=f"{type(error).__name__}: {error}")
    if isinstance(found, Reason):
        report.stays_off("dspark", found)
        return None
    return found


def _factory(draft_model: Any) -> Any:
    import torch
    from sglang.srt.layers.dp_attention import get_dp_tp_group

    from wts.engines.sglang.dspark import factory_of

    # The group in which SGLang compares the batches that ranks serve.
    group = get_dp_tp_group()

    def agree(reason: Reason | None, walking: tuple[int, ...] | None = None) -> Reason | None:
        return agreed(reason, group, torch.distributed.all_gather_object, walking)

    try:
        gpu = _local_gpu()
    except Exception as error:  # the other ranks wait for this one's answer
        gpu = Reason(kind="gpu", text=f"{type(error).__name__}: {error}")
    return factory_of(draft_model, gpu, agree=agree, ranks=group.world_size)


def around_rollout(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Walk a Domino block where walks are ready; build them in the first warm-up.

    Args:
        original: SGLang's function, or the next hook.
        args: none in this version of SGLang; with any, its own function runs.
        kwargs: of that function.
    """
    if kwargs.get("draft_hidden") is PROBE:
        return PROBE
    rollout = None if args else _rollout_that_takes(kwargs)
    return original(*args, **kwargs) if rollout is None else rollout(kwargs)


def _rollout_that_takes(arguments: dict[str, Any]) -> Any:
    """The Rollout of a call, if there is one that takes it."""
    try:
        rollout = _rollout(arguments)
        if rollout is None or isinstance(rollout, Reason) or not rollout.takes(arguments):
            return None
    except Exception as error:  # SGLang knows its own arguments
        if type(error) not in _warned:  # one line is enough: there is a call for each block
            _warned.add(type(error))
            logger.warning("wts: a Domino rollout is SGLang's own", exc_info=True)
        return None
    return rollout


def _rollout(arguments: dict[str, Any]) -> Any:
    """This drafter's Rollout, or why there is none; None before its first warm-up.

    SGLang warms up eagerly before each capture, the largest batch first. There is no building in
    a capture, nor in a server without graphs, whose requests would wait for it.
    """
    import torch

    key = id(arguments["embed_proj"])
    if key not in _rollouts:
        if not arguments["in_cuda_graph"]:
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None
        from wts.engines.sglang.domino import prepare

        try:
            found: Any = prepare(
                arguments,
                _local_gpu(),
                most_requests=max(_largest_batch(), arguments["draft_hidden"].shape[0]),
            )
        except Exception as error:  # whatever it is, SGLang can serve without walks
            from wts.engines.common import report

            logger.warning("wts: adopting the Domino head failed", exc_info=True)
            found = Reason(kind="build", text=f"{type(error).__name__}: {error}")
            report.stays_off("domino", found)
        _rollouts[key] = found
    return _rollouts[key]


def _local_gpu() -> Any:
    from wts.hardware.gpu import LOCAL, gpu_spec

    return gpu_spec(LOCAL)


def _largest_batch() -> int:
    """The largest batch that SGLang captures; 1 where it does not say."""
    try:
        from sglang.srt.runtime_context import get_exec

        return int(max(get_exec().graph.cuda_graph_config.decode.bs))
    except Exception:  # the first warm-up is of that batch, too
        return 1
