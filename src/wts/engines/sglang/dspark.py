"""The DSpark draft sampler's factory: step objects that walk, inside SGLang's draft graph.

Source:
    SGLang 0.5.23, sglang/srt/speculative/dspark_components/dspark_draft_sampler.py and
    sglang/kernels/plugin_kernels/nvidia/spec.py, `BuiltMegakernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from wts.dtypes import NumberType
from wts.engines.common import report
from wts.engines.common.buckets import Walks, build_walks
from wts.engines.common.reasons import Agree, Reason
from wts.engines.common.upkeep import Upkeep
from wts.engines.sglang import events
from wts.engines.sglang.adopt import adopt_dspark, behaves
from wts.engines.sglang.version import DSPARK, SGLANG, Release
from wts.errors import describe
from wts.hardware.gpu import GpuSpec
from wts.heads.base import Head
from wts.numerics.gumbel import Noise
from wts.numerics.torch_dtypes import NUMBER_TYPE_OF
from wts.walk.backends import BackendName
from wts.walk.walker import Walker

__all__ = ["Factory", "Step", "Steps", "base_type_of", "factory_of"]

Step: TypeAlias = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, Any]]
"""(hidden [bs K, H], anchor int64 [bs]) -> (tokens int64 [bs, K], confidence features)."""

Steps: TypeAlias = Callable[[int], Step | None]
"""bs -> its step, or None for SGLang's own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factory:
    """What SGLang calls once, when its draft sampler is built.

    Args:
        model: SGLang's draft model.
        head: what was adopted of it.
        gpu: the GPU that walks are planned for.
        release: the SGLang that asks.
        backend: "device", or "emulator" to try the same on a CPU.
        agree: makes a reason that of all ranks.
        ranks: how many ranks draft the same block.
    """

    model: Any
    head: Head
    gpu: GpuSpec
    release: Release
    backend: BackendName
    agree: Agree
    ranks: int

    def __call__(
        self,
        *,
        gamma: int,
        max_bs: int,
        greedy_draft: bool,
        noise: Any,
        draft_tokens: torch.Tensor,
        step_logits: torch.Tensor | None,
        step_temperatures: torch.Tensor,
    ) -> Steps:
        """Build walks for every batch.

        Args:
            gamma: K.
            max_bs: the largest batch.
            greedy_draft: whether every row is greedy and no logits are kept.
            noise: SGLang's, with its key and its offset, int64 [1].
            draft_tokens: int64 [max_bs K], where tokens go, row by row.
            step_logits: zeros [max_bs, K, V], where sampled rows leave theirs; None where greedy.
            step_temperatures: fp32 [max_bs], 0 for greedy rows.

        Returns:
            The steps; all are SGLang's own where walks cannot be, and the log says why.
        """
        arguments = _Arguments(
            gamma=gamma,
            max_bs=max_bs,
            greedy_draft=greedy_draft,
            noise=noise,
            draft_tokens=draft_tokens,
            step_logits=step_logits,
            step_temperatures=step_temperatures,
        )
        try:
            found = self._agreed(arguments)
        except Exception as error:  # whatever it is, SGLang can serve without walks
            SGLANG.logger.warning("wts: building the draft's walks failed", exc_info=True)
            found = Reason(kind="build", text=f"{type(error).__name__}: {error}")
        if isinstance(found, Reason):
            report.stays_off(DSPARK, found)
            return lambda batch: None
        report.will_walk(found.walks)
        return found.steps.get

    def _agreed(self, given: _Arguments) -> _Drafting | Reason:
        """What this rank has built, if all ranks have and none stays off."""
        base_type = base_type_of(self.model, self.head, given.gamma)
        reason = self.agree(base_type if isinstance(base_type, Reason) else None)
        if reason is not None:
            return reason
        assert not isinstance(base_type, Reason)
        built = self._built(given, base_type)
        if isinstance(built, Reason):
            return self.agree(built) or built
        reason = self.agree(None, built.walks.walking)
        if reason is not None:
            return reason
        try:
            reason = self.agree(events.attach(built.upkeep, self.release))
        except Exception:
            built.upkeep.active = False
            raise
        if reason is not None:
            built.upkeep.active = False
            return reason
        if built.walks.walkers.greedy_beside:
            events.clear_padding(self.release)
        return built

    def _built(self, given: _Arguments, base_type: NumberType) -> _Drafting | Reason:
        """Walks and their steps; it raises nothing, since other ranks wait for an answer."""
        walks = build_walks(
            self.head,
            self.gpu,
            draft=DSPARK,
            most_requests=given.max_bs,
            steps=given.gamma,
            base_type=base_type,
            sampled=not given.greedy_draft,
            backend=self.backend,
        )
        if isinstance(walks, Reason):
            return walks
        try:
            reason = _why_not_logits(walks, given.step_logits)
            if reason is not None:
                return reason
            upkeep = Upkeep(
                engine=SGLANG,
                walkers=walks.walkers,
                adopt=lambda: adopt_dspark(self.model.markov_head),
                ranks=self.ranks,
                agree=self.agree,
            )
            steps = _steps(self.model, walks, given, upkeep)
            return _Drafting(walks=walks, steps=steps, upkeep=upkeep)
        except Exception as error:  # a later SGLang's arguments, say
            SGLANG.logger.warning("wts: making the draft's steps failed", exc_info=True)
            return Reason(kind="build", text=f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Drafting:
    """What a rank has built: walks, the steps of each batch, and what keeps them true."""

    walks: Walks
    steps: dict[int, Step]
    upkeep: Upkeep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Arguments:
    """What SGLang calls a Factory with."""

    gamma: int
    max_bs: int
    greedy_draft: bool
    noise: Any
    draft_tokens: torch.Tensor
    step_logits: torch.Tensor | None
    step_temperatures: torch.Tensor


def _steps(model: Any, walks: Walks, given: _Arguments, upkeep: Upkeep) -> dict[int, Step]:
    """The steps of all batches that walk: SGLang asks for each at once, and again in each call."""
    noise, logits = given.noise, given.step_logits
    stream = None if given.greedy_draft else Noise(key=noise.key, offset=noise.offset)
    steps: dict[int, Step] = {}
    for batch in range(1, given.max_bs + 1):
        walker = walks.for_batch(batch)
        if walker is not None:
            steps[batch] = _Step(
                model=model,
                walker=walker,
                tokens=given.draft_tokens[: batch * given.gamma].view(batch, given.gamma),
                noise=stream,
                temperatures=None if stream is None else given.step_temperatures[:batch],
                logits=None if logits is None else logits[:batch],
                upkeep=upkeep,
            )
    return steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """The step of one batch: base logits by the model, then a walk into SGLang's own buffers.

    Args:
        model: SGLang's draft model.
        walker: walks this batch.
        tokens: int64 [B, K], where tokens go.
        noise: of sampled rows; None where all are greedy, as temperatures.
        temperatures: fp32 [B].
        logits: [B, K, V], where sampled rows leave theirs; None where greedy.
        upkeep: of the walks: it lives as long as a step that needs it.
    """

    model: Any
    walker: Walker
    tokens: torch.Tensor
    noise: Noise | None
    temperatures: torch.Tensor | None
    logits: torch.Tensor | None
    upkeep: Upkeep

    def __call__(self, hidden: torch.Tensor, anchor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        batch, steps = self.tokens.shape
        base_logits, confidence_features = self.model.compute_base_logits(hidden)
        reads_hidden = self.walker.head.hidden_size is not None
        self.walker(
            base_logits.view(batch, steps, -1),
            anchor,
            hidden=hidden.view(batch, steps, -1) if reads_hidden else None,
            temperatures=self.temperatures,
            noise=self.noise,
            logits_out=self.logits,
            out=self.tokens,
        )
        return self.tokens, confidence_features


def base_type_of(model: Any, head: Head, steps: int) -> NumberType | Reason:
    """Make the base logits of one block of zeros, as the warm-up will, and see what they are.

    Args:
        model: SGLang's draft model.
        head: its head.
        steps: K.

    Returns:
        Their number type, or why a walk cannot read them.
    """
    size = head.hidden_size or getattr(getattr(model, "config", None), "hidden_size", None)
    if size is None:
        return Reason(kind="head", text="the draft model's config has no hidden_size")
    try:
        with torch.no_grad():
            hidden = torch.zeros(
                steps, int(size), dtype=_hidden_dtype(model), device=head.projection.device
            )
            base_logits, _ = model.compute_base_logits(hidden)
            wanted = model.markov_head.step_logits_dtype(base_logits.dtype)
    except Exception as error:  # SGLang's own steps may still know how
        return Reason(
            kind="head", text=f"base logits cannot be tried: {type(error).__name__}: {error}"
        )
    if (
        base_logits.dtype not in NUMBER_TYPE_OF
        or tuple(base_logits.shape) != (steps, head.vocab)
        or base_logits.stride(1) != 1
    ):
        return Reason(
            kind="head",
            text=f"its base logits are {describe(base_logits)} of strides "
            f"{list(base_logits.stride())}, wanted are [{steps}, {head.vocab}]",
        )
    if wanted != torch.promote_types(base_logits.dtype, head.table.dtype):
        return Reason(
            kind="head",
            text=f"its step logits are {wanted} of {base_logits.dtype} and {head.table.dtype}",
        )
    return NUMBER_TYPE_OF[base_logits.dtype]


def _hidden_dtype(model: Any) -> torch.dtype:
    """That of the lm_head; bf16 where its weight is packed in another type, or is not there."""
    weight = getattr(getattr(model, "lm_head", None), "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dtype in NUMBER_TYPE_OF:
        return weight.dtype
    return torch.bfloat16


def _why_not_logits(walks: Walks, step_logits: torch.Tensor | None) -> Reason | None:
    """Ask whether SGLang's buffer takes the logits that walks sample from."""
    plan = walks.walkers.plans[0]
    if not walks.sampled:
        return None
    if step_logits is None:
        return Reason(kind="head", text="rows are sampled, but SGLang keeps no step logits")
    if NUMBER_TYPE_OF.get(step_logits.dtype) != plan.request.step_type:
        return Reason(
            kind="head",
            text=f"SGLang keeps step logits in {step_logits.dtype}, "
            f"a walk has {plan.request.step_type}",
        )
    return None


def _adopted(model: Any) -> Head | Reason:
    try:
        head = adopt_dspark(model.markov_head)
        reason = head if isinstance(head, Reason) else behaves(model.markov_head, head)
    except Exception as error:  # one rank must not leave the others waiting for its answer
        return Reason(kind="head", text=f"it cannot be adopted: {type(error).__name__}: {error}")
    return head if reason is None else reason


def factory_of(
    model: Any,
    gpu: GpuSpec | Reason,
    *,
    release: Release,
    agree: Agree,
    ranks: int,
    backend: BackendName = "device",
) -> Factory | Reason:
    """Adopt a draft model's head; building waits until SGLang calls the factory.

    Args:
        model: SGLang's draft model.
        gpu: the GPU that walks are planned for, or why there is none: other ranks are told.
        release: the SGLang that asks.
        agree: makes a reason that of all ranks.
        ranks: how many ranks draft the same block.
        backend: "device", or "emulator" to try the same on a CPU.

    Returns:
        The factory, or why SGLang's own steps run: the same decision on every rank.
    """
    head = gpu if isinstance(gpu, Reason) else _adopted(model)
    reason = agree(head if isinstance(head, Reason) else None)
    if isinstance(head, Reason):
        return reason or head
    if reason is not None:
        return reason
    assert not isinstance(gpu, Reason)
    return Factory(
        model=model,
        head=head,
        gpu=gpu,
        release=release,
        backend=backend,
        agree=agree,
        ranks=ranks,
    )
