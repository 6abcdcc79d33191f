"""The two functions of SGLang that are hooked, and whether the hooks took.

Both live in light modules: SGLang imports what is hooked in each of its processes. What only the
drafting process needs is hooked there, later (`events`).
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wts.engines.common import report
from wts.engines.common.reasons import Reason, agreed
from wts.engines.sglang.version import DOMINO, DSPARK, SGLANG, Release

if TYPE_CHECKING:
    from wts.hardware.gpu import GpuSpec
    from wts.walk.backends import BackendName

__all__ = ["PROBE", "Hooks", "taken"]


class _Probe:
    """What a hook that took gives back, and no function of SGLang can know."""


PROBE = _Probe()


def _local_gpu() -> GpuSpec:
    from wts.hardware.gpu import LOCAL, gpu_spec

    return gpu_spec(LOCAL)


def _largest_batch() -> int:
    """The largest batch that SGLang captures; 1 where it does not say."""
    try:
        from sglang.srt.runtime_context import get_exec

        return int(max(get_exec().graph.cuda_graph_config.decode.bs))
    except Exception:  # the first warm-up is of that batch, too
        return 1


@dataclass(slots=True, kw_only=True, eq=False)
class Hooks:
    """Both hooks, and what they know of the drafters that they met.

    Args:
        release: the SGLang that is hooked.
        backend: "device", or "emulator" to try the same on a CPU.
        gpu: finds the GPU that walks are planned for.
        largest_batch: finds the largest batch that SGLang will capture.
    """

    release: Release
    backend: BackendName = "device"
    gpu: Callable[[], GpuSpec] = _local_gpu
    largest_batch: Callable[[], int] = _largest_batch
    # By a drafter's projector, as long as that lives: a Rollout, or why there is none.
    _rollouts: weakref.WeakKeyDictionary[Any, Any] = field(
        init=False, default_factory=weakref.WeakKeyDictionary
    )
    _warned: set[type[Exception]] = field(init=False, default_factory=set)

    def install(self) -> None:
        """Register both hooks, and look whether they took as soon as SGLang has applied them.

        SGLang logs a hook that it cannot apply and goes on, so that nothing here would notice.

        Source:
            SGLang 0.5.23, sglang/srt/plugins/hook_registry.py.
        """
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(self.release.factory, self.around_factory, HookType.AROUND)
        HookRegistry.register(self.release.rollout, self.around_rollout, HookType.AROUND)
        _verify_after(
            HookRegistry,
            ((self.release.factory, _ask_factory), (self.release.rollout, _ask_rollout)),
        )

    def around_factory(self, original: Callable[[Any], Any], draft_model: Any) -> Any:
        """Give our factory where SGLang has none.

        Args:
            original: SGLang's function, or the next hook.
            draft_model: the draft model, its weights loaded and its lm_head attached.
        """
        if draft_model is PROBE:
            return PROBE
        theirs = original(draft_model)
        if theirs is not None:
            reason = Reason(kind="plugin", text="another plugin has a sampler for this draft")
            report.stays_off(DSPARK, reason)
            return theirs
        try:
            found = self._factory(draft_model)
        except Exception as error:  # whatever it is, SGLang can serve without walks
            SGLANG.logger.warning("wts: adopting the draft's head failed", exc_info=True)
            found = Reason(kind="build", text=f"{type(error).__name__}: {error}")
        if isinstance(found, Reason):
            report.stays_off(DSPARK, found)
            return None
        return found

    def _factory(self, draft_model: Any) -> Any:
        import torch
        from sglang.srt.layers.dp_attention import get_dp_tp_group

        from wts.engines.sglang.dspark import factory_of

        # The group in which SGLang compares the batches that ranks serve.
        group = get_dp_tp_group()

        def agree(reason: Reason | None, walking: tuple[int, ...] | None = None) -> Reason | None:
            return agreed(reason, group, torch.distributed.all_gather_object, walking)

        gpu: GpuSpec | Reason
        try:
            gpu = self.gpu()
        except Exception as error:  # the other ranks wait for this one's answer
            gpu = Reason(kind="gpu", text=f"{type(error).__name__}: {error}")
        return factory_of(
            draft_model,
            gpu,
            release=self.release,
            agree=agree,
            ranks=group.world_size,
            backend=self.backend,
        )

    def around_rollout(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Walk a Domino block where walks are ready; build them in the first warm-up.

        Args:
            original: SGLang's function, or the next hook.
            args: none in this version of SGLang; with any, its own function runs.
            kwargs: of that function.
        """
        if kwargs.get("draft_hidden") is PROBE:
            return PROBE
        rollout = None if args else self._rollout_that_takes(kwargs)
        return original(*args, **kwargs) if rollout is None else rollout(kwargs)

    def _rollout_that_takes(self, arguments: dict[str, Any]) -> Any:
        """The Rollout of a call, if there is one that takes it."""
        try:
            rollout = self._rollout(arguments)
            if rollout is None or isinstance(rollout, Reason) or not rollout.takes(arguments):
                return None
        except Exception as error:  # SGLang knows its own arguments
            if type(error) not in self._warned:  # one line is enough: each block is a call
                self._warned.add(type(error))
                SGLANG.logger.warning("wts: a Domino rollout is SGLang's own", exc_info=True)
            return None
        return rollout

    def _rollout(self, arguments: dict[str, Any]) -> Any:
        """This drafter's Rollout, or why there is none; None before its first warm-up.

        SGLang warms up eagerly before each capture, the largest batch first. There is no building
        in a capture, nor in a server without graphs, whose requests would wait for it.
        """
        import torch

        drafter = arguments["embed_proj"]
        if drafter not in self._rollouts:
            if not arguments["in_cuda_graph"]:
                return None
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return None
            self._rollouts[drafter] = self._prepared(arguments)
        return self._rollouts[drafter]

    def _prepared(self, arguments: dict[str, Any]) -> Any:
        from wts.engines.sglang.domino import prepare

        try:
            return prepare(
                arguments,
                self.gpu(),
                release=self.release,
                most_requests=max(self.largest_batch(), arguments["draft_hidden"].shape[0]),
                backend=self.backend,
            )
        except Exception as error:  # whatever it is, SGLang can serve without walks
            SGLANG.logger.warning("wts: adopting the Domino head failed", exc_info=True)
            found = Reason(kind="build", text=f"{type(error).__name__}: {error}")
            report.stays_off(DOMINO, found)
            return found


def _verify_after(registry: Any, asked: tuple[tuple[str, Callable[[Any], Any]], ...]) -> None:
    """Look at the hooks after the registry applied them, once."""
    declared = registry.__dict__["apply_hooks"]
    apply = registry.apply_hooks

    def apply_and_look() -> None:
        registry.apply_hooks = declared
        apply()
        for target, ask in asked:
            if taken(target, ask):
                SGLANG.logger.debug("wts: hooked %s", target)
            else:
                SGLANG.logger.warning("wts: off: the hook on %s did not take", target)

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
